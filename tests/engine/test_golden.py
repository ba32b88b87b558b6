"""Beside llama.cpp on the real models: same tokens where it is sure, and nearly the same probabilities.

The reference ids are fed as an answer would be: the prompt as prompt rows, what follows as decode rows; so step k
compares what both engines say after the prompt and the first k reference ids. llama.cpp rounds activations to 8 bits as
edged does, but not at the same places: it is a neighbour, not the truth.

Its server reports no step for a token that ends inside a character. The ids it leaves out are recovered from the text.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from edged import gguf, tokenizers
from edged.engine.batch import Rows
from edged.engine.engine import Engine
from tests.engine.running import opened

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
SURE = 0.4  # margin between the two best log-probabilities from which both must choose the same
AGREEMENT = 0.97
MEAN_KL = 0.01


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
    parts = engine._parts
    cache = parts.scheduler._cache
    logits = parts.owned[0].logits[0, : engine.info.n_vocab]  # type: ignore[attr-defined]
    slot = cache.open_slot(len(prompt) + len(answer))
    assert slot is not None
    runs = [(False, prompt[i : i + 256]) for i in range(0, len(prompt), 256)] + [(True, [id]) for id in answer[:-1]]
    start = 0
    for decode, tokens in runs:
        assert cache.extend(slot, start, start + len(tokens))
        rows = [Rows(tokens, start, slot, 1)]
        parts.batch.fill(rows if decode else [], [] if decode else rows)
        assert parts.program.step(parts.batch.state)
        start += len(tokens)
        if start >= len(prompt):
            values = logits.astype(np.float64)
            values -= values.max()
            yield values - np.log(np.exp(values).sum())
    cache.close_slot(slot)


def compare(path: Path, name: str) -> list[Step]:
    """Every step of the cases of one golden file."""
    content = json.loads((GOLDEN / name).read_text("utf-8"))
    cases = content if isinstance(content, list) else content["cases"]
    steps = []
    with gguf.open(path) as model:
        tokenizer = tokenizers.open(model.meta)
        with opened(path, context=2048, threads=2) as engine:
            for case in cases:
                answer, places = answer_ids(case, tokenizer)
                ours = list(follow(engine, case["prompt_ids"], answer))
                steps += [Step(step["top"], ours[place]) for step, place in zip(case["steps"], places, strict=True)]
    return steps


@pytest.mark.parametrize("name", ["smollm2", "gemma3"])
def test_golden(name: str, request: pytest.FixtureRequest) -> None:
    """Short prompts, and prompts of 700 and 1500 tokens."""
    path = request.getfixturevalue(f"{name}_path")
    steps = [*compare(path, f"{name}_dev.json"), *compare(path, f"{name}_long_dev.json")]
    agreement = sum(step.agrees for step in steps) / len(steps)
    kl = sum(step.kl for step in steps) / len(steps)
    figures = f"{len(steps)} steps, agreement {agreement:.4f}, mean KL {kl:.5f}"
    print(figures)
    missed = [step.top[:2] for step in steps if step.sure and not step.agrees]
    assert not missed, figures
    assert agreement >= AGREEMENT, figures
    assert kl <= MEAN_KL, figures


UNSURE = 0.2  # margin below which levels may part ways
FIRST_IDS, FIRST_PROMPTS = 16, 4


@pytest.mark.arm
@pytest.mark.parametrize(("cpu", "level"), [("cortex-a72", "aarch64_neon"), ("cortex-a76", "aarch64_dotprod")])
def test_first_ids_on_arm(arm: Any, smollm2_path: Path, cpu: str, level: str) -> None:
    """Greedy answers on an emulated processor: the reference's ids, up to the first that it was not sure of."""
    cases = json.loads((GOLDEN / "smollm2_dev.json").read_text("utf-8"))[:FIRST_PROMPTS]
    prompts = json.dumps([case["prompt_ids"] for case in cases])
    done = arm(cpu, ["-m", "tests.engine.golden_on_arm", str(smollm2_path), str(FIRST_IDS)], input=prompts)
    assert done.returncode == 0, done.stderr
    got = json.loads(done.stdout)
    assert got["level"] == level
    for ids, case in zip(got["ids"], cases, strict=True):
        steps = case["steps"][:FIRST_IDS]
        sure = next((i for i, s in enumerate(steps) if s["top"][0][1] - s["top"][1][1] < UNSURE), len(steps))
        assert sure, "a prompt that says nothing"
        assert ids[:sure] == [step["id"] for step in steps[:sure]]
