"""The store of manuals: one SQLite file with documents, chunks, their words and their vectors.

    documents  path -> content, product, version         a file name; several may share one content
    contents   sha256 -> title, text                     what was read, once however often it was ingested
    chunks     content, span and pages in it, headings   what is found; ids of a content are consecutive
    words      FTS5 over the index words (words.py), rowid = chunk
    vectors    chunk -> f32[k], for the exact order
    blocks     content -> codes of up to 1024 chunks     what is scanned (vectors.py)
    meta       key -> value: fingerprint and dim of the embedding model, generation (one more with each change)

`PRAGMA user_version` is the version of this schema. Write-ahead log: searches see the last whole state while an ingest
writes; a document comes and goes in one transaction, so a process may be killed at any moment. One Store per thread.
Works with SQLite >= 3.31; without FTS5 search goes by meaning alone and `has_words` is false. Raises BadStore,
NotFound.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import numpy as np

from edged.errors import BadStore, NotFound
from edged.rag import vectors
from edged.rag.document import Chunk, Document
from edged.rag.nearest import Nearest, marks, parts
from edged.rag.words import words

VERSION = 1
OLDEST_SQLITE = (3, 31)
BLOCK = 1024  # vectors in one row of `blocks`
RANKED = 5000  # rows that a search by words weighs, about: a microsecond each
_REMEMBERED = 10_000  # frequencies of phrases

_SCHEMA = """
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
# words.py has split the text; this tokenizer only has to keep its words whole
_WORDS = "CREATE VIRTUAL TABLE words USING fts5(text, tokenize = \"unicode61 remove_diacritics 2 tokenchars '+#'\")"


@dataclass(frozen=True)
class Source:
    """A file that was ingested."""

    path: str
    title: str
    product: str
    version: str


@dataclass(frozen=True)
class Stored:
    """A chunk in the store. `content` names the text that `chunk.start` and `chunk.end` point into."""

    id: int
    content: int
    chunk: Chunk
    sources: tuple[Source, ...]


@dataclass(frozen=True)
class Filter:
    """Which documents a search sees; empty means all."""

    path: str = ""
    product: str = ""
    version: str = ""

    def contents(self) -> tuple[str, list[str]]:
        """A subquery for the ids of the contents that pass, and its parameters; '' if all do."""
        wanted = {name: value for name, value in vars(self).items() if value}
        where = " AND ".join(f"{name} = ?" for name in wanted)
        return (f"SELECT content FROM documents WHERE {where}" if where else ""), list(wanted.values())


class Store:
    """An open store."""

    def __init__(self, path: str | Path, *, scan: vectors.Scan = vectors.scan) -> None:
        """Open, and create if it is not there. Raises BadStore."""
        if sqlite3.sqlite_version_info < OLDEST_SQLITE:
            raise BadStore(f"SQLite {sqlite3.sqlite_version} is too old", hint="the store needs SQLite 3.31 or newer")
        self.path = Path(path)
        self._frequencies: tuple[int, dict[tuple[str, ...], int]] = (-1, {})
        try:
            self._db = sqlite3.connect(str(path), timeout=60, isolation_level=None)
            self._db.execute("PRAGMA page_size = 65536")  # of a new file: long blocks are read faster than with 4096
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA foreign_keys = ON")
            self._db.execute("PRAGMA mmap_size = 2147418112")  # SQLite's most; a page read costs no copy to its cache
            self._create()
        except sqlite3.Error as e:
            raise BadStore(f"{path}: {e}", hint="ingest the manuals into a new store, or restore a copy") from e
        self._nearest = Nearest(self._db, scan)
        self.has_words = bool(self._db.execute("SELECT 1 FROM sqlite_master WHERE name = 'words'").fetchone())
        if self.has_words:
            try:
                self._db.execute("SELECT 1 FROM words LIMIT 1")
            except sqlite3.OperationalError:
                self.has_words = False  # written where FTS5 is, opened where it is not

    def _create(self) -> None:
        """Make the tables of a new file; check the version of an old one."""
        with self._write():
            version = self._db.execute("PRAGMA user_version").fetchone()[0]
            if version == 0:
                for statement in _SCHEMA.split(";\n"):
                    if statement.strip():
                        self._db.execute(statement)
                try:
                    self._db.execute(_WORDS)
                except sqlite3.OperationalError as e:
                    if "fts5" not in str(e) and "tokenizer" not in str(e):
                        raise
                self._db.execute(f"PRAGMA user_version = {VERSION}")
            elif version != VERSION:
                raise BadStore(f"{self.path} has version {version}, this edged reads version {VERSION}",
                               hint="ingest the manuals into a new store")

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    @contextmanager
    def _write(self) -> Iterator[None]:
        """One transaction; waits for another writer, is undone by any exception."""
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """All reads within see one state of the store, whatever is written meanwhile."""
        self._db.execute("BEGIN")
        try:
            yield
        finally:
            self._db.execute("COMMIT")

    # -- writing -------------------------------------------------------------------------------------------------------

    def bind(self, fingerprint: str, dim: int) -> None:
        """Say which embedding model fills or questions the store. Raises BadStore if another one filled it."""
        with self._write():
            self._db.execute("INSERT OR IGNORE INTO meta VALUES ('fingerprint', ?)", [fingerprint])
            self._db.execute("INSERT OR IGNORE INTO meta VALUES ('dim', ?)", [str(dim)])
            known = (self._meta("fingerprint"), int(self._meta("dim")))
        if known != (fingerprint, dim):
            raise BadStore(f"the store was filled by embedding model {known[0]} ({known[1]} values), not {fingerprint}"
                           f" ({dim})", hint="use that model, or ingest the manuals into a new store")

    def holds(self, path: str, digest: str, product: str = "", version: str = "") -> bool:
        """Whether this path was ingested with this content and description."""
        sql = ("SELECT 1 FROM documents JOIN contents ON contents.id = content "
               "WHERE (path, sha256, product, version) = (?, ?, ?, ?)")
        return self._db.execute(sql, [path, digest, product, version]).fetchone() is not None

    def refer(self, path: str, digest: str, product: str = "", version: str = "") -> bool:
        """Give a content that is there already (another) path; False if it is not there."""
        with self._write():
            found = self._db.execute("SELECT id FROM contents WHERE sha256 = ?", [digest]).fetchone()
            if found:
                self._point(path, found[0], product, version)
        return found is not None

    def known_vectors(self, chunks: Sequence[Chunk]) -> dict[str, np.ndarray]:
        """Vectors f32 (k,) by `key` of those chunks that some document in the store has alike."""
        found = {}
        for part in parts([key(c) for c in chunks]):
            sql = f"SELECT key, data FROM chunks JOIN vectors ON chunk = id WHERE key IN ({marks(part)})"
            found.update({name: np.frombuffer(data, np.float32) for name, data in self._db.execute(sql, part)})
        return found

    def put(self, path: str, digest: str, document: Document, chunks: Sequence[Chunk], embedded: np.ndarray,
            product: str = "", version: str = "") -> None:
        """Store a document in place of what `path` held. embedded: f32 (len(chunks), dim), of any length."""
        unit = vectors.unit(embedded)
        with self._write():
            self._db.execute("INSERT OR IGNORE INTO contents (sha256, title, text) VALUES (?, ?, ?)",
                             [digest, document.title, document.text])
            content = self._db.execute("SELECT id FROM contents WHERE sha256 = ?", [digest]).fetchone()[0]
            if not self._db.execute("SELECT 1 FROM chunks WHERE content = ?", [content]).fetchone():
                self._insert(content, chunks, unit)
            self._point(path, content, product, version)

    def remove(self, path: str) -> None:
        """Forget a document and all that only it held. Raises NotFound."""
        with self._write():
            if not self._db.execute("DELETE FROM documents WHERE path = ?", [path]).rowcount:
                raise NotFound(f"no document {path} in the store")
            self._sweep()

    def _insert(self, content: int, chunks: Sequence[Chunk], unit: np.ndarray) -> None:
        first = self._db.execute("SELECT coalesce(max(id), 0) + 1 FROM chunks").fetchone()[0]
        ids = range(first, first + len(chunks))
        self._db.executemany(
            "INSERT INTO chunks VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            [(i, content, key(c), c.text, c.start, c.end, c.page, c.page_end, json.dumps(c.headings))
             for i, c in zip(ids, chunks, strict=True)],
        )
        self._db.executemany("INSERT INTO vectors VALUES (?, ?)",
                             [(i, v.tobytes()) for i, v in zip(ids, unit, strict=True)])
        if self.has_words:
            self._db.executemany("INSERT INTO words (rowid, text) VALUES (?, ?)",
                                 [(i, " ".join(words(indexed(c)))) for i, c in zip(ids, chunks, strict=True)])
        for at in range(0, len(chunks), BLOCK):
            codes, error = vectors.encode(unit[at : at + BLOCK])
            self._db.execute("INSERT INTO blocks (content, first, n, error, codes) VALUES (?, ?, ?, ?, ?)",
                             [content, first + at, len(codes), error, codes.tobytes()])

    def _point(self, path: str, content: int, product: str, version: str) -> None:
        self._db.execute("DELETE FROM documents WHERE path = ?", [path])
        self._db.execute("INSERT INTO documents (path, content, product, version) VALUES (?, ?, ?, ?)",
                         [path, content, product, version])
        self._sweep()

    def _sweep(self) -> None:
        """Delete contents that no document names any more, and count the change."""
        sql = "SELECT id FROM contents WHERE id NOT IN (SELECT content FROM documents)"
        for (content,) in self._db.execute(sql).fetchall():
            of = "(SELECT id FROM chunks WHERE content = ?)"
            if self.has_words:
                self._db.execute(f"DELETE FROM words WHERE rowid IN {of}", [content])
            self._db.execute(f"DELETE FROM vectors WHERE chunk IN {of}", [content])
            for table in ("blocks", "chunks"):
                self._db.execute(f"DELETE FROM {table} WHERE content = ?", [content])
            self._db.execute("DELETE FROM contents WHERE id = ?", [content])
        self._db.execute("UPDATE meta SET value = value + 1 WHERE key = 'generation'")

    # -- reading -------------------------------------------------------------------------------------------------------

    def matching(self, phrases: Sequence[Sequence[str]], k: int, only: Filter = Filter()) -> list[int]:
        """The k chunks that hold most of the phrases (words in a row), by BM25, best first.

        Phrases that stand nearly everywhere tell chunks apart least and cost most: they are left out where the rarer
        ones match RANKED rows.
        """
        if not (chosen := self._rarest(phrases)):
            return []
        within, values = only.contents()
        where = f"AND rowid IN (SELECT id FROM chunks WHERE content IN ({within}))" if within else ""
        match = " OR ".join(map(_quoted, chosen))
        sql = f"SELECT rowid FROM words WHERE words MATCH ? {where} ORDER BY bm25(words), rowid LIMIT ?"
        return [row[0] for row in self._db.execute(sql, [match, *values, k])]

    def holding(self, chunks: Sequence[int], phrase: Sequence[str]) -> set[int]:
        """Those of the chunks that hold the words in a row."""
        found: set[int] = set()
        for part in parts(chunks) if self.has_words else ():
            sql = f"SELECT rowid FROM words WHERE words MATCH ? AND rowid IN ({marks(part)})"
            found.update(row[0] for row in self._db.execute(sql, [_quoted(phrase), *part]))
        return found

    @property
    def n_chunks(self) -> int:
        """How many chunks there are."""
        return int(self._db.execute("SELECT count(*) FROM chunks").fetchone()[0])

    def frequency(self, phrase: Sequence[str]) -> int:
        """How many chunks hold the words in a row; remembered until the store changes."""
        if not self.has_words:
            return 0
        generation = int(self._meta("generation"))
        if self._frequencies[0] != generation or len(self._frequencies[1]) >= _REMEMBERED:
            self._frequencies = generation, {}
        known = self._frequencies[1]
        if (words := tuple(phrase)) not in known:
            sql = "SELECT count(*) FROM words WHERE words MATCH ?"
            known[words] = int(self._db.execute(sql, [_quoted(phrase)]).fetchone()[0])
        return known[words]

    def _rarest(self, phrases: Sequence[Sequence[str]]) -> list[Sequence[str]]:
        """The phrases that occur, rarest first, as long as they match RANKED rows together; at least one."""
        chosen: list[Sequence[str]] = []
        rows = 0
        for n, phrase in sorted((n, phrase) for phrase in phrases if (n := self.frequency(phrase))):
            rows += n
            if chosen and rows > RANKED:
                break
            chosen.append(phrase)
        return chosen

    def nearest(self, embedded: np.ndarray, k: int, only: Filter = Filter()) -> list[tuple[int, float]]:
        """The k chunks of largest cosine with embedded: f32 (dim,), and the cosines; exact, within a `snapshot`."""
        return self._nearest.find(embedded, k, int(self._meta("generation")), *only.contents())

    def chunks(self, ids: Iterable[int]) -> list[Stored]:
        """Chunks by id, in the order given; those that are gone are left out."""
        found = {}
        wanted = list(ids)
        for part in parts(wanted):
            sql = ("SELECT id, content, text, start, end, page, page_end, headings FROM chunks "
                   f"WHERE id IN ({marks(part)})")
            for i, content, text, start, end, page, page_end, headings in self._db.execute(sql, part):
                chunk = Chunk(text, start, end, page, page_end, tuple(json.loads(headings)))
                found[i] = Stored(i, content, chunk, self._sources(content))
        return [found[i] for i in wanted if i in found]

    def _sources(self, content: int) -> tuple[Source, ...]:
        sql = ("SELECT path, title, product, version FROM documents JOIN contents ON contents.id = content "
               "WHERE content = ? ORDER BY path")
        return tuple(Source(*row) for row in self._db.execute(sql, [content]))

    def quote(self, content: int, start: int, end: int) -> str:
        """text[start:end] of a content. Raises NotFound."""
        row = self._db.execute("SELECT substr(text, ?, ?) FROM contents WHERE id = ?",
                               [start + 1, end - start, content]).fetchone()
        if row is None:
            raise NotFound("the document is no longer in the store")
        return str(row[0])

    # -- administration ------------------------------------------------------------------------------------------------

    def stats(self) -> dict[str, int]:
        """Rows of every table, and the bytes of the file."""
        tables = ["documents", "contents", "chunks", "vectors", *(["words"] if self.has_words else [])]
        counts = {t: int(self._db.execute(f"SELECT count(*) FROM {t}").fetchone()[0]) for t in tables}
        counts["scanned"] = int(self._db.execute("SELECT coalesce(sum(n), 0) FROM blocks").fetchone()[0])
        return {**counts, "bytes": self.path.stat().st_size}

    def check(self) -> None:
        """Raise BadStore, naming what is wrong, unless the file is whole and its tables agree."""
        try:
            with self.snapshot():
                found = [str(row[0]) for row in self._db.execute("PRAGMA integrity_check")]
                counts = self.stats()
        except sqlite3.DatabaseError as e:
            found, counts = [str(e)], {}
        if found != ["ok"]:
            raise BadStore(f"{self.path} is damaged: {found[0]}", hint="ingest the manuals into a new store")
        parts = {name: counts[name] for name in ("chunks", "vectors", "words", "scanned") if name in counts}
        if len(set(parts.values())) > 1:
            listed = ", ".join(f"{name} {n}" for name, n in parts.items())
            raise BadStore(f"{self.path}: tables disagree ({listed})", hint="ingest the manuals into a new store")

    def _meta(self, name: str) -> str:
        return str(self._db.execute("SELECT value FROM meta WHERE key = ?", [name]).fetchone()[0])


def indexed(chunk: Chunk) -> str:
    """The text of a chunk as it is embedded and indexed: its headings, then itself."""
    return "\n".join([*chunk.headings, chunk.text])


def _quoted(phrase: Sequence[str]) -> str:
    """A phrase as FTS5 reads it; words hold no quotation marks."""
    return f'"{" ".join(phrase)}"'


def key(chunk: Chunk) -> str:
    """Equal for chunks whose vectors are equal."""
    return sha256(indexed(chunk).encode("utf-8", "surrogatepass")).hexdigest()
