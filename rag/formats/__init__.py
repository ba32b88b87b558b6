"""Documents of many formats, read into one form.

A manual comes from anywhere, so no reader runs in this process: `worker` is a child of it with a limit on memory and
on time, and what it says comes back as JSON. A new format is a module with `read(data: bytes, name: str) -> Document`
and a row in FORMATS.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import edged
from edged.errors import BadDocument
from edged.rag.document import Block, Document

MEMORY = 1 << 30  # bytes of address space that a reader may take
SECONDS = 120  # of processor time
PULSE = 0.5  # seconds between two looks at a reader
PATIENCE = 10  # times as long by the clock: a reader goes behind generation, which may take all cores


@dataclass(frozen=True)
class Format:
    """A row of the registry: file names with one of `suffixes` are read by `edged.rag.formats.<module>`."""

    module: str
    suffixes: tuple[str, ...]
    max_bytes: int


FORMATS = (
    Format("markdown", (".md", ".markdown"), 16 << 20),
    Format("html", (".html", ".htm", ".xhtml"), 16 << 20),
    Format("pdf", (".pdf",), 256 << 20),
    Format("plain", (".txt", ".text"), 16 << 20),
)


def format_of(name: str) -> Format:
    """The format that a file's name tells. Raises BadDocument if edged reads no such files."""
    for row in FORMATS:
        if name.lower().endswith(row.suffixes):
            return row
    known = " ".join(suffix for each in FORMATS for suffix in each.suffixes)
    raise BadDocument(f"{name}: no reader for files of this name", hint=f"edged reads {known}")


def read(path: Path, *, memory: int = MEMORY, seconds: int = SECONDS) -> Document:
    """Read a document from a file, as `parse` does."""
    row = format_of(path.name)
    try:
        with path.open("rb") as file:
            data = file.read(row.max_bytes + 1)
    except OSError as error:
        raise BadDocument(f"{path}: {error.strerror}") from error
    return parse(path.name, data, memory=memory, seconds=seconds)


def parse(name: str, data: bytes, *, memory: int = MEMORY, seconds: int = SECONDS,
          alive: Callable[[], None] = lambda: None) -> Document:
    """Read the document that is called `name`, within `memory` bytes and `seconds` of processor time.

    `alive` is called now and then; what it raises ends the reading. Raises BadDocument, which names the cause.
    """
    row, name = format_of(name), name.rpartition("/")[2]
    if len(data) > row.max_bytes:
        raise BadDocument(f"{name}: larger than {row.max_bytes >> 20} MiB", hint="split it")
    answer = _ask(data, name, row, memory, seconds, alive)
    if "error" in answer:
        raise BadDocument(f"{name}: {answer['error']}", hint=answer["hint"])
    blocks = []
    for kind, page, headings, start, end in answer["blocks"]:
        blocks.append(Block(kind, answer["text"][start:end], page, tuple(headings), start, end))
    return Document(answer["title"], answer["text"], tuple(blocks), tuple(answer["pages_without_text"]))


def _ask(data: bytes, name: str, row: Format, memory: int, seconds: int, alive: Callable[[], None]) -> dict:
    """What the child says of a document. A child that dies is the document's fault."""
    command = [sys.executable, "-m", "edged.rag.formats.worker", row.module, name, str(memory), str(seconds)]
    # the package's own folder: the child finds edged there, and nothing that lies in the caller's folder
    home = Path(edged.__file__).parents[1]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=home, stdin=pipe, stdout=pipe, stderr=pipe) as child:
        try:
            out, err = _converse(child, data, name, PATIENCE * seconds, alive)
        except BaseException:
            child.kill()
            raise
    if child.returncode == -signal.SIGXCPU:
        raise BadDocument(f"{name}: not read after {seconds} s of processor time")
    if child.returncode:
        last = err.decode("utf-8", "replace").strip().rpartition("\n")[2]
        why = f"signal {-child.returncode}" if child.returncode < 0 else last
        raise BadDocument(f"{name}: its reader died ({why})", hint=f"it may use {memory >> 20} MiB")
    return json.loads(out)


def _converse(child: subprocess.Popen[bytes], data: bytes, name: str, patience: float, alive: Callable[[], None]
              ) -> tuple[bytes, bytes]:
    """What the child wrote when it has ended."""
    deadline = time.monotonic() + patience
    unsent: bytes | None = data
    while True:
        alive()
        try:
            return child.communicate(unsent, timeout=PULSE)
        except subprocess.TimeoutExpired:
            unsent = None  # communicate goes on with the rest by itself
        if time.monotonic() > deadline:
            raise BadDocument(f"{name}: not read after {patience:g} s")
