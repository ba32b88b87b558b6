"""A store of manuals together with the model that fills and questions it.

    manuals = Manuals(path, embedding)
    manuals.ingest("/m/qv310.pdf", data)
    manuals.quote(manuals.look("What supply voltage is permitted?")).text

One thread uses a Manuals; several may be open on one file. The store is opened at the first use, and again when the
file was replaced or removed since. Without an embedding model, search goes by words alone. Raises NotFound where there
is no store, BadStore, DiskFull, BadRequest for a question that is too long, and what `embedding` raises.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import numpy as np

from edged.errors import BadStore, Busy, ContextFull, NotFound
from edged.rag import answer, chunk, formats, vectors
from edged.rag.answer import LEAST, Answer, Evidence
from edged.rag.document import Chunk, Document
from edged.rag.ingest import Done, Progress, ingest_one
from edged.rag.search import EVERYWHERE, Passage, search
from edged.rag.store import DEFAULT, Binding, DocumentRow, Filter, Store

_Identity = tuple[int, int]  # device and inode
_LEAVING = threading.Lock()
_OPEN: weakref.WeakSet[Manuals] = weakref.WeakSet()  # those of this process, guarded by it

LONGEST = 20_000  # characters of a question; more are not even looked at
PATIENCE = 600  # seconds that an ingest waits for a model with no room for one more request


class Embedding(Protocol):
    """The embedding model, as far as manuals see it. n_ctx: most tokens of a text."""

    name: str
    fingerprint: str
    dim: int
    pooling: str
    n_ctx: int

    def embed(self, texts: Sequence[str], background: bool = False) -> np.ndarray:
        """f32 (texts, dim), rows of length 1; waits. background: gives way to all other work of the model."""

    def count_tokens(self, text: str) -> int:
        """Tokens of a text, with those that the model puts around it."""


class Manuals:
    """See the module. chunk: most tokens of a chunk of a document that is ingested."""

    def __init__(self, path: str | Path, embedding: Embedding | None, *, scan: vectors.Scan = vectors.scan,
                 chunk: int = 200) -> None:
        self.path = Path(path)
        self.embedding = embedding
        self._scan = scan
        self._chunk = chunk
        self._open: Store | None = None
        self._file: _Identity | None = None  # of what is open
        self._log: _Identity | None = None  # of its write-ahead log
        self._checked = False  # that it was filled by this model

    def search(self, question: str, *, passages: int = 5, only: Filter = EVERYWHERE) -> list[Passage]:
        """The passages for a question, best first."""
        self._check(question)
        found = search(self._store(), self._embed if self.embedding else None, question, passages, only)
        if not found:
            self._check_filter(only)
        return found

    def look(self, question: str, *, passages: int = 5, least: float = LEAST, only: Filter = EVERYWHERE) -> Evidence:
        """What may answer a question."""
        self._check(question)
        embed = self._embed if self.embedding else None
        found = answer.look(self._store(), embed, question, k=passages, least=least, only=only)
        if not found.passages:
            self._check_filter(only)
        return found

    def quote(self, found: Evidence) -> Answer:
        """The answer that is made of the best sentences of what was found, or a refusal."""
        return answer.quote(self._store(), self._embed if self.embedding else None, found)

    def ingest(self, name: str, data: bytes, *, collection: str = DEFAULT,
               product: str | None = None, version: str | None = None,
               progress: Progress = lambda done, total: None) -> Done:
        """Store a document in place of what `name` held in the collection; makes the store if there is none.

        progress(done, total): its chunks, (0, 0) while it is read; what it raises ends the ingest. One that finds the
        model busy waits for it, PATIENCE at most.
        """
        embedding = self._model()
        store = self._store(create=True)
        store.bind(_binding(embedding))
        told = (0, 0)

        def tell(done: int, total: int) -> None:
            nonlocal told
            told = done, total
            progress(done, total)

        def alive() -> None:
            progress(*told)

        def count(text: str) -> int:
            alive()
            return embedding.count_tokens(text)

        def split(document: Document) -> list[Chunk]:
            return chunk.split(document, count, min(self._chunk, embedding.n_ctx))

        def embed(texts: Sequence[str]) -> np.ndarray:
            patience = time.monotonic() + PATIENCE
            while True:
                try:
                    return self._embed(texts, background=True)
                except Busy as error:
                    if time.monotonic() + error.retry_after > patience:
                        raise
                    alive()
                    time.sleep(error.retry_after)

        done = ingest_one(store, name, data, lambda n, d: formats.parse(n, d, alive=alive), split, embed,
                          collection=collection, product=product, version=version, progress=tell)
        if self._file != _identity(self.path):
            raise BadStore(f"{self.path} was removed or replaced while {name} was taken in", hint="ingest it again")
        self._log = _identity(self._beside("-wal"))
        return done

    def probe(self) -> None:
        """Open the store as the first question would, if there is one. Raises what that raises."""
        with suppress(NotFound):
            self._store()
        there = self.path if self.path.exists() else self.path.parent
        if there.exists() and not os.access(there, os.W_OK):
            raise BadStore(f"{there} may not be written", hint="no manual can be taken in: see who owns it")

    def documents(self, only: Filter = EVERYWHERE) -> list[DocumentRow]:
        """The documents, by collection and path; none where there is no store yet."""
        try:
            return self._store(check=False).documents(only)
        except NotFound:
            return []

    def remove(self, document: int) -> None:
        """Forget a document, by its id."""
        self._store(check=False).remove(document)

    @property
    def lacks_words(self) -> bool:
        """Whether the store that is open is searched by meaning alone, for want of FTS5."""
        store = self._open
        return store is not None and not store.has_words

    def close(self) -> None:
        """Close the file."""
        if self._open is not None:
            self._open.close()
        self._open = self._file = self._log = None

    def _store(self, *, create: bool = False, check: bool = True) -> Store:
        """The store as it is now. check: it must be filled by this embedding model, if by any."""
        if self._open is not None and self._file != _identity(self.path):
            self._leave()
        if self._open is None:
            self._refuse_log()
            before = _identity(self.path)  # if another file takes its place meanwhile, that is seen at the next use
            self._open = Store(self.path, create=create, scan=self._scan)
            self._file, self._checked = before or _identity(self.path), False
            self._log = _identity(self._beside("-wal"))
            with _LEAVING:
                _OPEN.add(self)
        if check and not self._checked and self.embedding is not None:
            self._open.check_binding(_binding(self.embedding))
            self._checked = self._open.binding() is not None
        return self._open

    def _leave(self) -> None:
        """Close a file in whose place there is another, or none; its log must not be taken for that of the other."""
        with _LEAVING:
            log = self._beside("-wal")
            if self._log is not None and _identity(log) == self._log:
                log.unlink(missing_ok=True)
                self._beside("-shm").unlink(missing_ok=True)
            self.close()

    def _refuse_log(self) -> None:
        """Remove a log that belongs to another file, in whose place the store was put while others here have it open:
        SQLite would take it for the new store's and write the old one over it."""
        with _LEAVING:
            file, log = _identity(self.path), _identity(self._beside("-wal"))
            if log and any(other._log == log and other._file != file for other in _OPEN if other._open is not None):
                self._beside("-wal").unlink(missing_ok=True)
                self._beside("-shm").unlink(missing_ok=True)

    def _beside(self, suffix: str) -> Path:
        return self.path.with_name(self.path.name + suffix)

    def _check_filter(self, only: Filter) -> None:
        """Raise NotFound for a filter that no document passes, with what there is: nothing in it is not an answer."""
        rows = self._store().documents()
        if not rows or only == EVERYWHERE or self._store().documents(only):
            return
        for name in ("collection", "product", "version"):
            there, value = {getattr(row, name) for row in rows}, getattr(only, name)
            if value and value not in there:
                listed = ", ".join(sorted(there - {""})[:20]) or "none"
                raise NotFound(f"no document has the {name} {value!r}", hint=f"there are: {listed}")
        wanted = ", ".join(f"{name} {value!r}" for name, value in vars(only).items() if value)
        raise NotFound(f"no document has {wanted}", hint="edged store list, or GET /v1/documents, shows what there is")

    def _model(self) -> Embedding:
        if self.embedding is None:
            raise NotFound("there is no embedding model", hint="set embedding.model", code="model_not_found")
        return self.embedding

    def _check(self, question: str) -> None:
        """Raise ContextFull for a question that the model cannot take as a whole."""
        if len(question) > LONGEST:
            raise ContextFull(f"the question has {len(question)} characters; at most {LONGEST} are read",
                              hint="ask more briefly")
        if self.embedding is not None:
            n, most = self.embedding.count_tokens(question), self.embedding.n_ctx
            if n > most:
                raise ContextFull(f"the question has {n} tokens; the embedding model {self.embedding.name} takes "
                                  f"{most}", hint="ask more briefly")

    def _embed(self, texts: Sequence[str], background: bool = False) -> np.ndarray:
        embedding = self._model()
        return embedding.embed([_fitted(text, embedding.count_tokens, embedding.n_ctx) for text in texts], background)


def _binding(embedding: Embedding) -> Binding:
    return Binding(embedding.name, embedding.fingerprint, embedding.dim, embedding.pooling)


def _identity(path: Path) -> _Identity | None:
    """What a file is known by; None: there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _fitted(text: str, count_tokens: Callable[[str], int], most: int) -> str:
    """The end of a text that has at most so many tokens: chunks have their headings first, outermost first."""
    while count_tokens(text) > most:
        _, newline, below = text.partition("\n")
        text = below if newline else text[(len(text) + 1) // 2 :]
    return text
