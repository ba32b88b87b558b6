"""How good search and answers are, on questions with known answers: `evaluate(store, embed, read(path))`.

A line of the file is a JSON object: `question`, `gold` (words that the answer must hold; null: not in the manuals),
and, where only one place is right, `path` of the document, `section` (its heading) and `page`. Raises BadRequest for a
malformed line.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from edged.errors import BadRequest
from edged.rag import answer
from edged.rag.search import Embed, Passage, search
from edged.rag.store import Store
from edged.rag.words import contains, words


@dataclass(frozen=True)
class Question:
    """`gold` None: the manuals do not hold the answer."""

    question: str
    gold: str | None
    path: str = ""
    section: str = ""
    page: int | None = None


@dataclass(frozen=True)
class Report:
    """Rates are 0 .. 1, None where no question of that kind was asked; `seconds` is the median of one answer."""

    answerable: int
    unanswerable: int
    hit_at_1: float | None
    hit_at_3: float | None
    mrr: float | None
    answered: float | None  # of the answerable
    right: float | None  # of the answerable: a quote holds the gold words
    precision: float | None  # of all answers given
    refused: float | None  # of the unanswerable
    seconds: float


def read(path: Path) -> list[Question]:
    """The questions of a JSONL file; blank lines are skipped."""
    questions = []
    for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
        if not line.strip():
            continue
        try:
            questions.append(Question(**json.loads(line)))
        except (ValueError, TypeError) as e:
            raise BadRequest(f"{path}, line {number}: {e}",
                             hint='a line is {"question": ..., "gold": ... or null, "path", "section", "page"}') from e
    return questions


def evaluate(store: Store, embed: Embed | None, questions: Sequence[Question], *, k: int = 10,
             least: float = answer.LEAST) -> Report:
    """Ask every question and compare."""
    ranks: list[int] = []
    answered, right, refused, seconds = [], [], [], []
    for asked in questions:
        start = time.perf_counter()
        found = answer.extract(store, embed, asked.question, least=least)
        seconds.append(time.perf_counter() - start)
        if asked.gold is None:
            refused.append(found.refused)
            continue
        ranks.append(_rank(search(store, embed, asked.question, k), asked))
        answered.append(not found.refused)
        right.append(any(_holds(q.text, asked.gold) and _from(q.passage, asked) for q in found.quotes))
    given = sum(answered) + len(refused) - sum(refused)
    return Report(
        answerable=len(ranks),
        unanswerable=len(refused),
        hit_at_1=_mean([rank == 1 for rank in ranks]),
        hit_at_3=_mean([1 <= rank <= 3 for rank in ranks]),
        mrr=_mean([1 / rank if rank else 0.0 for rank in ranks]),
        answered=_mean(answered),
        right=_mean(right),
        precision=sum(right) / given if given else None,
        refused=_mean(refused),
        seconds=statistics.median(seconds) if seconds else 0.0,
    )


def threshold(store: Store, embed: Embed | None, questions: Sequence[Question]) -> float:
    """The least confidence that parts answerable from unanswerable questions best (largest sum of both rates).

    Find it on other manuals than those it is then used with. Raises BadRequest unless both kinds are asked.
    """
    sides: tuple[list[float], list[float]] = ([], [])
    for asked in questions:
        sides[asked.gold is not None].append(answer.extract(store, embed, asked.question, least=0.0).confidence)
    absent, present = sides
    if not absent or not present:
        raise BadRequest("a threshold needs questions with and without an answer in the manuals")

    def gain(least: float) -> float:
        return sum(c >= least for c in present) / len(present) + sum(c < least for c in absent) / len(absent)

    ordered = sorted({*absent, *present})
    between = [(a + b) / 2 for a, b in pairwise(ordered)]
    return max(between, key=gain, default=ordered[0])


def _rank(passages: Sequence[Passage], asked: Question) -> int:
    """The rank of the first passage that holds the gold words, from 1; 0 if none does."""
    hits = (n for n, p in enumerate(passages, 1) if _holds(p.indexed, asked.gold or "") and _from(p, asked))
    return next(hits, 0)


def _holds(text: str, gold: str) -> bool:
    return contains(words(text), words(gold))


def _from(passage: Passage, asked: Question) -> bool:
    """Whether a passage is of the place asked for; a document without pages is right on every page."""
    page, end = passage.page, passage.page_end or passage.page
    return (
        (not asked.path or any(source.path == asked.path for source in passage.sources))
        and _holds(passage.indexed, asked.section)
        and (asked.page is None or page is None or end is None or page <= asked.page <= end)
    )


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
