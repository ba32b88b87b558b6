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

from edged.errors import BadDocument, BadStore
from edged.rag.database import APPLICATION, PAGE, VERSION, Database
from edged.rag.formats import format_of

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
    """Documents have a collection, contents a reader and pages; vectors wait for the rest of their document."""
    kept = {"id": int, "sha256": str, "reader": str, "title": str, "text": str, "pages": int, "blank": str}
    db.table("contents_2").create(kept, pk="id", not_null=set(kept) - {"id", "pages"})
    # as near as version 1 knew: the last page with text, and the format that a file's name tells
    db.execute("INSERT INTO contents_2 SELECT id, sha256, '', title, text, "
               "(SELECT max(page_end) FROM chunks WHERE content = contents.id), '[]' FROM contents")
    for path, content in db.execute("SELECT min(path), content FROM documents GROUP BY content").fetchall():
        with suppress(BadDocument):
            db.execute("UPDATE contents_2 SET reader = ? WHERE id = ?", [format_of(path).module, content])
    db.table("contents").drop()
    db.rename_table("contents_2", "contents")
    db.table("contents").create_index(["sha256", "reader"], unique=True, index_name="contents_sha256")
    columns = {"id": int, "collection": str, "path": str, "content": int, "product": str, "version": str}
    new = db.table("documents_2")
    new.create(columns, pk="id", not_null=set(columns) - {"id"}, foreign_keys=[("content", "contents", "id")])
    db.execute("INSERT INTO documents_2 SELECT id, 'default', path, content, product, version FROM documents")
    db.table("documents").drop()
    db.rename_table("documents_2", "documents")
    documents = db.table("documents")
    documents.create_index(["collection", "path"], unique=True, index_name="documents_path")
    documents.create_index(["content"], index_name="documents_content")
    columns = {"key": str, "data": bytes, "collection": str, "path": str, "generation": int}
    db.table("pending").create(columns, pk="key", not_null=set(columns) - {"key"})


def create(database: Database) -> None:
    """Make the tables of a file that has none, unless another process makes them just now."""
    _apply(database, 0)


def migrate(path: Path) -> tuple[int, Path | None]:
    """Bring a file to VERSION; the version it had, and the copy of it (None: nothing was to be done).

    The copy is whole or not there, and takes no other's place. Raises also NotFound, and BadStore for a version newer
    than this edged.
    """
    with closing(Database(path)) as database:
        old = database.version
        if old > VERSION:
            database.check_version()
        copy = _apply(database, old, keep=True) if old < VERSION else None
        return (old if copy else VERSION), copy


def _apply(database: Database, old: int, *, keep: bool = False) -> Path | None:
    """Take the steps from version `old` on, unless another process just did; keep: a copy, whose path is returned."""
    copy = None
    database.run("PRAGMA foreign_keys = OFF")  # not to be changed in a transaction; some tables are made anew
    try:
        with database.write():
            if database.look() == old:
                copy = _copy(database.path, old) if keep else None  # while nobody else can write
                db = sqlite_utils.Database(database.connection, recursive_triggers=False, execute_plugins=False)
                STEPS.apply(db)
                db.execute(f"UPDATE {STEPS.migrations_table} SET applied_at = ''")  # equal manuals, equal rows
                db.execute(f"PRAGMA application_id = {APPLICATION}")
                db.execute(f"PRAGMA user_version = {VERSION}")
    finally:
        database.run("PRAGMA foreign_keys = ON")
    database.look()
    return copy


def _copy(path: Path, version: int) -> Path:
    """Keep all that is committed to the file at `path` in a file beside it, which is new."""
    copy, n = path.with_name(f"{path.name}.v{version}.bak"), 1
    while copy.exists():
        copy, n = path.with_name(f"{path.name}.v{version}.{n}.bak"), n + 1
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
    return copy
