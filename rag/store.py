"""The store of manuals: one SQLite file with documents, chunks, their words and their vectors.

    documents  collection, path -> content, product, version   a file by the name it was given; may share a content
    contents   sha256, reader -> title, text, pages, blank     what was read, once however often it was ingested
    chunks     content, span and pages in it, headings         what is found; ids of a content are consecutive
    words      FTS5 over the index words (words.py), rowid = chunk
    vectors    chunk -> f32[k], for the exact order
    blocks     content -> codes of up to 1024 chunks           what is scanned (vectors.py)
    pending    key -> f32[k], collection, path, generation     vectors of a document whose ingest is not complete
    meta       key -> value: embedding model (Binding), generation (one more with each change)

`reader` is the format that the bytes were read as; `pages` is null where it has none, `blank` a JSON list of the pages
without text. schema.py makes the tables and brings older ones up to date; database.py opens the file and names its
errors: NotFound, BadStore, Busy, DiskFull.

Searches see the last whole state while an ingest writes; a document comes and goes in one transaction, so a process may
be killed at any moment. Equal manuals ingested in the same order make equal rows. One Store per thread. Works with
SQLite >= 3.31; without FTS5 search goes by meaning alone and `has_words` is false.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from edged.errors import NotFound, OtherStore
from edged.rag import admin, vectors
from edged.rag.database import Database
from edged.rag.document import Chunk, Document, indexed, key
from edged.rag.nearest import Nearest, marks, parts
from edged.rag.words import words

BLOCK = 1024  # vectors in one row of `blocks`
RANKED = 5000  # rows that a search by words weighs, about: a microsecond each
DEFAULT = "default"  # the collection of documents that name none
UNFINISHED = 100  # changes of documents after which an ingest that was cut off is not expected to go on
_REMEMBERED = 10_000  # frequencies of phrases


class Binding(NamedTuple):
    """The embedding model of a store. `fingerprint` and `pooling` decide what its vectors are, `name` is for people."""

    name: str
    fingerprint: str
    dim: int
    pooling: str

    def __str__(self) -> str:
        pooling = f"{self.pooling} pooling, " if self.pooling else ""
        return f"{self.name or 'a model'} ({self.dim} values, {pooling}fingerprint {self.fingerprint[:12]})"


class Content(NamedTuple):
    """What a content is known by: the bytes of a file, and the format (a module of rag/formats) they were read as."""

    sha256: str
    reader: str


@dataclass(frozen=True)
class Source:
    """A file that was ingested; `id` is that of its row in `documents`."""

    path: str
    title: str
    product: str
    version: str
    collection: str
    id: int


@dataclass(frozen=True)
class Stored:
    """A chunk in the store. `content` names the text that `chunk.start` and `chunk.end` point into."""

    id: int
    content: int
    chunk: Chunk
    sources: tuple[Source, ...]


class DocumentRow(NamedTuple):
    """A document as `documents` lists it. `pages`: how many, None where its format has none; `blank`: without text."""

    id: int
    collection: str
    path: str
    title: str
    product: str
    version: str
    sha256: str
    pages: int | None
    blank: tuple[int, ...]
    chunks: int


@dataclass(frozen=True)
class Filter:
    """Which documents are meant; empty means all. `document`: a path, or a file name, which is the end of paths."""

    collection: str = ""
    document: str = ""
    product: str = ""
    version: str = ""

    def condition(self) -> tuple[str, list[str]]:
        """An SQL condition on rows of `documents`, and its values."""
        fields = {"collection": self.collection, "product": self.product, "version": self.version}
        terms, values = [f"{name} = ?" for name, value in fields.items() if value], [v for v in fields.values() if v]
        if self.document:
            bare = "/" not in self.document
            terms.append("(path = ? OR substr(path, -length(?) - 1) = '/' || ?)" if bare else "path = ?")
            values += [self.document] * (3 if bare else 1)
        return " AND ".join(terms) or "1", values

    def contents(self) -> tuple[str, list[str]]:
        """A subquery for the ids of the contents that pass, and its values; '' if all do."""
        where, values = self.condition()
        return (f"SELECT content FROM documents WHERE {where}" if values else ""), values


class Store:
    """An open store."""

    def __init__(self, path: str | Path, *, create: bool = False, scan: vectors.Scan = vectors.scan) -> None:
        """Open; with `create` make a store that is missing, and its folder. Waits for no writer."""
        self.path = Path(path)
        self._db = Database(self.path, create=create)
        try:
            self._ready(create)
        except BaseException:
            self._db.close()
            raise
        self._frequencies: tuple[int, dict[tuple[str, ...], int]] = (-1, {})
        self._nearest = Nearest(self._db, scan)
        self.has_words = self._db.readable("words")  # not where the store was made, or is opened, without FTS5

    def _ready(self, create: bool) -> None:
        if self._db.version == 0:
            if not create:
                raise NotFound(f"no store of manuals at {self.path}", hint="edged ingest FOLDER makes one")
            from edged.rag import schema  # what it needs takes long to import

            schema.create(self._db)
        self._db.check_version()

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def snapshot(self) -> AbstractContextManager[None]:
        """All reads within see one state of the store, whatever is written meanwhile."""
        return self._db.snapshot()

    # -- the embedding model -------------------------------------------------------------------------------------------

    def binding(self) -> Binding | None:
        """The embedding model that fills the store; None as long as none does."""
        known = dict(self._db.rows("SELECT key, value FROM meta"))
        if "fingerprint" not in known:
            return None
        return Binding(known.get("model", ""), known["fingerprint"], int(known["dim"]), known.get("pooling", ""))

    def bind(self, binding: Binding) -> None:
        """Say which embedding model fills the store. Raises OtherStore if another one filled it."""
        self.check_binding(binding)
        known = self.binding()
        if known is None or not known.name:  # version 1 kept no name
            with self._db.write():
                for key, value in zip(("model", "fingerprint", "dim", "pooling"), binding, strict=True):
                    self._db.run("INSERT OR IGNORE INTO meta VALUES (?, ?)", [key, str(value)])
            self.check_binding(binding)  # another process may have been first

    def check_binding(self, binding: Binding) -> None:
        """Raise OtherStore if another embedding model filled the store."""
        known = self.binding()
        if known is None:
            return
        same = (known.fingerprint, known.dim) == (binding.fingerprint, binding.dim)
        if not same or known.pooling not in ("", binding.pooling):
            raise OtherStore(f"{self.path} was filled by the embedding model {known}, not by {binding}",
                             hint=f"set embedding.model to {known.name or 'the one that filled it'}, "
                                  "or ingest the manuals into a new store")

    # -- writing -------------------------------------------------------------------------------------------------------

    def _write(self) -> AbstractContextManager[None]:
        """A transaction that changes documents. Raises OtherStore where their words cannot be kept up to date."""
        if not self.has_words and self._db.row("SELECT 1 FROM sqlite_master WHERE name = 'words'"):
            raise OtherStore(f"{self.path} has an index of words, and this SQLite lacks the FTS5 to change it",
                             hint="use a Python whose SQLite has FTS5, or ingest the manuals into a new store")
        return self._db.write()

    def holds(self, path: str, content: Content, product: str = "", version: str = "", collection: str = DEFAULT
              ) -> bool:
        """Whether this path was ingested with this content and description."""
        sql = ("SELECT 1 FROM documents JOIN contents ON contents.id = content "
               "WHERE (path, sha256, reader, product, version, collection) = (?, ?, ?, ?, ?, ?)")
        return self._db.row(sql, [path, *content, product, version, collection]) is not None

    def described(self, path: str, collection: str = DEFAULT) -> tuple[str, str]:
        """Product and version of a document, empty if there is none."""
        sql = "SELECT product, version FROM documents WHERE (path, collection) = (?, ?)"
        row = self._db.row(sql, [path, collection])
        return (row[0], row[1]) if row else ("", "")

    def refer(self, path: str, content: Content, product: str = "", version: str = "", collection: str = DEFAULT
              ) -> bool:
        """Give a content that is there already (another) path; False if it is not there."""
        if not self._db.row(_CONTENT, content):
            return False  # the common case waits for no writer
        with self._write():
            found = self._db.row(_CONTENT, content)
            if found:
                self._point(path, found[0], product, version, collection)
        return found is not None

    def known_vectors(self, chunks: Sequence[Chunk]) -> dict[str, np.ndarray]:
        """Vectors f32 (k,) by `key` of those chunks that some document in the store has alike, or that are pending."""
        found = {}
        for part in parts([key(c) for c in chunks]):
            for source in ("chunks JOIN vectors ON chunk = id", "pending"):
                rows = self._db.rows(f"SELECT key, data FROM {source} WHERE key IN ({marks(part)})", part)
                found.update({name: np.frombuffer(data, np.float32) for name, data in rows})
        return found

    def keep(self, path: str, embedded: Mapping[str, np.ndarray], collection: str = DEFAULT) -> None:
        """Keep vectors f32 (k,) by `key`, as `vectors.unit` makes them, for a document that is to be put at this path.

        They go when one is put there, or with the change of other documents that is UNFINISHED after this.
        """
        with self._db.write():
            now = self._generation()
            self._db.run_many("INSERT OR IGNORE INTO pending VALUES (?, ?, ?, ?, ?)",
                              [(name, vector.tobytes(), collection, path, now) for name, vector in embedded.items()])

    def put(self, path: str, content: Content, document: Document, chunks: Sequence[Chunk], embedded: np.ndarray,
            product: str = "", version: str = "", collection: str = DEFAULT) -> None:
        """Store a document in place of what `path` held. embedded: f32 (len(chunks), dim), of any length."""
        unit = vectors.unit(embedded)
        with self._write():
            self._db.run("INSERT OR IGNORE INTO contents (sha256, reader, title, text, pages, blank) "
                         "VALUES (?, ?, ?, ?, ?, ?)",
                         [*content, document.title, document.text, pages_of(document, chunks),
                          json.dumps(document.pages_without_text)])
            number = self._db.number(_CONTENT, content)
            if not self._db.row("SELECT 1 FROM chunks WHERE content = ?", [number]):
                self._insert(number, chunks, unit)
            self._db.run_many("DELETE FROM pending WHERE key = ?", [(key(c),) for c in chunks])
            self._point(path, number, product, version, collection)

    def remove(self, document: int) -> None:
        """Forget a document, by its id, and all that only it held. Raises NotFound."""
        with self._write():
            if not self._db.run("DELETE FROM documents WHERE id = ?", [document]):
                raise NotFound(f"no document {document} in the store", hint="edged store list")
            self._sweep()

    def _insert(self, content: int, chunks: Sequence[Chunk], unit: np.ndarray) -> None:
        first = self._db.number("SELECT coalesce(max(id), 0) + 1 FROM chunks")
        ids = range(first, first + len(chunks))
        self._db.run_many(
            "INSERT INTO chunks VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            [(i, content, key(c), c.text, c.start, c.end, c.page, c.page_end, json.dumps(c.headings))
             for i, c in zip(ids, chunks, strict=True)],
        )
        self._db.run_many("INSERT INTO vectors VALUES (?, ?)",
                             [(i, v.tobytes()) for i, v in zip(ids, unit, strict=True)])
        if self.has_words:
            self._db.run_many("INSERT INTO words (rowid, text) VALUES (?, ?)",
                                 [(i, " ".join(words(indexed(c)))) for i, c in zip(ids, chunks, strict=True)])
        for at in range(0, len(chunks), BLOCK):
            codes, error = vectors.encode(unit[at : at + BLOCK])
            self._db.run("INSERT INTO blocks (content, first, n, error, codes) VALUES (?, ?, ?, ?, ?)",
                             [content, first + at, len(codes), error, codes.tobytes()])

    def _point(self, path: str, content: int, product: str, version: str, collection: str) -> None:
        self._db.run("INSERT INTO documents (collection, path, content, product, version) VALUES (?, ?, ?, ?, ?) "
                     "ON CONFLICT (collection, path) DO UPDATE SET content = excluded.content, "
                     "product = excluded.product, version = excluded.version",
                     [collection, path, content, product, version])
        self._db.run("DELETE FROM pending WHERE (collection, path) = (?, ?)", [collection, path])
        self._sweep()

    def _sweep(self) -> None:
        """Delete contents that no document names any more, and vectors kept in vain, and count the change."""
        sql = "SELECT id FROM contents WHERE id NOT IN (SELECT content FROM documents)"
        for (content,) in self._db.rows(sql):
            of = "(SELECT id FROM chunks WHERE content = ?)"
            if self.has_words:
                self._db.run(f"DELETE FROM words WHERE rowid IN {of}", [content])
            self._db.run(f"DELETE FROM vectors WHERE chunk IN {of}", [content])
            for table in ("blocks", "chunks"):
                self._db.run(f"DELETE FROM {table} WHERE content = ?", [content])
            self._db.run("DELETE FROM contents WHERE id = ?", [content])
        self._db.run("UPDATE meta SET value = value + 1 WHERE key = 'generation'")
        self._db.run("DELETE FROM pending WHERE generation <= ?", [self._generation() - UNFINISHED])

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
        return [row[0] for row in self._db.rows(sql, [match, *values, k])]

    def holding(self, chunks: Sequence[int], phrase: Sequence[str]) -> set[int]:
        """Those of the chunks that hold the words in a row."""
        found: set[int] = set()
        for part in parts(chunks) if self.has_words else ():
            sql = f"SELECT rowid FROM words WHERE words MATCH ? AND rowid IN ({marks(part)})"
            found.update(row[0] for row in self._db.rows(sql, [_quoted(phrase), *part]))
        return found

    @property
    def n_chunks(self) -> int:
        """How many chunks there are."""
        return self._db.number("SELECT count(*) FROM chunks")

    def frequency(self, phrase: Sequence[str]) -> int:
        """How many chunks hold the words in a row; remembered until the store changes."""
        if not self.has_words:
            return 0
        generation = self._generation()
        if self._frequencies[0] != generation or len(self._frequencies[1]) >= _REMEMBERED:
            self._frequencies = generation, {}
        known = self._frequencies[1]
        if (words := tuple(phrase)) not in known:
            sql = "SELECT count(*) FROM words WHERE words MATCH ?"
            known[words] = self._db.number(sql, [_quoted(phrase)])
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
        return self._nearest.find(embedded, k, self._generation(), *only.contents())

    def chunks(self, ids: Iterable[int], only: Filter = Filter()) -> list[Stored]:
        """Chunks by id, in the order given, with their sources that pass; those that are gone are left out."""
        found = {}
        wanted = list(ids)
        for part in parts(wanted):
            sql = ("SELECT id, content, text, start, end, page, page_end, headings FROM chunks "
                   f"WHERE id IN ({marks(part)})")
            for i, content, text, start, end, page, page_end, headings in self._db.rows(sql, part):
                chunk = Chunk(text, start, end, page, page_end, tuple(json.loads(headings)))
                found[i] = Stored(i, content, chunk, self._sources(content, only))
        return [found[i] for i in wanted if i in found]

    def _sources(self, content: int, only: Filter) -> tuple[Source, ...]:
        where, values = only.condition()
        sql = ("SELECT path, title, product, version, collection, documents.id FROM documents JOIN contents "
               f"ON contents.id = content WHERE content = ? AND {where} ORDER BY collection, path")
        return tuple(Source(*row) for row in self._db.rows(sql, [content, *values]))

    def quote(self, content: int, start: int, end: int) -> str:
        """text[start:end] of a content. Raises NotFound."""
        row = self._db.row("SELECT substr(text, ?, ?) FROM contents WHERE id = ?", [start + 1, end - start, content])
        if row is None:
            raise NotFound("the document is no longer in the store")
        return str(row[0])

    def _generation(self) -> int:
        return self._db.number("SELECT value FROM meta WHERE key = 'generation'")

    # -- administration ------------------------------------------------------------------------------------------------

    def documents(self, only: Filter = Filter()) -> list[DocumentRow]:
        """The documents, by collection and path."""
        where, values = only.condition()
        sql = f"{_DOCUMENTS} WHERE {where} ORDER BY collection, path"
        return [_document(row) for row in self._db.rows(sql, values)]

    def document_of(self, content: Content) -> DocumentRow | None:
        """The first document with this content."""
        row = self._db.row(f"{_DOCUMENTS} WHERE (sha256, reader) = (?, ?) ORDER BY collection, path", content)
        return _document(row) if row else None

    def export(self, only: Filter = Filter()) -> Iterator[dict[str, Any]]:
        """The chunks of the documents, in order, with what they belong to; one state of the store."""
        with self.snapshot():
            for row in self.documents(only):
                yield from admin.export(self._db, row.id)

    def stats(self) -> dict[str, int]:
        """Rows of every table, pages, collections, and the bytes of the file."""
        return admin.stats(self._db, self.has_words)

    def check(self) -> None:
        """Raise BadStore, naming what is wrong, unless the file is whole and its tables agree."""
        admin.check(self._db, self.has_words)


_CONTENT = "SELECT id FROM contents WHERE (sha256, reader) = (?, ?)"
_DOCUMENTS = ("SELECT documents.id, collection, path, title, product, version, sha256, pages, blank, "
              "(SELECT count(*) FROM chunks WHERE chunks.content = contents.id) "
              "FROM documents JOIN contents ON contents.id = documents.content")  # fmt: skip


def _document(row: tuple[Any, ...]) -> DocumentRow:
    found = DocumentRow(*row)
    return found._replace(blank=tuple(json.loads(row[8])))


def pages_of(document: Document, chunks: Sequence[Chunk] = ()) -> int | None:
    """How many pages a document has; None if its format has none."""
    pages = [*(b.page for b in document.blocks), *(c.page_end for c in chunks), *document.pages_without_text]
    return max((page for page in pages if page is not None), default=None)


def _quoted(phrase: Sequence[str]) -> str:
    """A phrase as FTS5 reads it; words hold no quotation marks."""
    return f'"{" ".join(phrase)}"'
