"""The exact nearest of the vectors in a store: a scan of their codes, then the order by the vectors themselves.

Few codes are kept in memory between searches. More are read anew each time, block by block, while a second thread
scores what was read: SQLite and the kernel both let other threads run. Raises what the database raises.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from edged.rag import vectors
from edged.rag.database import Database

KEEP = 48 << 20  # bytes of codes that are kept in memory; of MiniLM's, those of 123 000 chunks
BATCH = 4096  # vectors that are handed to the second thread at a time
AHEAD = 4  # batches that may wait for it
FEW = 500  # parameters in one statement; old SQLite allows 999


@dataclass(frozen=True)
class Codes:
    """What the scan reads: rows u8 (n, bytes), the chunk of each i64 (n,), the largest error among them."""

    rows: np.ndarray
    chunks: np.ndarray
    error: float


class Nearest:
    """Searches `vectors` and `blocks` (store.py) through an open connection."""

    def __init__(self, db: Database, scan: vectors.Scan) -> None:
        self._db, self._scan = db, scan
        self._kept: tuple[int, Codes] | None = None

    def find(self, embedded: np.ndarray, k: int, generation: int, within: str = "",
             values: Sequence[str] = ()) -> list[tuple[int, float]]:
        """The k chunks of largest cosine with embedded: f32 (dim,), and the cosines, best first.

        `within`: a subquery with parameters `values` for the contents to look at; '' for all. All must see one state of
        the store, which `generation` numbers.
        """
        query = vectors.unit(embedded[None])[0]
        score = self._scan(query)
        if within:
            chunks, scores, error = self._stream(score, f"WHERE content IN ({within})", values)
        elif (kept := self._keep(generation)) is not None:
            if not len(kept.rows):
                return []
            chunks, scores, error = kept.chunks, score(kept.rows), kept.error
        else:
            chunks, scores, error = self._stream(score, "", ())
        best = chunks[vectors.candidates(scores, k, vectors.margin(query, error))].tolist()
        return sorted(self._exact(query, best), key=lambda e: (-e[1], e[0]))[:k]

    def _exact(self, query: np.ndarray, chunks: Sequence[int]) -> Iterator[tuple[int, float]]:
        """Chunks and their cosines, in float64."""
        wide = query.astype(np.float64)
        for part in parts(chunks):
            rows = self._db.rows(f"SELECT chunk, data FROM vectors WHERE chunk IN ({marks(part)})", part)
            stored = np.frombuffer(b"".join(data for _, data in rows), np.float32).reshape(len(rows), -1)
            cosines = stored.astype(np.float64) @ wide
            yield from ((chunk, float(c)) for (chunk, _), c in zip(rows, cosines, strict=True))

    def _keep(self, generation: int) -> Codes | None:
        """All codes, or None if they are too many."""
        if self._kept is not None and self._kept[0] == generation:
            return self._kept[1]
        self._kept = None
        n, size = self._db.rows("SELECT coalesce(sum(n), 0), coalesce(sum(length(codes)), 0) FROM blocks")[0]
        if size > KEEP:
            return None
        rows, chunks = np.empty((n, size // n if n else 0), np.uint8), np.empty(n, np.int64)
        at, error = 0, 0.0
        for block in self._blocks("", ()):
            rows[at : at + len(block.rows)] = block.rows
            chunks[at : at + len(block.rows)] = block.chunks
            at, error = at + len(block.rows), max(error, block.error)
        codes = Codes(rows, chunks, error)
        self._kept = generation, codes
        return codes

    def _stream(self, score: vectors.Score, where: str, values: Sequence[str]) -> tuple[np.ndarray, np.ndarray, float]:
        """Chunks i64 (n,), scores f32 (n,) and the largest error, in memory that does not grow with the codes."""
        from concurrent.futures import Future, ThreadPoolExecutor

        chunks, waiting, error = [np.empty(0, np.int64)], list[Future[list[np.ndarray]]](), 0.0
        with ThreadPoolExecutor(1) as second:
            for batch in self._batches(where, values):
                chunks += [block.chunks for block in batch]
                error = max(error, *(block.error for block in batch))
                waiting.append(second.submit(lambda rows: [score(r) for r in rows], [block.rows for block in batch]))
                if len(waiting) > AHEAD:
                    waiting[-AHEAD - 1].result()
            scores = [part for future in waiting for part in future.result()]
        return np.concatenate(chunks), np.concatenate([np.empty(0, np.float32), *scores]), error

    def _batches(self, where: str, values: Sequence[str]) -> Iterator[list[Codes]]:
        """Blocks in lists of about BATCH vectors."""
        batch, n = list[Codes](), 0
        for block in self._blocks(where, values):
            batch.append(block)
            n += len(block.rows)
            if n >= BATCH:
                yield batch
                batch, n = [], 0
        if batch:
            yield batch

    def _blocks(self, where: str, values: Sequence[str]) -> Iterator[Codes]:
        listed = self._db.rows(f"SELECT id, first, n, error FROM blocks {where}", values)
        for block, first, n, error in listed:
            codes = np.frombuffer(self._db.blob("blocks", "codes", block), np.uint8)
            yield Codes(codes.reshape(n, -1), np.arange(first, first + n), error)


def parts(values: Sequence[object]) -> Iterator[list[object]]:
    """Values in lists that fit into one statement."""
    return (list(values[i : i + FEW]) for i in range(0, len(values), FEW))


def marks(values: Sequence[object]) -> str:
    """A question mark for each value."""
    return ", ".join("?" * len(values))
