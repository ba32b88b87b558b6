"""The documents that the PATHs of a command mean: files, what lies in folders, what patterns match.

Hidden files and folders are passed over unless they are named themselves; a folder is walked once however often links
lead to it. What cannot be read is listed with the reason, nothing is raised.
"""

from __future__ import annotations

import errno
import glob
import os
import stat
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from edged.errors import BadDocument
from edged.rag.formats import format_of


@dataclass
class Found:
    """Absolute paths, in order, each once, with no links but those that lead nowhere. folders: those that hold a file;
    empty: those that hold none, such as one whose disk is not mounted, each of them refused. refused: (path, why)."""

    files: list[Path] = field(default_factory=list)
    folders: list[Path] = field(default_factory=list)
    empty: list[Path] = field(default_factory=list)
    refused: list[tuple[str, str]] = field(default_factory=list)


def find(paths: Iterable[str]) -> Found:
    """What the paths mean: folders and the files in them, sorted; a pattern that the shell has not expanded is here."""
    found, seen = Found(), set[Path]()
    for path in paths:
        matches = [path] if os.path.lexists(path) else sorted(glob.glob(path, recursive=True))
        if not matches:
            found.refused.append((path, "matches nothing" if glob.has_magic(path) else os.strerror(errno.ENOENT)))
        for match in matches:
            for file in _within(match, found) if os.path.isdir(match) else [match]:
                real = Path(os.path.realpath(file))
                if not os.path.exists(real):  # a link to nothing is named itself
                    real = Path(os.path.realpath(os.path.dirname(file)), os.path.basename(file))
                if real not in seen:
                    seen.add(real)
                    found.files.append(real)
    return found


def _within(folder: str, found: Found) -> list[str]:
    """The files in a folder and its folders, sorted."""
    real, before = Path(os.path.realpath(folder)), len(found.refused)
    files = sorted(_below(folder, found))
    (found.folders if files else found.empty).append(real)
    if not files and len(found.refused) == before:
        found.refused.append((str(real), "no files in it"))
    return files


def _below(folder: str, found: Found) -> Iterator[str]:
    """The files in a folder and its folders."""

    def refuse(error: OSError) -> None:
        found.refused.append((os.path.realpath(error.filename), error.strerror or str(error)))

    walked = set()
    for at, folders, files in os.walk(folder, followlinks=True, onerror=refuse):
        real = os.path.realpath(at)
        if real in walked:
            folders.clear()
            continue
        walked.add(real)
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (os.path.join(at, name) for name in files if not name.startswith("."))


def check(path: Path) -> int:
    """The size of a file that a reader will take. Raises BadDocument or OSError, without opening it."""
    for character in str(path):
        if unicodedata.category(character) in ("Cc", "Cs"):
            what = "is not UTF-8" if character >= "\ud800" else f"holds U+{ord(character):04X}"
            raise BadDocument(f"its name {what}", hint="rename it")
    about = path.stat()
    _regular(path, about)
    row = format_of(path.name)
    if about.st_size == 0:
        raise BadDocument("the file is empty")
    if about.st_size > row.max_bytes:
        raise BadDocument(f"larger than {row.max_bytes >> 20} MiB", hint="split it")
    return about.st_size


def read(path: Path) -> bytes:
    """What a file holds. Raises BadDocument or OSError, and waits for nothing if it has become a FIFO since `check`."""
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
        _regular(path, os.fstat(file.fileno()))
        return file.read()


def _regular(path: Path, about: os.stat_result) -> None:
    if not stat.S_ISREG(about.st_mode):
        raise BadDocument("not a regular file")


def under(path: str, folders: Iterable[Path]) -> bool:
    """Whether a path lies in one of the folders, at any depth."""
    parents = Path(path).parents
    return any(folder in parents for folder in folders)


def gone(path: str) -> bool:
    """Whether there is no such file any more; one that merely cannot be seen is not gone."""
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        pass
    return False
