"""Engines over tiny models, computed step by step in the test's own thread."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from edged import engine, gguf
from edged.config import EngineConfig
from edged.engine.engine import Engine, Job
from edged.engine.request import Done, Event, Failed, PromptScores, Request, Sampling, Token
from tests import tiny

GREEDY = Sampling(temperature=0.0)


@contextmanager
def opened(path: Path, **config: Any) -> Iterator[Engine]:
    """An engine without a thread; one worker unless told otherwise."""
    with gguf.open(path) as model:
        running = engine.open(EngineConfig(**{"threads": 1, **config}), model, thread=False)
        try:
            yield running
        finally:
            running.close()


class Answer:
    """What came of a request. Also its sink."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.job: Job | None = None

    def __call__(self, event: Event) -> None:
        assert not self.over, f"{event} after {self.events[-1]}"
        self.events.append(event)

    @property
    def over(self) -> bool:
        return bool(self.events) and isinstance(self.events[-1], Done | Failed)

    @property
    def tokens(self) -> list[Token]:
        return [event for event in self.events if isinstance(event, Token)]

    @property
    def ids(self) -> list[int]:
        return [token.id for token in self.tokens]

    @property
    def end(self) -> Done | Failed:
        last = self.events[-1]
        assert isinstance(last, Done | Failed)
        return last

    @property
    def reason(self) -> str:
        assert isinstance(self.end, Done), self.end
        return self.end.reason

    @property
    def scores(self) -> PromptScores:
        (scores,) = (event for event in self.events if isinstance(event, PromptScores))
        return scores


def ask(running: Engine, request: Request) -> Answer:
    """Submit without computing anything."""
    answer = Answer()
    answer.job = running.submit(request, answer)
    return answer


def finish(running: Engine, *answers: Answer) -> None:
    """Step until these are over; all there is, if none are given."""
    while not all(answer.over for answer in answers) if answers else running.step():
        if answers:
            assert running.step()


def answers(running: Engine, *requests: Request) -> list[Answer]:
    """Compute requests that come at once."""
    got = [ask(running, request) for request in requests]
    finish(running, *got)
    return got


def prompt(n: int, seed: int = 0) -> tuple[int, ...]:
    """Random token ids; the last ten of the vocabulary are left to tests that need tokens nobody else uses."""
    return tuple(np.random.default_rng([n, seed]).integers(0, tiny.N_VOCAB - 10, n).tolist())


def request(n: int, max_tokens: int | None = 8, seed: int = 0, **fields: Any) -> Request:
    """A greedy request with a random prompt of n tokens that asks for exact numbers: the three best logprobs."""
    return Request(prompt(n, seed), max_tokens, **{"sampling": GREEDY, "top_logprobs": 3, **fields})
