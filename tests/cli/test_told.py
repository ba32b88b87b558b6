"""`edged ingest`: what is sent, and what is told of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from edged.cli import client, manuals
from edged.cli.ingest import AGAIN, shown
from edged.config import RagConfig
from edged.errors import Busy
from tests.cli.keeping import Fake, ingest
from tests.service.running import Running
from tests.stub_engine import StubEmbedder


def test_only_what_changed_is_sent(folder: Path, fake: Fake, capsys: pytest.CaptureFixture[str]) -> None:
    assert ingest(folder) == 0
    assert fake.sent == ["b.md", "a.txt"]
    out = capsys.readouterr().out
    assert "documents: 2 added, 0 unchanged, 0 failed, 0 pruned\n" in out
    assert "\n4 pages, 8 chunks, 6 of them embedded now (the others say what was embedded before); " in out
    assert "; 1 page without text; " in out
    assert f"without text, scanned most likely: {folder}/pumps/a.txt: page 2\n" in out
    fake.sent.clear()
    assert ingest(folder) == 0
    out = capsys.readouterr().out
    assert "documents: 0 added, 2 unchanged, 0 failed, 0 pruned\n4 pages, 8 chunks, 0 of them embedded" in out
    assert not fake.sent
    (folder / "b.md").write_text("# C")
    assert ingest(folder) == 0
    assert fake.sent == ["b.md"]
    assert ingest(folder / "b.md", "--product", "P") == ingest(folder / "b.md", "--product", "P", "--version", "2") == 0
    assert fake.sent == ["b.md"] * 3
    assert ingest(folder / "b.md", "--collection", "other") == 0
    assert fake.sent == ["b.md"] * 4
    assert {of for of, _ in fake.rows} == {"default", "other"}


def test_prune(folder: Path, fake: Fake, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    outside = tmp_path / "manuals2.md"
    outside.write_text("x")
    assert ingest(folder, outside) == ingest(folder, "--collection", "other") == 0
    (folder / "pumps" / "a.txt").unlink()
    outside.unlink()
    assert ingest(folder, "--json") == 0
    report = json.loads(capsys.readouterr().out.splitlines()[-1])["report"]
    assert (report["kept"], report["pruned"]) == ([str(folder / "pumps" / "a.txt")], 0)
    assert ingest(folder / "b.md", "--prune") == 0, "no folder was given"
    assert not fake.removed
    assert ingest(folder, "--prune") == 0
    assert "1 unchanged, 0 failed, 1 pruned" in capsys.readouterr().out
    gone = [(of, Path(path).name) for of, path in fake.rows]
    assert gone == [("default", "b.md"), ("default", "manuals2.md"), ("other", "b.md"), ("other", "a.txt")]


def test_a_refused_file_keeps_no_other_from_its_turn(folder: Path, fake: Fake,
                                                     capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "aa.md").write_text("bad")
    assert ingest(folder, "-q") == 3
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == f"refused: {folder}/aa.md: protected by a password\n"
    assert ingest(folder) == 3
    assert f"refused: {folder}/aa.md: protected by a password" in capsys.readouterr().out


@pytest.mark.parametrize(("text", "status", "said", "begun"), [
    ("full", 1, "error: no room on the disk\n", "documents"),
    ("gone", 1, f"the answer\nhint: start the daemon again if it has ended, and {AGAIN}\n", "documents"),
    ("stop", 130, "", f"interrupted: {AGAIN}\ndocuments"),
])  # fmt: skip
def test_what_is_complete_stays_and_is_told(text: str, status: int, said: str, begun: str, folder: Path, fake: Fake,
                                            capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "c.md").write_text(text)
    assert ingest(folder) == status
    captured = capsys.readouterr()
    assert captured.out.startswith(f"{begun}: 1 added, 0 unchanged")
    assert captured.err.strip().endswith(said.strip())
    assert fake.sent == ["b.md", "c.md"]


def test_names_are_shown_without_what_steers_a_terminal() -> None:
    assert shown("/m/Zähler.pdf") == "/m/Zähler.pdf"
    assert shown("/m/a\x1b[2J\n.pdf") == "/m/a\\x1b[2J\\n.pdf"
    assert shown("/m/\udcff.pdf") == "/m/\\udcff.pdf"


def test_what_the_daemon_refuses_is_named_or_ends_it(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "long.txt").write_bytes(bytes(1 << 20))
    with Running(embedder=StubEmbedder(), rag=RagConfig(max_document=100)) as daemon:
        assert ingest(folder / "long.txt", folder / "nosuch.md", "--socket", daemon.path, "-q") == 3
    named = capsys.readouterr().err.splitlines()
    assert named[0].startswith(f"refused: {folder}/nosuch.md: ")
    assert named[1] == f"refused: {folder}/long.txt: the request body is larger than 100 bytes (rag.max_document)"
    with Running() as daemon:
        assert ingest(folder, "--socket", daemon.path) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "error: this daemon has no embedding model (set embedding.model)\n"


def test_a_daemon_that_is_busy_is_asked_again(folder: Path, monkeypatch: pytest.MonkeyPatch,
                                              capsys: pytest.CaptureFixture[str]) -> None:
    """After as many seconds as it says; nothing is refused for want of patience."""
    pauses, events = [], client.events

    def busy(*args: Any) -> Iterator[Any]:
        if len(pauses) < 2:
            raise Busy("documents are on their way into the store", retry_after=5)
        return events(*args)

    monkeypatch.setattr(client, "events", busy)
    monkeypatch.setattr("edged.cli.manuals.time.sleep", pauses.append)
    (folder / "only.txt").write_text("The fuse has 2 A.")
    with Running(embedder=StubEmbedder(n_ctx=512)) as daemon:
        assert ingest(folder / "only.txt", "--socket", daemon.path) == 0
    assert pauses == [5, 5] and "documents: 1 added" in capsys.readouterr().out


def test_a_document_that_is_refused_now_is_said_to_stay(folder: Path, fake: Fake, tmp_path: Path,
                                                        capsys: pytest.CaptureFixture[str]) -> None:
    """Empty, damaged, of another kind, gone: questions are still answered from what was read of it before."""
    for name in ("c.md", "d.md"):
        (folder / name).write_text("x")
    (folder / "link.md").symlink_to(tmp_path / "l.md")
    (tmp_path / "l.md").write_text("x")
    assert ingest(folder) == 0
    (folder / "b.md").write_text("")
    (folder / "c.md").write_text("bad")
    (folder / "new.md").write_text("bad")
    for gone in (folder / "d.md", tmp_path / "l.md"):
        gone.unlink()
    capsys.readouterr()
    assert ingest(folder, folder / "d.md") == 3
    stays = "; what was read of it before stays in the store (edged store remove)\n"
    out = capsys.readouterr().out
    assert f"refused: {folder}/b.md: the file is empty{stays}" in out
    assert f"refused: {folder}/c.md: protected by a password{stays}" in out
    assert f"refused: {folder}/d.md: No such file or directory{stays}" in out
    assert f"refused: {folder}/link.md: a link to {tmp_path}/l.md: No such file or directory{stays}" in out
    assert f"refused: {folder}/new.md: protected by a password\n" in out


def test_only_what_there_is_to_tell_is_told(tmp_path: Path, fake: Fake, monkeypatch: pytest.MonkeyPatch,
                                            capsys: pytest.CaptureFixture[str]) -> None:
    paged, plain = {"pages": 1, "chunks": 1, "embedded": 1}, {"pages": None, "chunks": 1, "embedded": 1}
    for of, told in ((paged, "1 page, 1 chunk, 1 of them"), (plain, "\n1 chunk, 1 of them")):
        done = {**manuals.failed("a.txt", ""), "outcome": "added", **of}
        monkeypatch.setattr(fake, "ingest", lambda *_, done=done: done)
        (tmp_path / "a.txt").write_text("x")
        assert ingest(tmp_path) == 0
        out = capsys.readouterr().out
        assert f"{told} embedded now; " in out and "without text" not in out and "others" not in out
    assert ingest(tmp_path / "no") == 1
    assert capsys.readouterr().out == f"refused: {tmp_path}/no: No such file or directory\n"
