"""Put files into the store, one transaction each: what is there already costs a hash, what was there in part only the
new chunks.

    for done in ingest(store, paths, read, split, embed): ...

An ingest that was cut off is resumed by starting it again. A file that cannot be read is reported and does not keep
the others from their turn. Raises what `embed` and the store raise.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from edged.errors import EdgedError
from edged.rag.document import Chunk, Document
from edged.rag.search import Embed
from edged.rag.store import Store, indexed, key
from edged.rag.vectors import unit

BATCH = 32  # chunks embedded at a time
Outcome = Literal["added", "unchanged", "failed"]


@dataclass(frozen=True)
class Done:
    """What became of one file. `embedded` of its `chunks` were new; `error` says why it failed."""

    path: str
    outcome: Outcome
    chunks: int = 0
    embedded: int = 0
    pages_without_text: tuple[int, ...] = ()
    error: str = ""


def ingest(store: Store, paths: Iterable[Path], read: Callable[[Path], Document],
           split: Callable[[Document], Sequence[Chunk]], embed: Embed, *, product: str = "",
           version: str = "") -> Iterator[Done]:
    """Store each file in turn, in place of what its path held; product and version describe them all."""
    for path in paths:
        name = str(path.resolve())
        try:
            with path.open("rb") as file:
                digest = _digest(file)
            if store.holds(name, digest, product, version) or store.refer(name, digest, product, version):
                yield Done(name, "unchanged")
                continue
            document = read(path)
        except (EdgedError, OSError) as e:
            yield Done(name, "failed", error=str(e))
            continue
        chunks = split(document)
        if not chunks:
            yield Done(name, "failed", pages_without_text=document.pages_without_text, error="no text in it")
            continue
        vectors, embedded = _vectors(store, chunks, embed)
        store.put(name, digest, document, chunks, vectors, product, version)
        yield Done(name, "added", len(chunks), embedded, document.pages_without_text)


def _digest(file: Iterable[bytes]) -> str:
    found = hashlib.sha256()
    for part in file:
        found.update(part)
    return found.hexdigest()


def _vectors(store: Store, chunks: Sequence[Chunk], embed: Embed) -> tuple[np.ndarray, int]:
    """The vector of each chunk, f32 (n, k), and how many had to be computed."""
    known = store.known_vectors(chunks)
    new = list({key(c): c for c in chunks if key(c) not in known}.values())
    for at in range(0, len(new), BATCH):
        batch = new[at : at + BATCH]
        known.update(zip(map(key, batch), unit(embed([indexed(c) for c in batch])), strict=True))
    return np.stack([known[key(c)] for c in chunks]), len(new)
