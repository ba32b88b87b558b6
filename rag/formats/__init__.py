"""Documents of many formats, read into one form.

A manual comes from anywhere, so no reader runs in this process: `worker` is a child of it with limits on memory, on
time and on what it may say, which comes back as JSON. A new format is a module with `read(data: bytes, name: str) ->
Document` and a row in FORMATS.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import edged
from edged.errors import BadDocument
from edged.rag.document import Block, Document

MEMORY = 1 << 30  # bytes of address space that a reader may take
SECONDS = 120  # of processor time
ANSWER = 96 << 20  # bytes that a reader may say: six for each character that a document may have
PIECE = 64 << 10  # bytes that are read at a time
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


def parse(name: str, data: bytes, *, memory: int = MEMORY, seconds: int = SECONDS, most: int = ANSWER,
          alive: Callable[[], None] = lambda: None) -> Document:
    """Read the document that is called `name`, within `memory` bytes and `seconds` of processor time.

    most: bytes that its reader may say of it.

    `alive` is called now and then; what it raises ends the reading. Raises BadDocument, which names the cause.
    """
    row, name = format_of(name), name.rpartition("/")[2]
    if len(data) > row.max_bytes:
        raise BadDocument(f"{name}: larger than {row.max_bytes >> 20} MiB", hint="split it")
    answer = _ask(data, name, row, memory, seconds, most, alive)
    if "error" in answer:
        raise BadDocument(f"{name}: {answer['error']}", hint=answer["hint"])
    text, paths = answer["text"], [()]
    for around, heading in answer["sections"]:
        paths.append((*paths[around], heading))
    blocks = tuple(Block(kind, text[start:end], page, paths[section], start, end)
                   for kind, page, section, start, end in answer["blocks"])
    return Document(answer["title"], text, blocks, tuple(answer["pages_without_text"]))


def _ask(data: bytes, name: str, row: Format, memory: int, seconds: int, most: int, alive: Callable[[], None]
         ) -> dict[str, Any]:
    """What the child says of a document. A child that dies is the document's fault."""
    command = [sys.executable, "-m", "edged.rag.formats.worker", row.module, name, str(memory), str(seconds)]
    # the package's own folder: the child finds edged there, and nothing that lies in the caller's folder
    home = Path(edged.__file__).parents[1]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=home, stdin=pipe, stdout=pipe, stderr=pipe) as child:
        try:
            out, err = _converse(child, data, name, PATIENCE * seconds, most, alive)
        except BaseException:
            child.kill()
            raise
    if child.returncode == -signal.SIGXCPU:
        raise BadDocument(f"{name}: not read after {seconds} s of processor time")
    if child.returncode:
        last = err.decode("utf-8", "replace").strip().rpartition("\n")[2]
        why = f"signal {-child.returncode}" if child.returncode < 0 else last
        raise BadDocument(f"{name}: its reader died ({why})", hint=f"it may use {memory >> 20} MiB")
    answer: dict[str, Any] = json.loads(out)
    return answer


def _converse(child: subprocess.Popen[bytes], data: bytes, name: str, patience: float, most: int,
              alive: Callable[[], None]) -> tuple[bytearray, bytes]:
    """What the child said in the end, at most so many bytes, and its last words on stderr."""
    assert child.stdin and child.stdout and child.stderr
    deadline = time.monotonic() + patience
    unsent, out, err = memoryview(data), bytearray(), b""
    with selectors.DefaultSelector() as ready:
        os.set_blocking(child.stdin.fileno(), False)
        ready.register(child.stdin, selectors.EVENT_WRITE)
        ready.register(child.stdout, selectors.EVENT_READ)
        ready.register(child.stderr, selectors.EVENT_READ)
        while ready.get_map():
            alive()
            for key, _ in ready.select(PULSE):
                if key.fileobj is child.stdin:
                    try:
                        unsent = unsent[os.write(key.fd, unsent) :]
                    except BrokenPipeError:  # it has died, or has read enough
                        unsent = unsent[:0]
                    over = not unsent
                else:
                    part = os.read(key.fd, PIECE)
                    over = not part
                    if key.fileobj is child.stdout:
                        out += part
                    else:
                        err = (err + part)[-PIECE:]
                if over:
                    ready.unregister(key.fileobj)
                    if key.fileobj is child.stdin:
                        child.stdin.close()
            if len(out) > most:
                raise BadDocument(f"{name}: its reader said more than {most >> 20} MiB", hint="split it")
            if time.monotonic() > deadline:
                raise BadDocument(f"{name}: not read after {patience:g} s")
    return out, err
