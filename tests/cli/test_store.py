"""`edged store`: lists, counts, exports in every format, removes what is meant and nothing else, names damage."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click
import pytest

from edged.cli import main
from edged.cli.store import FORMATS, command
from edged.config import RagConfig
from tests.cli.serving import CHECKOUT
from tests.rag.manuals import new, put
from tests.service.running import Running
from tests.stub_engine import StubEmbedder

Run = Callable[..., str]


@pytest.fixture
def store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs `edged store` on a store with three documents; its output."""
    filled = new(tmp_path)
    put(filled, "/m/pump.pdf", "alpha, with a comma", "beta\nin two lines", product="QV", version="2.10")
    put(filled, "/n/pump.pdf", "\u6e29\u5ea6")
    put(filled, "fan.txt", "gamma", collection="fans")
    filled.close()

    def run(*args: str, status: int = 0) -> str:
        assert main.run(["store", *args, "--store", str(tmp_path / "manuals.db")]) == status
        done = capsys.readouterr()
        return done.err if status else done.out

    return run


def test_every_command_and_option_has_help() -> None:
    for name, sub in command.commands.items():
        assert sub.help and sub.help.rstrip().endswith("."), name
        for option in sub.params:
            if isinstance(option, click.Option):
                assert option.help and option.help.split("  [")[0].endswith("."), f"{name} {option.opts}"
        assert main.run(["store", name, "--help"]) == 0


def parsed(text: str, form: str) -> list[dict[str, object]]:
    """Rows of an output; of csv and tsv all values are text."""
    if form == "nl":
        return [json.loads(line) for line in text.splitlines()]
    if form == "json":
        return list(json.loads(text))
    return list(csv.DictReader(io.StringIO(text), delimiter="," if form == "csv" else "\t"))


@pytest.mark.parametrize("form", ["json", "nl", "csv", "tsv"])
def test_formats_hold_the_same_rows(store: Run, form: str) -> None:
    rows = parsed(store("export", f"--{form}"), form)
    assert [(row["path"], row["text"]) for row in rows] == [
        ("/m/pump.pdf", "alpha, with a comma"), ("/m/pump.pdf", "beta\nin two lines"), ("/n/pump.pdf", "\u6e29\u5ea6"),
        ("fan.txt", "gamma"),
    ]  # fmt: skip
    assert (rows[1]["version"], str(rows[1]["page"]), str(rows[1]["document"])) == ("2.10", "2", "1")
    assert rows[0]["headings"] == (["Manual"] if form in ("json", "nl") else '["Manual"]')
    listed = parsed(store("list", f"--{form}"), form)
    assert [(row["path"], str(row["chunks"]), row["collection"]) for row in listed] == [
        ("/m/pump.pdf", "2", "default"), ("/n/pump.pdf", "1", "default"), ("fan.txt", "1", "fans"),
    ]  # fmt: skip
    (stats,) = parsed(store("stats", f"--{form}"), form)
    counted = ("documents", "contents", "chunks", "pages", "collections", "model")
    assert [str(stats[name]) for name in counted] == ["3", "3", "4", "4", "2", "hash"]


def test_tables_are_the_default_for_people(store: Run) -> None:
    assert store("list") == store("list", "--table")
    assert "2.10" in store("list") and "sha256" not in store("list")
    assert "version" in store("list") and "pages_without_text" not in store("list"), "a column that holds nothing"
    assert "version" not in store("list", "--collection", "fans") and "version" in store("list", "--product", "none")
    assert "documents" in store("stats") and "beta" in store("export", "--table")
    assert store("export") == store("export", "--nl")


@pytest.mark.parametrize("form", [form for form in FORMATS if form != "table"])
def test_an_export_whose_reader_goes_away_ends_quietly(form: str, tmp_path: Path) -> None:
    filled = new(tmp_path)
    for n in range(300):
        put(filled, f"{n}.txt", "alpha " * 100)
    filled.close()
    export = f"{sys.executable} -m edged.cli.main store export --{form} --store {tmp_path}/manuals.db"
    done = subprocess.run(["bash", "-c", f"{export} | head -c 10; exit ${{PIPESTATUS[0]}}"], capture_output=True,
                          text=True, cwd=CHECKOUT)  # fmt: skip
    assert (done.returncode, len(done.stdout)) == (141, 10)
    assert done.stderr == f"store: {tmp_path}/manuals.db\n"


@pytest.mark.parametrize("form", FORMATS)
def test_no_rows_are_no_error(store: Run, form: str) -> None:
    shown = store("export", "--collection", "none", f"--{form}")
    assert parsed(shown, form) == [] if form != "table" else "collection" in shown


def test_filters(store: Run) -> None:
    for given, paths in {
        ("--collection", "fans"): ["fan.txt"], ("--product", "QV"): ["/m/pump.pdf"], ("--version", "2.1"): [],
        ("--document", "pump.pdf"): ["/m/pump.pdf", "/n/pump.pdf"], ("--document", "/n/pump.pdf"): ["/n/pump.pdf"],
    }.items():  # fmt: skip
        assert [row["path"] for row in parsed(store("list", "--json", *given), "json")] == paths


def test_remove_takes_what_is_meant_and_nothing_else(store: Run) -> None:
    assert "1 /m/pump.pdf (default)" in store("remove", "pump.pdf", status=1)
    assert "no document 9" in store("remove", "fan.txt", "9", status=1)
    assert "none that passes" in store("remove", "1", "--collection", "fans", status=1)
    assert "no document passes" in store("remove", "--version", "3", status=1)
    assert "give a filter" in store("remove", status=2)
    assert len(parsed(store("list", "--json"), "json")) == 3
    assert store("remove", "1", "/m/pump.pdf") == "removed document 1: /m/pump.pdf (collection default)\n"
    assert store("remove", "--collection", "fans") == "removed document 3: fan.txt (collection fans)\n"
    assert store("remove", "pump.pdf") == "removed document 2: /n/pump.pdf (collection default)\n"
    assert json.loads(store("list", "--json")) == []
    assert store("check").endswith("is whole: 0 documents, 0 chunks\n")


def test_json_of_check_and_remove(store: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "manuals.db"
    assert json.loads(store("check", "--json")) == {"whole": True, "store": str(path), "documents": 3, "chunks": 4}
    listed = json.loads(store("list", "--json", "--product", "QV"))
    assert store("remove", "1", "--json") == json.dumps({**listed[0], "deleted": True}) + "\n"
    path.write_bytes(bytes(1024) + path.read_bytes()[1024:])
    capsys.readouterr()
    assert main.run(["store", "check", "--json", "--store", str(path)]) == 1
    captured = capsys.readouterr()
    told = json.loads(captured.out)
    assert not told["whole"] and captured.err.startswith(f"error: {told['error']}\n")


def test_an_empty_filter_is_none(store: Run) -> None:
    """A variable of a script that is not set would mean all documents."""
    for name in ("list", "remove", "export"):
        assert "it is empty" in store(name, "--product", "QV", "--collection", "", status=2)


def test_the_daemon_lists_and_removes_what_is_in_its_store(store: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                           capsys: pytest.CaptureFixture[str]) -> None:
    """By the rule of the other commands; what no daemon does tells of its file."""
    own, there = tmp_path / "own.db", tmp_path / "manuals.db"
    copy = there.read_bytes()
    expected = {form: store("list", f"--{form}") for form in FORMATS}
    monkeypatch.setenv("EDGED_RAG_STORE", str(own))
    with Running(embedder=StubEmbedder(), rag=RagConfig(store=str(there))) as daemon:

        def run(*args: str, status: int = 0) -> tuple[str, str]:
            assert main.run(["store", *args, "--socket", daemon.path]) == status
            return tuple(capsys.readouterr())  # type: ignore[return-value]

        for form, rows in expected.items():
            assert run("list", f"--{form}") == (rows, "")
        assert [row["path"] for row in json.loads(run("list", "--json", "--product", "QV")[0])] == ["/m/pump.pdf"]
        assert run("remove", "/n/pump.pdf") == ("removed document 2: /n/pump.pdf (collection default)\n", "")
        assert "no document 2" in run("remove", "2", status=1)[1]
        told = f"this is {own}; the daemon on {daemon.path} keeps its manuals in {there}: --store {there} for these\n"
        for name in ("check", "stats", "export", "migrate"):
            assert run(name, status=1)[1].startswith(f"{told}error: no store of manuals at {own}"), name
        own.write_bytes(copy)
        assert run("check") == (f"{own} is whole: 3 documents, 4 chunks\n", told)
        assert run("export")[1] == f"{told}store: {own}\n"
        monkeypatch.setenv("EDGED_RAG_STORE", str(there))
        assert run("export")[1] == f"store: {there}\n"
    assert run("list", "--json")[1] == f"no daemon answers on {daemon.path}: using {there}\n"


def test_j11_check_names_damage(store: Run, tmp_path: Path) -> None:
    assert store("check").endswith("is whole: 3 documents, 4 chunks\n")
    path = tmp_path / "manuals.db"
    data = bytearray(path.read_bytes())
    data[0:1024] = bytes(1024)
    path.write_bytes(data)
    shown = store("check", status=1)
    assert "manuals.db is damaged" in shown and "hint: restore a copy" in shown
    path.unlink()
    for name in ("check", "list", "stats", "export", "migrate"):
        assert "no store of manuals" in store(name, status=1) and not path.exists()


def test_migrate_says_when_nothing_is_to_be_done(store: Run, tmp_path: Path) -> None:
    assert "has version 2 already" in store("migrate")
    assert [path.name for path in tmp_path.glob("*.bak")] == []


def test_sqlite_utils_reads_a_store(store: Run, tmp_path: Path) -> None:
    """What README.md says about it."""

    def sqlite_utils(*args: str) -> str:
        command = [sys.executable, "-m", "sqlite_utils", args[0], str(tmp_path / "manuals.db"), *args[1:]]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    counts = {row["table"]: row["count"] for row in json.loads(sqlite_utils("tables", "--counts"))}
    assert counts["documents"] == 3 and counts["chunks"] == 4
    rows = json.loads(sqlite_utils("rows", "documents", "-c", "collection", "-c", "path"))
    assert rows[2] == {"collection": "fans", "path": "fan.txt"}
    query = "select chunks.text from chunks join words on words.rowid = chunks.id where words match 'beta'"
    assert json.loads(sqlite_utils("query", query)) == [{"text": "beta\nin two lines"}]
