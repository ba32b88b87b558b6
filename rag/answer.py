"""Answer a question with the words of the manuals, or say that they do not hold the answer.

`extract` quotes the best sentences; `generated` keeps of a model's text what the cited passages bear out. Every quote
is compared with the stored text before it is handed on. Raises what `embed` and the store raise.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from edged.rag import vectors
from edged.rag.search import EVERYWHERE, Embed, Passage, near
from edged.rag.store import Filter, Store
from edged.rag.words import codes, contains, phrases, words

NOT_FOUND = "not in the manuals"
# below this confidence an answer is refused. Provisional: evaluate.threshold() finds the value for an embedding model
LEAST = 0.45
# words that make a question and are in no answer
_ASKING = frozenset(words(
    "a an and are at be by can do does for from how i in is it my of on or should that the there this to was what when "
    "where which who why will with you"
))  # fmt: skip

# a sentence ends at a line's end, or at . ! ? (or their CJK forms) before a blank; not after a digit or one letter
_END = re.compile(r"\n+|(?<=[^\W\d_]{2}[.!?])\s+|(?<=[)\]\"][.!?])\s+|(?<=[。！？])")
_CITED = re.compile(r"\[(\d{1,3})\]")


@dataclass(frozen=True)
class Quote:
    """text == stored text[start:end] of the passage's content."""

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

    @property
    def refused(self) -> bool:
        return not self.quotes


def extract(store: Store, embed: Embed | None, question: str, *, k: int = 5, sentences: int = 2,
            least: float = LEAST, only: Filter = EVERYWHERE) -> Answer:
    """The best sentences of the best passages, if the confidence in them is at least `least`.

    A code of the question must stand in the passage: a near code is a wrong answer. A question that is a code alone is
    answered without `embed`.
    """
    wanted = codes(question)
    if wanted and len(wanted) == len(phrases(question)):
        embed = None
    vector = embed([question])[0] if embed and question.strip() else None
    passages = near(store, question, vector, k, only)
    bearing = [p for p in passages if all(contains(words(p.indexed), code) for code in wanted)]
    if not bearing:
        return Answer(NOT_FOUND, (), 0.0)
    weights = _weights(store, question)
    confidence = max(_confidence(p, weights, embed is not None) for p in bearing)
    if confidence < least:
        return Answer(NOT_FOUND, (), confidence)
    quotes = _best(bearing, weights, embed, vector, sentences)
    verified = tuple(q for q in quotes if store.quote(q.passage.content, q.start, q.end) == q.text)
    text = " ".join(f"{q.text} [{n}]" for n, q in enumerate(verified, 1)) or NOT_FOUND
    return Answer(text, verified, confidence)


def _weights(store: Store, question: str) -> dict[str, float]:
    """The words of a question by their inverse document frequency; a word that no chunk holds weighs most."""
    total = store.n_chunks
    return {word: math.log1p(total / (1 + store.frequency([word]))) for word in words(question) if word not in _ASKING}


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
          n: int) -> list[Quote]:
    """The n sentences that share most with the question, in the order of the passages."""
    quotes = [Quote(p.text[a:b], p.start + a, p.start + b, p) for p in passages for a, b in split(p.text)]
    scores = np.array([_coverage(q.text, weights) for q in quotes])
    if embed and vector is not None:
        scores += vectors.unit(embed([q.text for q in quotes])) @ vectors.unit(vector[None])[0]
    # a heading or a lone word repeats the question better than any sentence does
    scores -= [0.5 if len(words(q.text)) < 4 else 0.0 for q in quotes]
    chosen = np.argsort(-scores, kind="stable")[:n]
    return [quotes[i] for i in sorted(chosen.tolist())]


def generated(text: str, passages: Sequence[Passage], confidence: float = 1.0) -> Answer:
    """Keep of a model's text the sentences that cite passages which hold each of their numbers and codes.

    A sentence that cites nothing, or a passage that is not there, is dropped too. `quotes` are the cited passages.
    """
    kept, cited, dropped = [], [], 0
    text = _before_stop(text)
    for start, end in split(text):
        sentence = text[start:end]
        numbers = [int(n) for n in _CITED.findall(sentence)]
        claims = codes(_CITED.sub("", sentence))
        known = all(1 <= n <= len(passages) for n in numbers)
        held = [words(passages[n - 1].indexed) for n in numbers] if known else []
        if held and all(any(contains(h, claim) for h in held) for claim in claims):
            kept.append(sentence)
            cited += [n for n in numbers if n not in cited]
        else:
            dropped += 1
    quotes = tuple(Quote(p.text, p.start, p.end, p) for p in (passages[n - 1] for n in cited))
    return Answer(" ".join(kept) or NOT_FOUND, quotes, confidence, dropped)


def _before_stop(text: str) -> str:
    """Citations that follow the stop of their sentence, put before it: 'It is 5 V. [1]' -> 'It is 5 V [1].'"""
    return re.sub(r"([.!?])((?:\s*\[\d{1,3}\])+)", r"\2\1", text)
