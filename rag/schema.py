"""The tables of a store, and how those of an older version become them; by sqlite-utils, which searches do without.

    schema.create(database)          a new file
    schema.migrate(path)             an old one; a copy is kept beside it

A step goes from one version to the next. New files take all of them, so they are what migrated files are. All steps of
a file are one transaction: a process killed half way leaves the old version. Raises BadStore, DiskFull, Busy.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing, suppress
from pathlib import Path

import sqlite_utils
from sqlite_utils.migrations import Migrations

from edged.errors import BadStore
from edged.rag.database import APPLICATION, PAGE, VERSION, Database

STEPS = Migrations("edged")

# words.py has split the text; this tokenizer only has to keep its words whole
WORDS = "CREATE VIRTUAL TABLE words USING fts5(text, tokenize = \"unicode61 remove_diacritics 2 tokenchars '+#'\")"
_VERSION_1 = """
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
INSERT INTO meta VALUES ('generation', '0');
"""


@STEPS(name="1")
def tables(db: sqlite_utils.Database) -> None:
    """Contents, documents, chunks, words, vectors, blocks, meta."""
    if db["meta"].exists():  # version 1 kept no list of its steps
        return
    for statement in _VERSION_1.split(";\n"):
        if statement.strip():
            db.execute(statement)
    try:
        db.execute(WORDS)
    except sqlite3.OperationalError as e:
        if "fts5" not in str(e) and "tokenizer" not in str(e):
            raise


@STEPS(name="2")
def collections(db: sqlite_utils.Database) -> None:
    """Documents belong to a collection; contents know their pages; vectors wait for the rest of their document."""
    contents = db.table("contents")
    contents.add_column("pages", int)
    contents.add_column("blank", str, not_null_default="[]")
    # as near as version 1 knew: the last page with text
    db.execute("UPDATE contents SET pages = (SELECT max(page_end) FROM chunks WHERE content = contents.id)")
    columns = {"id": int, "collection": str, "path": str, "content": int, "product": str, "version": str}
    new = db.table("documents_2")
    new.create(columns, pk="id", not_null=set(columns) - {"id"}, foreign_keys=[("content", "contents", "id")])
    db.execute("INSERT INTO documents_2 SELECT id, 'default', path, content, product, version FROM documents")
    db.table("documents").drop()
    db.rename_table("documents_2", "documents")
    documents = db.table("documents")
    documents.create_index(["collection", "path"], unique=True, index_name="documents_path")
    documents.create_index(["content"], index_name="documents_content")
    db.table("pending").create({"key": str, "data": bytes}, pk="key", not_null={"data"})


def create(database: Database) -> None:
    """Make the tables of a file that has none, unless another process makes them just now."""
    _apply(database)


def migrate(path: Path) -> tuple[int, Path | None]:
    """Bring a file to VERSION; the version it had, and the copy of it (None: nothing was to be done).

    The copy is whole or not there. Raises also NotFound, and BadStore for a version newer than this edged.
    """
    with closing(Database(path)) as database:
        old = database.version
        if old == VERSION:
            return old, None
        if old > VERSION:
            database.check_version()
        copy = path.with_name(f"{path.name}.v{old}.bak")
        _apply(database, copy)
        return old, copy


def _apply(database: Database, copy: Path | None = None) -> None:
    with database.write():
        if copy is not None:
            _copy(database.path, copy)  # while nobody else can write
        db = sqlite_utils.Database(database.connection, recursive_triggers=False, execute_plugins=False)
        STEPS.apply(db)
        db.execute(f"UPDATE {STEPS.migrations_table} SET applied_at = ''")  # equal manuals, equal rows
        db.execute(f"PRAGMA application_id = {APPLICATION}")
        db.execute(f"PRAGMA user_version = {VERSION}")
    database.version = VERSION


def _copy(path: Path, copy: Path) -> None:
    """All that is committed to the file at `path`, in one file."""
    part = copy.with_name(copy.name + ".part")
    try:
        part.unlink(missing_ok=True)
        with closing(Database(path)) as source, closing(sqlite3.connect(part)) as target:
            target.execute(f"PRAGMA page_size = {PAGE}")
            source.connection.backup(target)
        with part.open("rb") as file:
            os.fsync(file.fileno())
        part.replace(copy)
    except BaseException as e:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        if isinstance(e, OSError):
            raise BadStore(f"cannot keep a copy at {copy}: {e.strerror}", hint="nothing was changed") from e
        raise
