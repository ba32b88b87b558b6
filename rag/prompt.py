"""The prompt of an answer: the question and as many whole passages as fit, best first. Raises ContextFull."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from edged.errors import ContextFull
from edged.rag.search import Passage

INSTRUCTION = (
    "Answer the question from the numbered passages alone. End each sentence with the number of its passage, "
    "like [1]. If the passages do not hold the answer, say so."
)


@dataclass(frozen=True)
class Prompt:
    """`used` are the passages behind [1], [2], ...; `dropped` counts those that did not fit."""

    text: str
    used: tuple[Passage, ...]
    dropped: int


def pack(question: str, passages: Sequence[Passage], count_tokens: Callable[[str], int], room: int) -> Prompt:
    """Drop whole passages, last first, until the prompt has at most `room` tokens.

    Raises ContextFull if not even the best passage fits.
    """
    needed = 0
    for n in range(len(passages), 0, -1):
        text = _text(question, passages[:n])
        needed = count_tokens(text)
        if needed <= room:
            return Prompt(text, tuple(passages[:n]), len(passages) - n)
    raise ContextFull(f"question and best passage have {needed} tokens; there is room for {room}",
                      hint="ask more briefly, or raise engine.context")


def _text(question: str, passages: Sequence[Passage]) -> str:
    numbered = "\n\n".join(f"[{n}] {' > '.join(p.headings)}\n{p.text}" for n, p in enumerate(passages, 1))
    return f"{INSTRUCTION}\n\n{numbered}\n\nQuestion: {question}"
