"""Opening, migrating and checking: what is no store is named and left as it is, what is old is brought along."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest

from edged.errors import BadRequest, BadStore, Busy, DiskFull, NotFound, OtherStore
from edged.rag import database, schema
from edged.rag.store import Content, Filter, Store
from tests.rag.manuals import BINDING, embed, manual, new, put, remove

# the tables as version 1 made them
VERSION_1 = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE contents (id INTEGER PRIMARY KEY, sha256 TEXT UNIQUE NOT NULL, title TEXT NOT NULL, text TEXT NOT NULL);
CREATE TABLE documents (
    id INTEGER PRIMARY KEY, path TEXT UNIQUE NOT NULL, content INTEGER NOT NULL REFERENCES contents,
    product TEXT NOT NULL, version TEXT NOT NULL);
CREATE INDEX documents_content ON documents (content);
CREATE TABLE chunks (
    id INTEGER PRIMARY KEY, content INTEGER NOT NULL REFERENCES contents, key TEXT NOT NULL, text TEXT NOT NULL,
    start INTEGER NOT NULL, end INTEGER NOT NULL, page INTEGER, page_end INTEGER, headings TEXT NOT NULL);
CREATE INDEX chunks_content ON chunks (content);
CREATE INDEX chunks_key ON chunks (key);
CREATE TABLE vectors (chunk INTEGER PRIMARY KEY REFERENCES chunks, data BLOB NOT NULL);
CREATE TABLE blocks (
    id INTEGER PRIMARY KEY, content INTEGER NOT NULL REFERENCES contents, first INTEGER NOT NULL, n INTEGER NOT NULL,
    error REAL NOT NULL, codes BLOB NOT NULL);
CREATE INDEX blocks_content ON blocks (content);
CREATE VIRTUAL TABLE words USING fts5(text, tokenize = "unicode61 remove_diacritics 2 tokenchars '+#'");
PRAGMA user_version = 1;
"""
COPIED = {
    "meta": "key, value", "contents": "id, sha256, title, text", "documents": "id, path, content, product, version",
    "chunks": "*", "vectors": "*", "blocks": "*",
}  # fmt: skip


def fill(store: Store) -> None:
    put(store, "/m/pump.pdf", "alpha one", "beta two", product="QV", version="2")
    put(store, "fan.txt", "gamma three")
    put(store, "copy.txt", "gamma three")


def version_1(folder: Path) -> Path:
    """A store as version 1 left it, with the manuals of `fill`."""
    (folder / "now").mkdir(parents=True)
    with closing(new(folder / "now")) as store:
        fill(store)
    path = folder / "manuals.db"
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA page_size = 65536")
        db.execute("PRAGMA journal_mode = WAL")
        db.executescript(VERSION_1)
        db.execute("ATTACH ? AS now", [str(folder / "now" / "manuals.db")])
        for table, columns in COPIED.items():
            where = "WHERE key NOT IN ('model', 'pooling')" if table == "meta" else ""
            db.execute(f"INSERT INTO main.{table} SELECT {columns} FROM now.{table} {where}")
        db.execute("INSERT INTO main.words (rowid, text) SELECT rowid, text FROM now.words")
        db.commit()
    return path


def state(path: Path) -> dict[str, list[tuple[object, ...]]]:
    """All tables, and how they were made."""
    with closing(sqlite3.connect(path)) as db:
        made = db.execute("SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY name").fetchall()
        tables = [row[1] for row in made if row[0] == "table"]
        return {"made": made, **{table: db.execute(f"SELECT * FROM {table}").fetchall() for table in tables}}


def test_version_1_becomes_what_a_new_store_is(tmp_path: Path) -> None:
    path = version_1(tmp_path)
    before = state(path)
    with pytest.raises(OtherStore, match="version 1") as caught:
        Store(path)
    assert caught.value.hint == "edged store migrate"
    assert state(path) == before
    copy = tmp_path / "manuals.db.v1.bak"
    assert schema.migrate(path) == (1, copy)
    assert state(copy) == before
    after, wanted = state(path), state(tmp_path / "now" / "manuals.db")
    assert {**after, "meta": ()} == {**wanted, "meta": ()} | {name: after[name] for name in after if "words_" in name}
    with closing(Store(path)) as store:
        store.check()
        assert [(row.collection, row.path, row.pages) for row in store.documents()] == [
            ("default", "/m/pump.pdf", 2), ("default", "copy.txt", 1), ("default", "fan.txt", 1),
        ]  # fmt: skip
        assert store.matching([["beta"]], 5) == [2] and store.nearest(embed(["beta two"])[0], 1)[0][0] == 2
        with pytest.raises(OtherStore):
            store.bind(BINDING._replace(fingerprint="other"))
        store.bind(BINDING)
        assert store.binding() == BINDING
        put(store, "new.txt", "delta")
        store.check()
    assert schema.migrate(path) == (2, None)
    with pytest.raises(NotFound):
        schema.migrate(tmp_path / "missing.db")


def test_a_migration_killed_half_way_leaves_the_old_version(tmp_path: Path) -> None:
    path = version_1(tmp_path)
    before = state(path)
    for after in ("documents_2", "pending", "user_version"):
        child = subprocess.run([sys.executable, "-c", KILLED, str(path), after])
        assert child.returncode == -signal.SIGKILL, after
        assert state(path) == before, after
    schema.migrate(path)
    with closing(Store(path)) as store:
        store.check()
        assert store.stats()["documents"] == 3


KILLED = """
import os, signal, sys
from pathlib import Path
import sqlite_utils
from edged.rag import schema
execute = sqlite_utils.Database.execute
def killed(self, sql, *args, **more):
    done = execute(self, sql, *args, **more)
    if sys.argv[2] in sql:
        os.kill(os.getpid(), signal.SIGKILL)
    return done
sqlite_utils.Database.execute = killed
schema.migrate(Path(sys.argv[1]))
"""


def test_two_migrations_at_once_are_one(tmp_path: Path) -> None:
    path = version_1(tmp_path)
    before = state(path)
    done: list[tuple[int, Path | None]] = []
    threads = [threading.Thread(target=lambda: done.append(schema.migrate(path))) for _ in range(3)]
    with closing(sqlite3.connect(path, isolation_level=None)) as writer:
        writer.execute("BEGIN IMMEDIATE")
        for thread in threads:
            thread.start()
        time.sleep(0.3)  # all have seen version 1, and wait
        writer.execute("ROLLBACK")
    for thread in threads:
        thread.join()
    copy = tmp_path / "manuals.db.v1.bak"
    assert sorted(done, key=str) == [(1, copy), (2, None), (2, None)] and state(copy) == before
    with closing(Store(path)) as store:
        store.check()


def test_a_copy_takes_no_others_place(tmp_path: Path) -> None:
    path = version_1(tmp_path)
    before = state(path)
    for name in ("manuals.db.v1.bak", "manuals.db.v1.1.bak"):
        (tmp_path / name).write_bytes(b"mine")
    copy = tmp_path / "manuals.db.v1.2.bak"
    assert schema.migrate(path) == (1, copy) and state(copy) == before
    assert (tmp_path / "manuals.db.v1.bak").read_bytes() == b"mine"


def test_no_room_for_the_copy_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = version_1(tmp_path)
    before = state(path)
    monkeypatch.setattr(schema.os, "fsync", lambda fd: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(BadStore, match=r"v1\.bak: No space"):
        schema.migrate(path)
    assert state(path) == before and not [*tmp_path.glob("*.bak*")]


def other_program(path: Path) -> None:
    with closing(sqlite3.connect(path)) as db:
        db.executescript("CREATE TABLE meta (key); CREATE TABLE songs (title); PRAGMA user_version = 1")


def newer(path: Path) -> None:
    new(path.parent).close()
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA user_version = 99")


def cut_short(path: Path) -> None:
    with closing(new(path.parent)) as store:
        fill(store)
    os.truncate(path, path.stat().st_size // 2)


def header_lost(path: Path) -> None:
    new(path.parent).close()
    data = path.read_bytes()
    path.write_bytes(bytes(100) + data[100:])


@pytest.mark.parametrize(("make", "error", "said", "remedy"), [
    (lambda path: path.write_bytes(b"not a database" * 1000), BadStore, "is damaged or no store", "restore a copy"),
    (header_lost, BadStore, "is damaged or no store", "ingest the manuals again"),
    (cut_short, BadStore, "is damaged or no store", "ingest the manuals again"),
    (other_program, OtherStore, "of another program", "name another file"),
    (newer, OtherStore, "has version 99, this edged reads version 2", "install the newer edged"),
    (lambda path: path.mkdir(), BadStore, "unable to open", "file and its folder"),
], ids=["text", "header", "cut", "program", "newer", "folder"])  # fmt: skip
def test_j11_what_is_no_store_is_named_and_left_as_it_is(tmp_path: Path, make, error, said, remedy) -> None:
    path = tmp_path / "manuals.db"
    make(path)
    before = path.read_bytes() if path.is_file() else b""
    for create in (False, True):
        with pytest.raises(error, match=said) as caught:
            Store(path, create=create)
        assert "manuals.db" in caught.value.message and remedy in caught.value.hint
        assert type(caught.value) is error
    assert not path.is_file() or path.read_bytes() == before
    with pytest.raises(error, match=said):
        schema.migrate(path)


def test_a_missing_or_empty_store_is_made_only_when_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b c#?%41" / "manuals.db"
    with pytest.raises(NotFound, match="no store of manuals at") as caught:
        Store(path)
    assert caught.value.hint == "edged ingest FOLDER makes one" and not path.parent.exists()
    Store(path, create=True).close()
    assert Store(path).documents() == []
    empty = tmp_path / "empty.db"
    empty.touch()
    with pytest.raises(NotFound):
        Store(empty)
    assert empty.stat().st_size == 0
    Store(empty, create=True).check()
    (tmp_path / "file").touch()
    with pytest.raises(BadStore, match="file: File exists"):
        Store(tmp_path / "file" / "manuals.db", create=True)


def test_many_make_one_store_at_once(tmp_path: Path) -> None:
    failed: list[BaseException] = []

    def make() -> None:
        try:
            with closing(new(tmp_path)) as store:
                put(store, threading.current_thread().name, "alpha")
        except BaseException as e:
            failed.append(e)

    threads = [threading.Thread(target=make) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    with closing(Store(tmp_path / "manuals.db")) as store:
        store.check()
        assert store.stats()["documents"] == 8 and store.stats()["contents"] == 1


def test_j11_opening_and_searching_wait_for_no_writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(new(tmp_path)) as store:
        fill(store)
    monkeypatch.setattr(database, "TIMEOUT", 0.1)
    with closing(sqlite3.connect(tmp_path / "manuals.db", isolation_level=None)) as writer:
        writer.execute("BEGIN IMMEDIATE")
        with closing(Store(tmp_path / "manuals.db", create=True)) as store:
            store.bind(BINDING)
            assert store.matching([["beta"]], 5) == [2] and store.nearest(embed(["beta two"])[0], 1)[0][0] == 2
            with pytest.raises(Busy, match="another process"):
                put(store, "x", "new")
            writer.execute("ROLLBACK")
            put(store, "x", "new")


SEARCH = """
import sys
from edged.rag.search import search
from edged.rag.store import Store
from tests.rag.manuals import BINDING, embed
store = Store(sys.argv[1])
store.check_binding(BINDING)
assert search(store, embed, "beta") and store.documents()
print(*sys.modules)
"""


def test_searching_needs_no_sqlite_utils(tmp_path: Path) -> None:
    with closing(new(tmp_path)) as store:
        fill(store)
    done = subprocess.run([sys.executable, "-c", SEARCH, str(tmp_path / "manuals.db")], capture_output=True, text=True,
                          check=True)  # fmt: skip
    loaded = done.stdout.split()
    assert "sqlite3" in loaded and not {"sqlite_utils", "tabulate", "edged.rag.schema", "asyncio"} & set(loaded)


@pytest.mark.parametrize(("spoil", "said"), [
    ("DELETE FROM vectors WHERE chunk = 2", "tables disagree .*vectors 2"),
    ("DELETE FROM words WHERE rowid = 2", "tables disagree .*words 2"),
    ("UPDATE blocks SET n = n + 1 WHERE id = 1", "tables disagree .*scanned 4"),
    ("DELETE FROM documents WHERE path = '/m/pump.pdf'", "1 contents that no document names"),
    ("UPDATE chunks SET content = 7 WHERE id = 3", "2 documents without chunks"),
    ("UPDATE documents SET content = 1; UPDATE chunks SET content = 7 WHERE id = 3; DELETE FROM contents WHERE id = 2",
     "1 chunks without a content"),
    ("DROP INDEX documents_path; INSERT INTO documents SELECT 9, collection, path, content, product, version FROM "
     "documents WHERE id = 1", "1 documents that are there twice"),
    ("UPDATE words_content SET c0 = 'other words' WHERE id = 2", "is damaged"),
])  # fmt: skip
def test_j09_check_names_what_does_not_agree(tmp_path: Path, spoil: str, said: str) -> None:
    with closing(new(tmp_path)) as store:
        fill(store)
        store.check()
    with closing(sqlite3.connect(tmp_path / "manuals.db")) as db:
        db.executescript(spoil)
    with closing(Store(tmp_path / "manuals.db")) as store, pytest.raises(BadStore, match=said) as caught:
        store.check()
    assert "ingest the manuals again" in caught.value.hint


def test_values_that_sqlite_cannot_hold_are_named(tmp_path: Path) -> None:
    with closing(new(tmp_path)) as store:
        with pytest.raises(BadRequest):
            store.documents(Filter(document="\ud800"))
        with pytest.raises(BadRequest):
            store.remove(2**70)
        with pytest.raises(NotFound):
            store.remove(-1)


def test_sqlite_without_room_is_a_full_disk(tmp_path: Path) -> None:
    with closing(new(tmp_path)) as store:
        put(store, "a", "alpha")
        before = state(store.path)
        pages = store._db.number("PRAGMA page_count")
        store._db.run(f"PRAGMA max_page_count = {pages + 1}")
        document, chunks = manual([f"line {i} " + "x" * 1000 for i in range(500)])
        with pytest.raises(DiskFull, match=r"manuals\.db") as caught:
            store.put("b", Content("sha256", "plain"), document, chunks, embed([c.text for c in chunks]))
        assert "free some space" in caught.value.hint and state(store.path) == before
        store._db.run("PRAGMA max_page_count = 100000")
        store.put("b", Content("sha256", "plain"), document, chunks, embed([c.text for c in chunks]))
        store.check()
        remove(store, "a")
        assert store.n_chunks == 500


@pytest.mark.parametrize("table", ["chunks", "contents"])
def test_a_text_that_was_altered_is_found(tmp_path: Path, table: str) -> None:
    store = new(tmp_path)
    put(store, "a", "locked for 15 minutes")
    store.check()
    with closing(sqlite3.connect(store.path)) as db, db:
        db.execute(f"UPDATE {table} SET text = replace(text, '15', '95')")
    with pytest.raises(BadStore, match="the text of chunk 1 is not what was ingested"):
        store.check()
    store.close()
