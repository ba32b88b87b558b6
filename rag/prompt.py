"""The prompt of an answer: as many whole chunks as fit, best first, then the question. Raises ContextFull.

The instruction is a message of its own and always the same, so a model that keeps prompts computes it once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from edged.errors import ContextFull
from edged.rag.search import Passage

INSTRUCTION = (
    "Answer the question from the numbered passages alone, briefly and in whole sentences. End each sentence with the "
    "number of its passage, like [1]. If the passages do not hold the answer, reply: not in the passages."
)

ANSWER_TOKENS = 256
"""Of an answer, unless the request says otherwise."""

Message = dict[str, str]


@dataclass(frozen=True)
class Prompt:
    """Token ids. `used` are the chunks behind [1], [2], ...; `dropped` counts those that did not fit."""

    ids: tuple[int, ...]
    used: tuple[Passage, ...]
    dropped: int


def room(n_ctx: int, max_tokens: int | None = None, *, most: int = 0, most_prompt: int = 0) -> tuple[int, int]:
    """Tokens of the answer, and of the prompt at most, in a context of n_ctx. most, most_prompt: limits; 0: none."""
    tokens = min(ANSWER_TOKENS, n_ctx // 4) if max_tokens is None else max_tokens
    tokens = min(tokens, most or tokens)
    # clients ask for thousands of tokens; half of the context is for the passages
    return tokens, min(n_ctx - min(tokens, n_ctx // 2), most_prompt or n_ctx)


def chunks(passages: Sequence[Passage]) -> list[Passage]:
    """The single chunks of passages, best first."""
    return sorted((part for p in passages for part in p.parts or (p,)), key=lambda part: -part.score)


def pack(question: str, passages: Sequence[Passage], render: Callable[[list[Message]], Sequence[int]], room: int,
         most: int) -> Prompt:
    """The first `most` passages, without the last of them until the prompt has at most `room` tokens.

    Raises ContextFull if not even the best passage fits.
    """
    fits: Prompt | None = None
    passages = passages[:most]
    low, high = 1, len(passages)
    n = high
    while low <= high:
        ids = tuple(render(messages(question, passages[:n])))
        if len(ids) <= room:
            fits, low = Prompt(ids, tuple(passages[:n]), len(passages) - n), n + 1
        elif n == 1:
            raise ContextFull(f"question and best passage have {len(ids)} tokens; there is room for {room}",
                              hint="ask more briefly or for fewer max_tokens, or raise engine.context")
        else:
            high = n - 1
        n = (low + high + 1) // 2
    assert fits is not None, "no passages"
    return fits


def messages(question: str, passages: Sequence[Passage]) -> list[Message]:
    """What the model is told: the instruction; then the passages and, last, the question."""
    numbered = "\n\n".join(f"[{n}] {p.indexed}" for n, p in enumerate(passages, 1))
    return [{"role": "system", "content": INSTRUCTION},
            {"role": "user", "content": f"{numbered}\n\nQuestion: {question}"}]  # fmt: skip
