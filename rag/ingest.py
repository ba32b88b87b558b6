"""Put documents into the store, one transaction each: what is there already costs a hash, what was there in part only
the new chunks.

    done = ingest_one(store, "/m/qv310.pdf", data, read, split, embed, collection="pumps")

An ingest that was cut off is resumed by starting it again, in the middle of a document too: its vectors are kept as
they are made. A document that cannot be read is reported, not raised. Raises what `embed` and the store raise.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from edged.errors import BadDocument
from edged.rag.document import Chunk, Document, indexed, key
from edged.rag.formats import format_of
from edged.rag.search import Embed
from edged.rag.store import DEFAULT, Content, Store, pages_of
from edged.rag.vectors import unit

BATCH = 32  # chunks embedded at a time
KEPT = 256  # chunks whose vectors are kept at a time
Outcome = Literal["added", "unchanged", "failed"]
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Done:
    """What became of one document. `embedded` of its `chunks` were new; `pages` None: its format has none; `error` says
    why it failed.
    """

    path: str
    outcome: Outcome
    chunks: int = 0
    embedded: int = 0
    pages: int | None = None
    pages_without_text: tuple[int, ...] = ()
    error: str = ""


def ingest_one(store: Store, name: str, data: bytes, read: Callable[[str, bytes], Document],
               split: Callable[[Document], Sequence[Chunk]], embed: Embed, *, collection: str = DEFAULT,
               product: str | None = None, version: str | None = None, progress: Progress | None = None) -> Done:
    """Store a document in place of what `name` held in the collection ('': DEFAULT).

    product and version describe it; None: as the document is described already.
    progress(done, total): chunks of it that have their vectors, told at the beginning and after each batch.
    """
    collection = collection or DEFAULT
    try:
        _check_text("the name", name)
        known = store.described(name, collection)
        about = (known[0] if product is None else product, known[1] if version is None else version, collection)
        content = Content(hashlib.sha256(data).hexdigest(), format_of(name).module)
        if store.holds(name, content, *about):
            return _known(store, name, content, "unchanged")
        if store.refer(name, content, *about):
            return _known(store, name, content, "added")
        document = read(name, data)
        _check_text("the text", document.text + document.title)
        chunks = split(document)
    except BadDocument as e:
        return Done(name, "failed", error=str(e))
    blank = document.pages_without_text
    if not chunks:
        error = "no text in it" + (", only pictures of pages: scan it with text recognition" if blank else "")
        return Done(name, "failed", pages=pages_of(document), pages_without_text=blank, error=error)
    vectors, embedded = _vectors(store, chunks, embed, lambda made: store.keep(name, made, collection),
                                 progress or (lambda done, total: None))
    store.put(name, content, document, chunks, vectors, *about)
    return Done(name, "added", len(chunks), embedded, pages_of(document, chunks), blank)


def _check_text(what: str, text: str) -> None:
    """Raise BadDocument for half a UTF-16 character, which no file can hold."""
    try:
        text.encode()
    except UnicodeEncodeError as e:
        raise BadDocument(f"{what} is not valid Unicode at character {e.start}") from e


def _known(store: Store, name: str, content: Content, outcome: Outcome) -> Done:
    """A document whose content was there already."""
    stored = store.document_of(content)
    if stored is None:  # removed since, by another process
        return Done(name, outcome)
    return Done(name, outcome, stored.chunks, 0, stored.pages, stored.blank)


def _vectors(store: Store, chunks: Sequence[Chunk], embed: Embed, keep: Callable[[dict[str, np.ndarray]], None],
             progress: Progress) -> tuple[np.ndarray, int]:
    """The vector of each chunk, f32 (n, k), and how many had to be computed; `keep` is given them as they are made."""
    by_key = {key(c): c for c in chunks}
    known = store.known_vectors(chunks)
    new = [name for name in by_key if name not in known]
    progress(len(known), len(by_key))
    unkept: dict[str, np.ndarray] = {}
    for at in range(0, len(new), BATCH):
        batch = new[at : at + BATCH]
        made = unit(embed([indexed(by_key[name]) for name in batch]))
        unkept.update(zip(batch, made, strict=True))
        if len(unkept) >= KEPT:
            keep(unkept)
            known.update(unkept)
            unkept = {}
        progress(len(known) + len(unkept), len(by_key))
    known.update(unkept)
    return np.stack([known[key(c)] for c in chunks]), len(new)
