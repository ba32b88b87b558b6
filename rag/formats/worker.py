"""The child that reads one document: `python -m edged.rag.formats.worker MODULE NAME MEMORY SECONDS`.

Bytes of the document on stdin, JSON on stdout: the fields of Document with blocks as [kind, page, section, start, end],
and `sections`, or `error` and `hint`. A section is [the section around it, its heading]; they count from 1, 0 is none.
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import signal
import sys

from edged.errors import BadDocument


def answer(module: str, name: str, data: bytes) -> dict:
    """The document, or why there is none, as what JSON can say."""
    try:
        document = importlib.import_module(f"edged.rag.formats.{module}").read(data, name)
    except BadDocument as error:
        return {"error": error.message, "hint": error.hint}
    except MemoryError:
        return {"error": "reading it takes too much memory", "hint": "split it"}
    sections: list[tuple[int, str]] = []
    numbers: dict[tuple[str, ...], int] = {(): 0}

    def number(headings: tuple[str, ...]) -> int:
        if headings not in numbers:
            sections.append((number(headings[:-1]), headings[-1]))
            numbers[headings] = len(sections)
        return numbers[headings]

    return {
        "title": document.title,
        "text": document.text,
        "blocks": [[b.kind, b.page, number(b.headings), b.start, b.end] for b in document.blocks],
        "sections": sections,
        "pages_without_text": document.pages_without_text,
    }


def main() -> None:
    """Limit this process, then read."""
    module, name, memory, seconds = sys.argv[1:]
    resource.setrlimit(resource.RLIMIT_AS, (int(memory), int(memory)))
    resource.setrlimit(resource.RLIMIT_CPU, (int(seconds), int(seconds) + 1))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.nice(10)  # generation goes first
    # a daemon that is gone wants nothing any more
    parent = os.getppid()
    signal.signal(signal.SIGALRM, lambda number, frame: None if os.getppid() == parent else os._exit(1))
    signal.setitimer(signal.ITIMER_REAL, 1, 1)
    json.dump(answer(module, name, sys.stdin.buffer.read()), sys.stdout)


if __name__ == "__main__":
    main()
