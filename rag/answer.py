"""Answer a question with the words of the manuals, or say that they do not hold the answer.

`look` finds the passages and decides whether they hold the answer; `quote` makes one of their best sentences, each
compared with the stored text before it is handed on; `extract` does both. What a model makes of the passages is
checked in citations.py. Raises what `embed` and the store raise.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

import numpy as np

from edged.errors import NotFound
from edged.rag import vectors
from edged.rag.search import EVERYWHERE, Embed, Passage, near
from edged.rag.store import Filter, Store
from edged.rag.words import codes, contains, phrases, words

NOT_FOUND = "not in the manuals"
# below this confidence an answer is refused. Provisional: evaluate.threshold() finds the value for an embedding model
LEAST = 0.45
COMPARED = 16  # sentences whose meaning is compared: their vectors are most of the time that an answer takes
# words that make a question and are in no answer
ASKING = frozenset(words(
    "a an and are at be by can do does for from how i in is it my of on or should that the there this to was what when "
    "where which who why will with you"
))  # fmt: skip

# a sentence ends at a line's end, or at . ! ? (or their CJK forms) before a blank; not after a digit or one letter
_END = re.compile(r"\n+|(?<=[^\W\d_]{2}[.!?])\s+|(?<=[)\]\"][.!?])\s+|(?<=[。！？])")


@dataclass(frozen=True)
class Quote:
    """text == stored text[start:end] of the passage's content; the answer names it [n]."""

    n: int
    text: str
    start: int
    end: int
    passage: Passage


@dataclass(frozen=True)
class Answer:
    """`text` is NOT_FOUND, with no quotes, when refused. `dropped`: generated sentences that nothing bore out."""

    text: str
    quotes: tuple[Quote, ...]
    confidence: float
    dropped: int = 0
    mode: Literal["extract", "generate"] = "extract"

    @property
    def refused(self) -> bool:
        return not self.quotes


@dataclass(frozen=True)
class Evidence:
    """What was found for a question, best first, and the confidence that it holds the answer.

    `bearing`: the passages that an answer may be made of; none, and none is to be made, if that is below `least`.
    """

    question: str
    passages: tuple[Passage, ...]
    bearing: tuple[Passage, ...]
    confidence: float
    vector: np.ndarray | None  # f32 (dim,), of the question


def extract(store: Store, embed: Embed | None, question: str, *, k: int = 5, sentences: int = 2,
            least: float = LEAST, only: Filter = EVERYWHERE) -> Answer:
    """The best sentences of the best passages, if the confidence in them is at least `least`."""
    return quote(store, embed, look(store, embed, question, k=k, least=least, only=only), sentences)


def look(store: Store, embed: Embed | None, question: str, *, k: int = 5, least: float = LEAST,
         only: Filter = EVERYWHERE) -> Evidence:
    """Find what may answer a question.

    A code of the question must stand in a passage: a near code is a wrong answer. A question that is a code alone is
    answered without `embed`.
    """
    wanted = codes(question)
    if wanted and len(wanted) == len(phrases(question)):
        embed = None
    vector = embed([question])[0] if embed and question.strip() else None
    passages = tuple(near(store, question, vector, k, only))
    bearing = tuple(p for p in passages if all(contains(words(p.indexed), code) for code in wanted))
    weights = _weights(store, question)
    confidence = max((_confidence(p, weights, embed is not None) for p in bearing), default=0.0)
    return Evidence(question, passages, bearing if confidence >= least else (), confidence, vector)


def quote(store: Store, embed: Embed | None, found: Evidence, sentences: int = 2) -> Answer:
    """The best sentences of what was found."""
    best = _best(found.bearing, _weights(store, found.question), embed, found.vector, sentences)
    quotes: list[Quote] = []
    for passage, start, end, text in best:
        with suppress(NotFound):  # removed from the store since it was found
            if store.quote(passage.content, start, end) == text:
                quotes.append(Quote(len(quotes) + 1, text, start, end, passage))
    text = " ".join(f"{q.text} [{q.n}]" for q in quotes) or NOT_FOUND
    return Answer(text, tuple(quotes), found.confidence)


def _weights(store: Store, question: str) -> dict[str, float]:
    """The words of a question by their inverse document frequency; a word that no chunk holds weighs most."""
    total = store.n_chunks
    return {word: math.log1p(total / (1 + store.frequency([word]))) for word in words(question) if word not in ASKING}


def _coverage(text: str, weights: dict[str, float]) -> float:
    """Which part of the question's weight the text holds, 0 .. 1."""
    held = set(words(text))
    return sum(w for word, w in weights.items() if word in held) / (sum(weights.values()) or 1.0)


def _confidence(passage: Passage, weights: dict[str, float], by_meaning: bool) -> float:
    """0 .. 1: the words that the passage shares with the question, and its cosine with it where there is one."""
    coverage = _coverage(passage.indexed, weights)
    return (coverage + max(passage.cosine, 0.0)) / 2 if by_meaning else coverage


def split(text: str) -> list[tuple[int, int]]:
    """The spans of the sentences of a text, without the blanks around them."""
    spans, start = [], 0
    for match in [*_END.finditer(text), None]:
        end = match.start() if match else len(text)
        sentence = text[start:end]
        if stripped := sentence.strip():
            at = start + sentence.index(stripped)
            spans.append((at, at + len(stripped)))
        start = match.end() if match else end
    return spans


def _best(passages: Sequence[Passage], weights: dict[str, float], embed: Embed | None, vector: np.ndarray | None,
          n: int) -> list[tuple[Passage, int, int, str]]:
    """The n sentences that share most with the question, in the order of the passages, and where they stand."""
    found = [(p, p.start + a, p.start + b, p.text[a:b]) for p in passages for a, b in split(p.text)]
    found = [(_part(p, start, end), start, end, text) for p, start, end, text in found]
    scores = np.array([_coverage(text, weights) for *_, text in found])
    # a heading or a lone word repeats the question better than any sentence does
    scores -= [0.5 if len(words(text)) < 4 else 0.0 for *_, text in found]
    if embed and vector is not None and found:
        like = np.sort(np.argsort(-scores, kind="stable")[:COMPARED])
        found = [found[i] for i in like]
        scores = scores[like] + vectors.unit(embed([text for *_, text in found])) @ vectors.unit(vector[None])[0]
    chosen = np.argsort(-scores, kind="stable")[:n]
    return [found[i] for i in sorted(chosen.tolist())]


def _part(passage: Passage, start: int, end: int) -> Passage:
    """The chunk of a passage that holds all of a span, whose page and headings are nearer; else the passage."""
    return next((part for part in passage.parts if part.start <= start and end <= part.end), passage)
