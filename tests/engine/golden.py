"""llama.cpp's results on the real models (tests/golden), and ours beside them.

The reference ids are fed as an answer would be: the prompt as prompt rows, what follows as decode rows; so step k
compares what both engines say after the prompt and the first k reference ids.

Its server reports no step for a token that ends inside a character. The ids it leaves out are recovered from the text.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from edged import gguf, tokenizers
from edged.engine.batch import Rows
from edged.engine.engine import Engine
from tests.engine.running import opened

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
SURE = 0.4  # margin between the two best log-probabilities from which both should choose the same


def cases(name: str) -> list[dict[str, Any]]:
    """The cases of both files of a model: short prompts, and prompts of 700 and 1500 tokens."""
    found: list[dict[str, Any]] = []
    for file in (f"{name}_dev.json", f"{name}_long_dev.json"):
        content = json.loads((GOLDEN / file).read_text("utf-8"))
        found += content if isinstance(content, list) else content["cases"]
    return found


class Step(NamedTuple):
    """llama.cpp's ten best tokens with their log-probabilities, and ours for all tokens."""

    top: list[tuple[int, float]]
    ours: np.ndarray

    @property
    def agrees(self) -> bool:
        return int(self.ours.argmax()) == self.top[0][0]

    @property
    def sure(self) -> bool:
        return self.top[0][1] - self.top[1][1] >= SURE

    @property
    def kl(self) -> float:
        """Kullback-Leibler divergence over the ten and a bucket of the rest, in nats."""
        p = np.exp([logprob for _, logprob in self.top])
        q = np.exp([self.ours[id] for id, _ in self.top])
        p, q = (np.append(x, max(1e-9, 1 - x.sum())) for x in (p, q))
        return float((p * np.log(p / q)).sum())


def answer_ids(case: dict[str, Any], tokenizer: tokenizers.Tokenizer) -> tuple[list[int], list[int]]:
    """All ids of the answer, and the place of each step's among them."""
    steps = [step["id"] for step in case["steps"]]
    if tokenizer.decode(steps) == case["text"]:
        return steps, list(range(len(steps)))
    ids, places = tokenizer.encode(case["text"]), []
    for id in steps:
        places.append(ids.index(id, places[-1] + 1 if places else 0))
    return ids, places


def follow(engine: Engine, prompt: list[int], answer: list[int]) -> Iterator[np.ndarray]:
    """Log-probabilities after the prompt and after each token of the answer but the last: f64 (n_vocab,)."""
    runner = engine._runner
    cache = runner.cache
    logits = runner.logits[0, : engine.info.n_vocab]
    slot = cache.open_slot(len(prompt) + len(answer))
    assert slot is not None
    runs = [(False, prompt[i : i + 256]) for i in range(0, len(prompt), 256)] + [(True, [id]) for id in answer[:-1]]
    start = 0
    for decode, tokens in runs:
        assert cache.extend(slot, start, start + len(tokens))
        rows = [Rows(tokens, start, slot, 1)]
        assert runner.step(rows if decode else [], [] if decode else rows)
        start += len(tokens)
        if start >= len(prompt):
            values = logits.astype(np.float64)
            values -= values.max()
            yield values - np.log(np.exp(values).sum())
    cache.close_slot(slot)


def compare(path: Path, name: str) -> list[Step]:
    """Every step of the cases of a model."""
    steps = []
    with gguf.open(path) as model:
        tokenizer = tokenizers.open(model.meta)
        with opened(path, context=2048, threads=2) as engine:
            for case in cases(name):
                answer, places = answer_ids(case, tokenizer)
                ours = list(follow(engine, case["prompt_ids"], answer))
                steps += [Step(step["top"], ours[place]) for step, place in zip(case["steps"], places, strict=True)]
    return steps
