"""A process that ingests manuals: `python -m tests.rag.ingesting FOLDER FIRST LAST [LINES]`; says "ready" before it
opens the store, and what became of each manual.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from edged.rag import schema  # noqa: F401 - loaded before "ready", so that a kill meets the work
from edged.rag.ingest import ingest_one
from tests.rag.manuals import embed, new
from tests.rag.test_ingest import read, split

LINES = 300  # of a manual, one chunk each: more than are kept at a time


def text(number: int, lines: int = LINES) -> bytes:
    """The manual of this number; the first ten lines are the same in all."""
    return "\n".join(f"line {i}" + (f" of manual {number}" if i >= 10 else "") for i in range(lines)).encode()


def start(folder: Path, first: int, last: int, lines: int = LINES) -> subprocess.Popen[bytes]:
    """The process, that is ready."""
    command = [sys.executable, "-m", "tests.rag.ingesting", str(folder), str(first), str(last), str(lines)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert process.stdout and process.stdout.readline() == b"ready\n"
    return process


def main(folder: str, first: str, last: str, lines: str) -> None:
    print("ready", flush=True)
    store = new(Path(folder))
    for number in range(int(first), int(last)):
        done = ingest_one(store, f"manual{number}.txt", text(number, int(lines)), read, split, embed)
        print(done.outcome, done.embedded, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
