"""Small manuals and an embedder for tests: a vector of hashed words, near where texts share words."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from zlib import crc32

import numpy as np

from edged.rag.document import Chunk, Document
from edged.rag.store import Binding, Content, Filter, Store, indexed
from edged.rag.words import words

DIM = 384
BINDING = Binding("hash", "crc32", DIM, "mean")


def embed(texts: Sequence[str]) -> np.ndarray:
    out = np.zeros((len(texts), DIM), np.float32)
    for row, text in zip(out, texts, strict=True):
        for word in words(text):
            row[crc32(word.encode()) % DIM] += 1
    return out


def manual(paragraphs: Sequence[str], title: str = "Manual") -> tuple[Document, list[Chunk]]:
    """A document with one chunk and one page per paragraph."""
    text, chunks = "", []
    for page, paragraph in enumerate(paragraphs, 1):
        chunks.append(Chunk(paragraph, len(text), len(text) + len(paragraph), page, page, (title,)))
        text += paragraph + "\n"
    return Document(title, text, (), ()), chunks


def put(store: Store, path: str, *paragraphs: str, product: str = "", version: str = "",
        collection: str = "default") -> None:
    """Store a manual of these paragraphs."""
    document, chunks = manual(paragraphs)
    content = Content(sha256(document.text.encode()).hexdigest(), "pdf" if path.endswith(".pdf") else "plain")
    store.put(path, content, document, chunks, embed([indexed(c) for c in chunks]), product, version, collection)


def remove(store: Store, path: str) -> None:
    """Remove the one document of this path."""
    (row,) = store.documents(Filter(document=path))
    store.remove(row.id)


def new(folder: Path) -> Store:
    """The store of a folder, made if need be, bound to `embed`."""
    store = Store(folder / "manuals.db", create=True)
    store.bind(BINDING)
    return store
