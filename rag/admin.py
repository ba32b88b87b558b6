"""What a store holds, whether it is whole, and its chunks as rows: for `edged store` and for tests.

Reads through the open Database of a Store. Raises BadStore, and what the database raises.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from edged.errors import BadStore
from edged.rag.database import RESTORE, Database
from edged.rag.document import Chunk, key

COLUMNS = ("document", "collection", "path", "title", "product", "version", "chunk", "page", "page_end", "headings",
           "text")  # fmt: skip
"""Of a chunk as a row of `export`."""

# what must never be found -> a query that counts it
_WRONG = {
    "documents without chunks": "documents WHERE content NOT IN (SELECT content FROM chunks)",
    "contents that no document names": "contents WHERE id NOT IN (SELECT content FROM documents)",
    "chunks without a content": "chunks WHERE content NOT IN (SELECT id FROM contents)",
    "chunks without a vector": "chunks WHERE id NOT IN (SELECT chunk FROM vectors)",
    "blocks without a content": "blocks WHERE content NOT IN (SELECT id FROM contents)",
    "documents that are there twice": "(SELECT 1 FROM documents GROUP BY collection, path HAVING count(*) > 1)",
    "contents that are there twice": "(SELECT 1 FROM contents GROUP BY sha256, reader HAVING count(*) > 1)",
}


def stats(db: Database, has_words: bool) -> dict[str, int]:
    """Rows of every table; pages; collections; vectors that are scanned; bytes of the file and of its log."""
    tables = ["documents", "contents", "chunks", "vectors", *(["words"] if has_words else []), "pending"]
    counts = {table: db.number(f"SELECT count(*) FROM {table}") for table in tables}
    counts["scanned"] = db.number("SELECT coalesce(sum(n), 0) FROM blocks")
    counts["pages"] = db.number("SELECT coalesce(sum(pages), 0) FROM contents")
    counts["collections"] = db.number("SELECT count(DISTINCT collection) FROM documents")
    files = [db.path, db.path.with_name(db.path.name + "-wal")]
    counts["bytes"] = sum(file.stat().st_size for file in files if file.exists())
    return counts


def check(db: Database, has_words: bool) -> None:
    """Raise BadStore, naming what is wrong, unless the file is whole and its tables agree."""
    with db.snapshot():
        found = [str(row[0]) for row in db.rows("PRAGMA integrity_check")]
        if found != ["ok"]:
            raise BadStore(f"{db.path} is damaged: {found[0]}", hint=RESTORE)
        counts = stats(db, has_words)
        agreeing = {name: counts[name] for name in ("chunks", "vectors", "words", "scanned") if name in counts}
        if len(set(agreeing.values())) > 1:
            listed = ", ".join(f"{name} {n}" for name, n in agreeing.items())
            raise BadStore(f"{db.path}: tables disagree ({listed})", hint=RESTORE)
        for what, rows in _WRONG.items():
            if n := db.number(f"SELECT count(*) FROM {rows}"):
                raise BadStore(f"{db.path}: {n} {what}", hint=RESTORE)
        _check_texts(db)
    if has_words:
        with db.write():  # compares every word of the index with the text it is of
            db.run("INSERT INTO words (words) VALUES ('integrity-check')")


def _check_texts(db: Database) -> None:
    """Raise BadStore for a chunk that is not what was embedded, or not what its document says."""
    sql = ("SELECT chunks.id, key, chunks.text, headings, start, end, substr(contents.text, start + 1, end - start) "
           "FROM chunks JOIN contents ON contents.id = content")
    for i, name, text, headings, start, end, span in db.rows(sql):
        chunk = Chunk(text, start, end, None, None, tuple(json.loads(headings)))
        if key(chunk) != name or not text.endswith(span):  # it may begin with a copy of the header of its table
            raise BadStore(f"{db.path}: the text of chunk {i} is not what was ingested", hint=RESTORE)


def export(db: Database, document: int) -> Iterator[dict[str, Any]]:
    """The chunks of a document in their order, with the document's description."""
    sql = ("SELECT documents.id, collection, path, title, product, version, chunks.id, page, page_end, headings, "
           "chunks.text FROM documents JOIN contents ON contents.id = documents.content JOIN chunks "
           "ON chunks.content = contents.id WHERE documents.id = ? ORDER BY chunks.id")
    for row in db.rows(sql, [document]):
        found = dict(zip(COLUMNS, row, strict=True))
        yield {**found, "headings": json.loads(found["headings"])}
