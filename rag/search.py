"""Find passages: words and meaning, fused.

The ranks of BM25 and of the cosine are fused by reciprocal rank (Cormack, Clarke and Buettcher, SIGIR 2009). A chunk
that holds the codes of the question exactly goes before all that only come near. Neighbouring chunks of one document
become one passage. Raises what `embed` and the store raise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from edged.rag.document import indexed
from edged.rag.store import Filter, Source, Store, Stored
from edged.rag.words import codes, phrases

Embed = Callable[[Sequence[str]], np.ndarray]  # n texts -> f32 (n, dim)

RRF = 60  # the constant of the paper
POOL = 50  # ranks of each list that are fused
EVERYWHERE = Filter()


@dataclass(frozen=True)
class Passage:
    """What was found: `text` is text[start:end] of a content; `headings` are those of its best chunk.

    `indexed` is what the store knows it by (headings, repeated table headers). `score` orders; `cosine` is that of
    its best chunk, 0 if the meaning was not compared. `parts` are its chunks, each as a passage, if they are several.
    """

    content: int
    start: int
    end: int
    text: str
    indexed: str
    page: int | None
    page_end: int | None
    headings: tuple[str, ...]
    sources: tuple[Source, ...]
    score: float
    cosine: float
    parts: tuple[Passage, ...] = ()


def search(store: Store, embed: Embed | None, query: str, k: int = 5, only: Filter = EVERYWHERE) -> list[Passage]:
    """The passages for a question, best first, made of at most k chunks. Without `embed`, by words alone."""
    return near(store, query, embed([query])[0] if embed else None, k, only) if query.strip() else []


def near(store: Store, query: str, vector: np.ndarray | None, k: int = 5, only: Filter = EVERYWHERE) -> list[Passage]:
    """As `search`, for a question whose vector f32 (dim,) is known; None: by words alone."""
    if not query.strip() or k < 1:
        return []
    with store.snapshot():
        by_words = store.matching(phrases(query), POOL, only)
        by_code = store.matching(wanted, POOL, only) if (wanted := codes(query)) else []
        by_meaning = store.nearest(vector, POOL, only) if vector is not None else []
        cosines = dict(by_meaning)
        scores: dict[int, float] = {}
        for ranking in (by_words, [chunk for chunk, _ in by_meaning]):
            for rank, chunk in enumerate(ranking, 1):
                scores[chunk] = scores.get(chunk, 0.0) + 1 / (RRF + rank)
        for code in wanted if by_code else ():
            for chunk in store.holding(by_code, code):
                # all codes together give more than both lists can
                scores[chunk] = scores.get(chunk, 0.0) + 2 / RRF / len(wanted)
        best = sorted(scores, key=lambda chunk: (-scores[chunk], chunk))[:k]
        found = store.chunks(best, only)
        return [_passage(store, run, scores, cosines) for run in _runs(found)]


def _runs(found: list[Stored]) -> list[list[Stored]]:
    """Chunks in order of rank -> runs of neighbours, each in the order of the document, by the rank of their best."""
    by_id = {stored.id: stored for stored in found}
    runs: list[list[Stored]] = []
    taken: set[int] = set()
    for stored in found:
        if stored.id in taken:
            continue
        first = last = stored.id
        while (before := by_id.get(first - 1)) and before.content == stored.content:
            first -= 1
        while (after := by_id.get(last + 1)) and after.content == stored.content:
            last += 1
        taken.update(range(first, last + 1))
        runs.append([by_id[i] for i in range(first, last + 1)])
    return runs


def _passage(store: Store, run: list[Stored], scores: dict[int, float], cosines: dict[int, float]) -> Passage:
    best = max(run, key=lambda stored: scores[stored.id])
    start, end = min(s.chunk.start for s in run), max(s.chunk.end for s in run)
    return Passage(
        content=best.content,
        start=start,
        end=end,
        text=store.quote(best.content, start, end),
        indexed="\n".join(indexed(s.chunk) for s in run),
        page=run[0].chunk.page,
        page_end=run[-1].chunk.page_end,
        headings=best.chunk.headings,
        sources=best.sources,
        score=scores[best.id],
        cosine=max(cosines.get(s.id, 0.0) for s in run),
        parts=tuple(_passage(store, [s], scores, cosines) for s in run) if len(run) > 1 else (),
    )
