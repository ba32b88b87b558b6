"""Fetch one file by URL, going on where an earlier try stopped.

`download` leaves a complete, checked file or raises DownloadFailed. Bytes that did arrive stay in the file given, with
the server's validator beside it as `<file>.tag`, and the next call asks only for the rest.
"""

from __future__ import annotations

import base64
import contextlib
import errno
import hashlib
import http.client
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote_to_bytes, urlsplit, urlunsplit

from edged.errors import DownloadFailed

ATTEMPTS = 5
CHUNK = 1 << 20
TIMEOUT = 30.0  # seconds without a byte

Progress = Callable[[str, int, int], None]  # what, bytes done, bytes in all (0: unknown)
Opener = Callable[..., Any]  # open_url, or one bound to a certificate file


@dataclass(frozen=True)
class Link:
    """A file on a server. size 0 and sha256 "": not known."""

    url: str
    filename: str
    sha256: str = ""
    size: int = 0


class _Retry(Exception):
    """The connection failed in a way that may pass."""


def open_url(url: str, headers: dict[str, str] | None = None, *, cafile: str = "") -> Any:
    """The response to a GET. Name and password in the URL become an Authorization header, never sent on a redirect."""
    parts = urlsplit(url)
    if parts.scheme == "file" and parts.path.endswith("/"):
        url += "index.html"  # a package index on disk
    user, at, host = parts.netloc.rpartition("@")
    if at:
        url = urlunsplit(parts._replace(netloc=host))
    request = urllib.request.Request(url, headers={"User-Agent": "edged", **(headers or {})})
    if at:
        request.add_unredirected_header("Authorization", "Basic " + base64.b64encode(unquote_to_bytes(user)).decode())
    handlers = []
    if cafile:
        import ssl

        handlers.append(urllib.request.HTTPSHandler(context=ssl.create_default_context(cafile=cafile)))
    return urllib.request.build_opener(*handlers).open(request, timeout=TIMEOUT)


def download(link: Link, path: Path, progress: Progress | None = None, *, opener: Opener = open_url,
             pause: Callable[[float], None] = time.sleep) -> None:
    """Bring `link` to `path`, resuming what is there. Raises DownloadFailed."""
    for attempt in range(ATTEMPTS):
        resumed = path.exists() and path.stat().st_size > 0
        try:
            _transfer(link, path, progress, opener)
        except _Retry as e:
            if attempt == ATTEMPTS - 1:
                raise DownloadFailed(f"{link.url}: {e}",
                                     hint="run the same command again to go on from here") from e
            pause(2.0**attempt)
            continue
        try:
            check(path, sha256=link.sha256, size=link.size, what=link.filename)
        except DownloadFailed:
            path.unlink()
            if not resumed:  # else the old part may be at fault: once more from the start
                raise
            continue
        _tag(path).unlink(missing_ok=True)
        return
    raise DownloadFailed(f"{link.url}: the file changes while it is fetched")


def _tag(path: Path) -> Path:
    return path.with_name(path.name + ".tag")


def _transfer(link: Link, path: Path, progress: Progress | None, opener: Opener) -> None:
    """One request: append the bytes that are missing. Raises _Retry or DownloadFailed."""
    tag = _tag(path).read_text() if _tag(path).exists() else ""
    have = path.stat().st_size if path.exists() and (tag or link.sha256) else 0
    if link.size and have == link.size:
        return
    headers = {}
    if have:
        headers["Range"] = f"bytes={have}-"
        if tag:
            headers["If-Range"] = tag
    try:
        response = opener(link.url, headers)
    except urllib.error.HTTPError as e:
        if e.code == 416:  # nothing after what we have; the check decides
            return
        if e.code in (408, 429) or e.code >= 500:
            raise _Retry(f"HTTP {e.code} {e.reason}") from e
        raise DownloadFailed(f"{link.url}: HTTP {e.code} {e.reason}") from e
    except (OSError, http.client.HTTPException) as e:
        raise _Retry(str(getattr(e, "reason", e)) or type(e).__name__) from e
    with response:
        if getattr(response, "status", None) != 206:
            have = 0
        _remember(response, path)
        length = int(response.headers.get("Content-Length") or 0)
        total = have + length if length else link.size
        got = _append(response, path, have, total, link, progress)
        if total and got < total:
            raise _Retry(f"connection closed after {got} of {total} bytes")


def _remember(response: Any, path: Path) -> None:
    """Keep the strong validator of what is being fetched: a resumed request asks for the same file or all of it."""
    tag = response.headers.get("ETag") or response.headers.get("Last-Modified") or ""
    with writing(path):
        if tag and not tag.startswith("W/"):
            _tag(path).write_text(tag)
        else:
            _tag(path).unlink(missing_ok=True)


def _append(response: Any, path: Path, have: int, total: int, link: Link, progress: Progress | None) -> int:
    """Copy the response to `path` from byte `have` on; the number of bytes the file then has."""
    with writing(path), path.open("r+b" if path.exists() else "wb") as out:
        out.truncate(have)
        out.seek(have)
        while True:
            try:
                block = response.read(CHUNK)
            except (OSError, http.client.HTTPException) as e:
                raise _Retry(str(e) or type(e).__name__) from e
            if not block:
                return have
            out.write(block)
            have += len(block)
            if progress is not None:
                progress(link.filename, have, total)


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an OSError inside into DownloadFailed that says what cannot be written and why."""
    try:
        yield
    except OSError as e:
        hint = "free some space or set EDGED_MODELS" if e.errno in (errno.ENOSPC, errno.EDQUOT) else ""
        raise DownloadFailed(f"cannot write {path}: {e.strerror or e}", hint=hint) from e


def sha256_of(path: Path, progress: Progress | None = None) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    digest = hashlib.sha256()
    done, total = 0, path.stat().st_size
    with path.open("rb") as f:
        while block := f.read(CHUNK):
            digest.update(block)
            done += len(block)
            if progress is not None:
                progress(f"checking {path.name}", done, total)
    return digest.hexdigest()


def check(path: Path, *, sha256: str = "", size: int = 0, what: str = "", progress: Progress | None = None) -> None:
    """Raises DownloadFailed if the file has another size or SHA-256 than expected ("" and 0: not checked)."""
    what = what or path.name
    actual = path.stat().st_size
    if size and actual != size:
        raise DownloadFailed(f"{what} has {actual} bytes, expected {size}")
    if sha256:
        found = sha256_of(path, progress)
        if found != sha256.lower():
            raise DownloadFailed(f"SHA-256 of {what} is {found}, expected {sha256.lower()}",
                                 hint="the source serves another file, or something on the way changes it")
