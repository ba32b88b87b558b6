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
from dataclasses import dataclass
from pathlib import Path

import edged
from edged.errors import BadDocument
from edged.rag.document import Block, Document

MEMORY = 1 << 30  # bytes of address space that a reader may take
SECONDS = 120  # of processor time
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


def format_of(path: Path) -> Format | None:
    """The format that a file's name tells, None if edged reads no such files."""
    return next((row for row in FORMATS if path.name.lower().endswith(row.suffixes)), None)


def read(path: Path, *, memory: int = MEMORY, seconds: int = SECONDS) -> Document:
    """Read a document, within `memory` bytes and `seconds` of processor time.

    Raises BadDocument, which names the cause.
    """
    row = format_of(path)
    if row is None:
        known = " ".join(suffix for each in FORMATS for suffix in each.suffixes)
        raise BadDocument(f"{path.name}: no reader for files of this name", hint=f"edged reads {known}")
    try:
        with path.open("rb") as file:
            data = file.read(row.max_bytes + 1)
    except OSError as error:
        raise BadDocument(f"{path}: {error.strerror}") from error
    if len(data) > row.max_bytes:
        raise BadDocument(f"{path.name}: larger than {row.max_bytes >> 20} MiB", hint="split it")
    answer = _ask(data, path.name, row, memory, seconds)
    if "error" in answer:
        raise BadDocument(f"{path.name}: {answer['error']}", hint=answer["hint"])
    blocks = []
    for kind, page, headings, start, end in answer["blocks"]:
        blocks.append(Block(kind, answer["text"][start:end], page, tuple(headings), start, end))
    return Document(answer["title"], answer["text"], tuple(blocks), tuple(answer["pages_without_text"]))


def _ask(data: bytes, name: str, row: Format, memory: int, seconds: int) -> dict:
    """What the child says of a document. A child that dies is the document's fault."""
    command = [sys.executable, "-m", "edged.rag.formats.worker", row.module, name, str(memory), str(seconds)]
    # the package's own folder: the child finds edged there, and nothing that lies in the caller's folder
    home = Path(edged.__file__).parents[1]
    try:
        done = subprocess.run(command, input=data, capture_output=True, cwd=home, timeout=PATIENCE * seconds)
    except subprocess.TimeoutExpired as error:
        raise BadDocument(f"{name}: not read after {PATIENCE * seconds} s") from error
    if done.returncode == -signal.SIGXCPU:
        raise BadDocument(f"{name}: not read after {seconds} s of processor time")
    if done.returncode:
        last = done.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2]
        why = f"signal {-done.returncode}" if done.returncode < 0 else last
        raise BadDocument(f"{name}: its reader died ({why})", hint=f"it may use {memory >> 20} MiB")
    return json.loads(done.stdout)
