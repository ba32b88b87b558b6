"""`edged ingest`: which files are meant, what is sent, what is told; without a model, then with one."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from fpdf import FPDF

from edged.cli import files, main
from edged.cli.ingest import AGAIN
from edged.errors import NotFound
from edged.rag.store import Store
from tests.cli.keeping import Fake, ingest, told
from tests.cli.serving import CHECKOUT, EDGED, PATIENCE, serving
from tests.rag.pdfs import lines, pdf

# -- which files are meant ---------------------------------------------------------------------------------------------


def names(*paths: str | Path) -> list[str]:
    return [path.name for path in files.find(map(str, paths)).files]


def test_folders_patterns_and_files(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert names(folder) == ["b.md", "a.txt"]
    assert names(folder / "*.md") == ["b.md"]
    assert names(folder / "**" / "*.txt") == ["a.txt"]
    assert names(folder / "p*") == ["a.txt"]
    assert names(folder / ".hidden.md") == [".hidden.md"], "it is named"
    assert names(folder / "pumps", folder) == ["a.txt", "b.md"], "each once"
    (folder / "[1].md").write_text("x")
    assert names(folder / "[1].md") == ["[1].md"], "a file of this name goes before the pattern"
    monkeypatch.chdir(folder)
    found = files.find(["."])
    assert found.files[0] == folder / "[1].md" and found.folders == [folder]
    assert not found.refused


def test_links_are_followed_once(folder: Path) -> None:
    (folder / "pumps" / "up").symlink_to(folder)
    (folder / "again").symlink_to(folder / "pumps")
    (folder / "same.md").symlink_to(folder / "b.md")
    assert sorted(names(folder)) == ["a.txt", "b.md"]


def test_what_cannot_be_read_is_named(folder: Path, fake: Fake, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "dangling.md").symlink_to("nothing")
    (folder / "loop.md").symlink_to("loop.md")
    (folder / "empty.md").touch()
    (folder / "photo.PNG").write_bytes(b"\x89PNG")
    os.mkfifo(folder / "pipe.md")
    with open(folder / "long.md", "wb") as file:
        file.truncate((16 << 20) + 1)
    with open(os.fsencode(folder) + b"/\xff.md", "wb") as file:
        file.write(b"x")
    (folder / "two\nlines.md").write_text("x")
    assert ingest(folder, "nosuch*", folder / "nosuch.md", "--json") == 3
    rows, report = told(capsys)
    errors = {Path(row["path"]).name: row["error"] for row in report["refused"]}
    assert errors == {
        "dangling.md": "a link to nothing: No such file or directory",
        "loop.md": "a link to loop.md: Too many levels of symbolic links",
        "empty.md": "the file is empty",
        "photo.PNG": errors["photo.PNG"],
        "pipe.md": "not a regular file",
        "long.md": "larger than 16 MiB (split it)",
        "\udcff.md": "its name is not UTF-8 (rename it)",
        "two\nlines.md": "its name holds U+000A (rename it)",
        "nosuch*": "matches nothing",
        "nosuch.md": "No such file or directory",
    }
    assert errors["photo.PNG"].startswith("no reader for files of this name (edged reads .md")
    assert sorted(fake.sent) == ["a.txt", "b.md"]
    assert [row["outcome"] for row in rows].count("failed") == report["failed"] == 10


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_folder_that_may_not_be_read_is_named(folder: Path, fake: Fake, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "pumps").chmod(0)
    (folder / "b.md").chmod(0)
    try:
        assert ingest(folder, "--json") == 3
    finally:
        (folder / "pumps").chmod(0o755)
    _, report = told(capsys)
    assert {row["path"]: row["error"] for row in report["refused"]} == dict.fromkeys(
        (str(folder / "pumps"), str(folder / "b.md")), "Permission denied"
    )


def test_nothing_at_all_is_an_error_and_forgets_nothing(folder: Path, fake: Fake, tmp_path: Path,
                                                        capsys: pytest.CaptureFixture[str]) -> None:
    assert ingest(folder) == 0
    for path in fake.documents({}):
        Path(path["path"]).unlink()
    assert ingest(folder, "--prune") == 1, "a disk that is not mounted is an empty folder"
    assert ingest(tmp_path / "nosuch") == 1
    captured = capsys.readouterr()
    assert captured.err.count("error: nothing to ingest") == 2
    assert f"refused: {tmp_path}/nosuch: No such file or directory" in captured.out
    assert "documents: 0" not in captured.out, "no report of zeros"
    assert len(fake.rows) == 2
    assert main.run(["ingest"]) == 2


def test_an_empty_folder_is_named_and_forgets_nothing(folder: Path, fake: Fake, tmp_path: Path,
                                                      capsys: pytest.CaptureFixture[str]) -> None:
    """Its disk is not mounted, most likely; the folder beside it and the one above it are looked at all the same."""
    usb = folder / "usb"
    usb.mkdir()
    for gone in (usb / "u.md", folder / "v.md"):
        gone.write_text("x")
    assert ingest(folder) == 0
    for gone in (usb / "u.md", folder / "v.md"):
        gone.unlink()
    capsys.readouterr()
    assert ingest(usb, folder, "--prune", "--json") == 3
    _, report = told(capsys)
    assert report["refused"] == [{"path": str(usb), "error": "no files in it"}]
    assert (report["unchanged"], report["pruned"], report["kept"]) == (2, 1, [])
    assert sorted(Path(path).name for _, path in fake.rows) == ["a.txt", "b.md", "u.md"]
    assert ingest(usb, folder / "pumps", "--prune", "-q") == 3
    assert capsys.readouterr().err == f"refused: {usb}: no files in it\n"
    assert len(fake.rows) == 3


@pytest.mark.parametrize("name", ["", " "])
def test_an_empty_name_is_no_collection(name: str, folder: Path, fake: Fake,
                                        capsys: pytest.CaptureFixture[str]) -> None:
    """It would mean all of them, and --prune would forget what lies in others."""
    assert ingest(folder, "--collection", "pumps") == 0
    (folder / "b.md").unlink()
    assert ingest(folder, "--collection", name, "--prune") == 2
    assert "'--collection': it is empty" in capsys.readouterr().err
    assert not fake.removed and len(fake.sent) == 2


@pytest.mark.parametrize("row", [None, "known"])
def test_nothing_waits_for_what_is_no_file(row: str | None, folder: Path, fake: Fake, monkeypatch: pytest.MonkeyPatch,
                                           capsys: pytest.CaptureFixture[str]) -> None:
    """FIFOs, sockets and devices, even one that takes a file's place after the look at it."""
    if row:
        assert ingest(folder) == 0
    check = files.check

    def swapped(path: Path) -> int:
        size = check(path)
        if path.name == "b.md":
            path.unlink()
            os.mkfifo(path)
        return size

    monkeypatch.setattr(files, "check", swapped)
    (folder / "zero.md").symlink_to("/dev/zero")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(folder / "s.md"))
        capsys.readouterr()
        assert ingest(folder, folder / "pumps", "--json") == 3
    _, report = told(capsys)
    errors = [refused["error"] for refused in report["refused"]]
    assert [error.partition(";")[0] for error in errors] == ["not a regular file"] * 3


# -- with the model, by this process and by the daemon -----------------------------------------------------------------

TABLES = ("documents", "contents", "chunks", "vectors", "blocks", "pending", "meta")


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    """A folder as it comes from a machine builder."""
    folder = tmp_path / "mixed"
    folder.mkdir()
    rows = ["1 Mounting", "Tighten the clamps with 0.4 Nm.", "The panel cutout has 92 x 92 mm."]
    scanned = b"q 600 0 0 800 0 0 cm BI /W 1 /H 1 /BPC 8 /CS /G ID \x80 EI Q"
    (folder / "a.pdf").write_bytes(pdf([lines(50, 700, *rows), scanned, lines(50, 700, "The relay lasts long.")]))
    (folder / "b.html").write_text("<title>Pump</title><h1>Bleeding</h1><p>Open the bleed screw by one turn.</p>")
    (folder / "c.md").write_text("# Clock\n\nIt needs a battery CR2032.\n\n| Code | Means |\n|-|-|\n| E-1 | cold |\n")
    (folder / "d.txt").write_text("Wipe the display with a moist cloth.\n")
    secret = FPDF()
    secret.set_encryption("owner", "user")
    secret.add_page()
    (folder / "encrypted.pdf").write_bytes(bytes(secret.output()))
    (folder / "broken.pdf").write_bytes(b"%PDF-1.7\nnothing more")
    (folder / "photo.png").write_bytes(b"\x89PNG\r\n")
    (folder / "empty.md").touch()
    return folder


def rows_of(store: Path) -> dict[str, list[tuple[Any, ...]]]:
    """All rows of a store, which must be whole."""
    with closing(Store(store)) as opened:
        opened.check()
        found = {table: opened._db.rows(f"SELECT * FROM {table} ORDER BY 1, 2") for table in TABLES}
        return {**found, "words": opened._db.rows("SELECT rowid, text FROM words ORDER BY 1")}


def test_good_files_are_in_and_bad_ones_are_named_with_the_daemon_and_without(
    mixed: Path, tmp_path: Path, minilm_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, here, there = ("--embedding-model", str(minilm_path)), tmp_path / "here.db", tmp_path / "there.db"
    about = ("--product", "QV", "--collection", "pumps", "--json")
    assert ingest(mixed, "--store", here, *model, *about) == 3
    by_itself, report = told(capsys)
    outcomes = {Path(row["path"]).name: row["outcome"] for row in by_itself}
    assert outcomes == dict.fromkeys(("a.pdf", "b.html", "c.md", "d.txt"), "added") | dict.fromkeys(
        ("encrypted.pdf", "broken.pdf", "photo.png", "empty.md"), "failed"
    )
    refused = {Path(row["path"]).name: row["error"] for row in report["refused"]}
    assert "encrypted with a password" in refused["encrypted.pdf"]
    assert refused["broken.pdf"].startswith("damaged")
    assert "no reader" in refused["photo.png"]
    assert "empty" in refused["empty.md"]
    assert (report["pages"], report["pages_without_text"], report["embedded"]) == (3, 1, report["chunks"])

    with serving(tmp_path, *model, "--store", str(there)) as socket:
        assert ingest(mixed, "--socket", socket, *about) == 3
        by_daemon, told_by_daemon = told(capsys)
        assert by_daemon == by_itself
        assert told_by_daemon == {**report, "store": str(there), "seconds": told_by_daemon["seconds"]}
        assert rows_of(there) == rows_of(here)
        for bad in ("encrypted.pdf", "broken.pdf", "photo.png", "empty.md"):
            (mixed / bad).unlink()
        monkeypatch.setattr("edged.cli.client.events", None)  # nothing is sent
        assert ingest(mixed, "--socket", socket, *about) == 0
        _, again = told(capsys)
        assert (again["unchanged"], again["embedded"], again["chunks"]) == (4, 0, report["chunks"])
        (mixed / "d.txt").unlink()
        assert ingest(mixed, "--socket", socket, *about, "--prune") == 0
        assert told(capsys)[1]["pruned"] == 1

    monkeypatch.setattr("edged.service.loader.load_embedder", None)  # the model is not even loaded
    assert ingest(mixed, "--store", here, *about, "--prune") == 0
    assert told(capsys)[1]["unchanged"] == 3
    assert rows_of(there) == rows_of(here)


def test_ctrl_c_leaves_what_is_complete(tmp_path: Path, minilm_path: Path) -> None:
    (tmp_path / "a.md").write_text("# A\n\nThe first is short.\n")
    (tmp_path / "b.md").write_text("\n\n".join(f"Valve {i} opens at {i % 97} bar." for i in range(30_000)))
    store = tmp_path / "m.db"
    command = [*EDGED, "ingest", "--store", store, "--embedding-model", minilm_path, *sorted(tmp_path.glob("*.md"))]
    ingesting = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                 env={**os.environ, "PYTHONPATH": CHECKOUT})  # fmt: skip
    deadline = time.monotonic() + PATIENCE
    while not _documents(store):
        assert time.monotonic() < deadline and ingesting.poll() is None
        time.sleep(0.02)
    ingesting.send_signal(signal.SIGINT)
    out, err = ingesting.communicate(timeout=PATIENCE)
    assert (ingesting.returncode, err.strip()) == (130, "")
    assert out.startswith(f"interrupted: {AGAIN}\ndocuments: 1 added, 0 unchanged, 0 failed")
    assert [row[2] for row in rows_of(store)["documents"]] == [str(tmp_path / "a.md")]


def _documents(store: Path) -> int:
    try:
        with closing(Store(store)) as opened:
            return len(opened.documents())
    except NotFound:
        return 0
