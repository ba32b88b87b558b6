"""Invariant of `download`: the file is complete and right, or DownloadFailed is raised and nothing wrong is kept."""

from __future__ import annotations

import errno
import hashlib
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from edged.errors import DownloadFailed
from edged.store import download as module
from edged.store.download import Link, download, open_url
from tests.store.fakes import Served, Web, serve

BODY = random.Random(1).randbytes(3 * module.CHUNK + 12345)
SHA256 = hashlib.sha256(BODY).hexdigest()


@pytest.fixture
def web() -> Iterator[Web]:
    with serve() as web:
        yield web


def fetch(web: Web, path: Path, sha256: str = SHA256, name: str = "/f") -> list[float]:
    """Download without waiting; the pauses that would have been made."""
    pauses: list[float] = []
    download(Link(web.url + name, "f", sha256), path, pause=pauses.append)
    return pauses


def test_whole_file_in_one_request(web: Web, tmp_path: Path) -> None:
    web.files["/f"] = Served(BODY)
    seen: list[tuple[str, int, int]] = []
    download(Link(web.url + "/f", "f", SHA256), tmp_path / "f", lambda *a: seen.append(a))
    assert (tmp_path / "f").read_bytes() == BODY
    assert web.requests == [("/f", "", "")]
    assert [done for _, done, _ in seen] == sorted(done for _, done, _ in seen)
    assert seen[-1] == ("f", len(BODY), len(BODY))


def test_cut_connection_is_resumed_where_it_stopped(web: Web, tmp_path: Path) -> None:
    web.files["/f"] = Served(BODY, cuts=[1000, 500_000])
    pauses = fetch(web, tmp_path / "f")
    assert (tmp_path / "f").read_bytes() == BODY
    assert [r[1] for r in web.requests] == ["", "bytes=1000-", "bytes=501000-"]
    assert pauses == [1.0, 2.0]


def test_next_call_resumes_what_a_failed_one_left(web: Web, tmp_path: Path) -> None:
    web.files["/f"] = Served(BODY, cuts=[700] * module.ATTEMPTS)
    with pytest.raises(DownloadFailed, match=f"closed after {700 * module.ATTEMPTS} of {len(BODY)} bytes"):
        fetch(web, tmp_path / "f")
    web.requests.clear()
    fetch(web, tmp_path / "f")
    assert (tmp_path / "f").read_bytes() == BODY
    assert [r[1] for r in web.requests] == [f"bytes={700 * module.ATTEMPTS}-"]


def test_server_without_ranges_starts_over(web: Web, tmp_path: Path) -> None:
    web.files["/f"] = Served(BODY, ranges=False, cuts=[1000])
    fetch(web, tmp_path / "f")
    assert (tmp_path / "f").read_bytes() == BODY


def test_unknown_hash_resumes_only_the_same_file(web: Web, tmp_path: Path) -> None:
    web.files["/f"] = Served(BODY, etag='"1"', cuts=[1000] * module.ATTEMPTS)
    with pytest.raises(DownloadFailed):
        fetch(web, tmp_path / "f", sha256="")
    changed = BODY[::-1]
    web.files["/f"] = Served(changed, etag='"2"')
    fetch(web, tmp_path / "f", sha256="")
    assert (tmp_path / "f").read_bytes() == changed
    assert not (tmp_path / "f.tag").exists()


def test_unknown_hash_without_validator_starts_over(web: Web, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"x" * 100)
    web.files["/f"] = Served(BODY)
    fetch(web, tmp_path / "f", sha256="")
    assert (tmp_path / "f").read_bytes() == BODY


def test_wrong_hash_names_both_and_keeps_nothing(web: Web, tmp_path: Path) -> None:
    web.files["/f"] = Served(BODY)
    with pytest.raises(DownloadFailed, match=f"SHA-256 of f is {SHA256}, expected {'0' * 64}"):
        fetch(web, tmp_path / "f", sha256="0" * 64)
    assert not (tmp_path / "f").exists()
    assert len(web.requests) == 1


@pytest.mark.parametrize("old", [b"x" * 1000, BODY + b"tail"], ids=["other bytes", "too long"])
def test_bad_leftover_is_dropped_and_fetched_again(web: Web, tmp_path: Path, old: bytes) -> None:
    (tmp_path / "f").write_bytes(old)
    web.files["/f"] = Served(BODY)
    fetch(web, tmp_path / "f")
    assert (tmp_path / "f").read_bytes() == BODY


def test_complete_leftover_is_only_checked(web: Web, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(BODY)
    download(Link(web.url + "/f", "f", SHA256, len(BODY)), tmp_path / "f")
    assert web.requests == []


def test_busy_server_is_asked_again_and_missing_file_is_not(web: Web, tmp_path: Path) -> None:
    web.files["/f"] = Served(BODY, statuses=[503, 429])
    assert fetch(web, tmp_path / "f") == [1.0, 2.0]
    web.requests.clear()
    with pytest.raises(DownloadFailed, match="HTTP 404"):
        fetch(web, tmp_path / "g", name="/missing")
    assert len(web.requests) == 1


def test_unreachable_server_says_so(tmp_path: Path) -> None:
    with pytest.raises(DownloadFailed, match="refused"):
        download(Link("http://127.0.0.1:9/f", "f"), tmp_path / "f", pause=lambda s: None)


def test_redirect_is_followed_without_the_password(web: Web, tmp_path: Path) -> None:
    web.files["/f"] = Served(b"", redirect="/real")
    web.files["/real"] = Served(BODY)
    url = web.url.replace("//", "//user:p%40ss@") + "/f"
    download(Link(url, "f", SHA256), tmp_path / "f")
    assert [(r[0], r[2]) for r in web.requests] == [("/f", "Basic dXNlcjpwQHNz"), ("/real", "")]


def test_full_disk_is_named(web: Web, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Full:
        def __init__(self, inner):
            self.inner = inner

        def __enter__(self):
            self.inner.__enter__()
            return self

        def __exit__(self, *args):
            return self.inner.__exit__(*args)

        def __getattr__(self, name):
            return getattr(self.inner, name)

        def write(self, block):
            raise OSError(errno.ENOSPC, "No space left on device")

    path_open = Path.open
    monkeypatch.setattr(Path, "open", lambda self, mode="r", *a: Full(path_open(self, mode, *a)))
    web.files["/f"] = Served(BODY)
    with pytest.raises(DownloadFailed, match="No space left on device") as caught:
        fetch(web, tmp_path / "f")
    assert "EDGED_MODELS" in caught.value.hint
    assert len(web.requests) == 1


def test_file_url(tmp_path: Path) -> None:
    (tmp_path / "source").write_bytes(BODY)
    download(Link((tmp_path / "source").as_uri(), "f", SHA256), tmp_path / "f")
    assert (tmp_path / "f").read_bytes() == BODY
    with open_url(tmp_path.as_uri() + "/source") as response:
        assert response.read() == BODY
