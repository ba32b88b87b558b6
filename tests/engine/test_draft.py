"""Guesses save steps and change no answer: same tokens, same log-probabilities, same reasons."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path

import pytest

from edged.engine.draft import FIRST_LENGTH, MOST_WAIT, NGRAM, Drafter
from edged.engine.engine import Engine
from edged.engine.request import Done, Request, Sampling, Usage
from tests import tiny
from tests.engine.running import GREEDY, Answer, answers, ask, finish, opened, prompt, request

KINDS = [("llama", "q4_1"), ("gemma3", "q8_0"), ("llama", "f16")]
SAMPLINGS = [GREEDY, Sampling(temperature=0.3, seed=7), Sampling(top_k=2, seed=8, repeat_penalty=1.1)]


@pytest.fixture(scope="module", params=KINDS, ids="-".join)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    arch, kind = request.param
    return tiny.write(tmp_path_factory.mktemp("tiny") / "model.gguf", arch, kind, n_ctx=512)


def one(engine: Engine, wanted: Request) -> Answer:
    return answers(engine, wanted)[0]


def usage(answer: Answer) -> Usage:
    assert isinstance(answer.end, Done)
    return answer.end.usage


def test_what_followed_the_same_tokens_last_time() -> None:
    drafter = Drafter()
    assert drafter.draft([1, 2, 3, 4, 5, 1, 2, 3], 2) == [4, 5]
    assert drafter.draft([1, 2, 3, 4, 5, 1, 2, 3, 9, 1, 2, 3], 2) == [9, 1]
    assert Drafter().draft([1, 1, 1, 1], 8) == [1] * FIRST_LENGTH  # a loop goes on
    for tokens in ([], [1], [1] * NGRAM, [1, 2, 3, 4, 5]):
        assert Drafter().draft(tokens, 4) == []


def test_the_index_may_grow_token_by_token() -> None:
    """The same guess as over all tokens at once, and as by plain search."""
    chance = random.Random(1)
    tokens: list[int] = []
    growing = Drafter()
    for _ in range(400):
        tokens.append(chance.randrange(4))
        n = len(tokens)
        found = [end for end in range(NGRAM, n) if tokens[end - NGRAM : end] == tokens[n - NGRAM :]]
        expected = (tokens[found[-1] :] * FIRST_LENGTH)[:FIRST_LENGTH] if found else []
        assert growing.draft(tokens, 64) == Drafter().draft(tokens, 64) == expected


def test_right_guesses_grow_and_wrong_ones_become_rare() -> None:
    drafter = Drafter()
    for length in (FIRST_LENGTH, 2 * FIRST_LENGTH, 4 * FIRST_LENGTH):
        assert len(drafter.draft([*range(100, 150), *range(100, 103)], 64)) == length
        drafter.learn(53, length, length)
    drafter = Drafter()
    n, steps = 100, []
    while n < 1000:
        if drafter.draft([7] * n, 8):
            steps.append(n)
            drafter.learn(n, 1, 0)
        n += 1
    gaps = [b - a for a, b in pairwise(steps)]
    assert gaps[:3] == [2, 4, 8] and max(gaps) == MOST_WAIT


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_answers_are_the_same(model: Path, sampling: Sampling) -> None:
    """Alone and together, over prompts that repeat themselves and long answers that fall into loops."""
    wanted = [request(1, 200, sampling=sampling)._replace(prompt=prompt(n, seed=n) * 3) for n in (5, 11, 40)]
    wanted.append(wanted[0]._replace(top_logprobs=None, max_tokens=2))
    with opened(model) as engine:
        plain = [one(engine, single) for single in wanted]
        assert engine.stats()["drafted_tokens_total"] == 0
        guessed = [single._replace(speculate=True) for single in wanted]
        got = [one(engine, single) for single in guessed] + answers(engine, *guessed)
        stats = engine.stats()
    assert [answer.tokens for answer in got] == [answer.tokens for answer in plain] * 2
    assert [answer.reason for answer in got] == [answer.reason for answer in plain] * 2
    assert stats["drafted_tokens_total"] == sum(usage(answer).drafted_tokens for answer in got) > 0
    assert stats["accepted_tokens_total"] == sum(usage(answer).accepted_tokens for answer in got)
    assert all(0 <= usage(answer).accepted_tokens <= usage(answer).drafted_tokens for answer in got)


def test_a_loop_takes_a_fraction_of_the_steps(model: Path) -> None:
    """The engine is set to guess; a request can say no. A bias makes the answer one token over and over."""
    wanted = request(20, 100, sampling=GREEDY._replace(logit_bias=((3, 1000.0),)))
    with opened(model, speculate=True) as engine:
        steps = []
        for single in (wanted, wanted._replace(speculate=False)):
            before = engine.stats()["steps_total"]
            assert one(engine, single).ids == [3] * 100
            steps.append(engine.stats()["steps_total"] - before)
    assert steps[0] <= steps[1] * 0.25 and steps[1] == 100


def test_a_stop_among_right_guesses_ends_the_answer(model: Path) -> None:
    """Nothing that was computed beyond it comes out."""
    wanted = request(1, 200)._replace(prompt=prompt(11) * 4)
    with opened(model) as engine:
        ids = one(engine, wanted).ids
        for at in range(3, 200, 13):
            stopped = wanted._replace(stop_ids=frozenset({ids[at]}))
            plain, got = one(engine, stopped), one(engine, stopped._replace(speculate=True))
            assert (got.tokens, got.reason) == (plain.tokens, plain.reason)


def test_guesses_do_not_reach_beyond_the_context(model: Path) -> None:
    wanted = request(20, None, sampling=GREEDY._replace(logit_bias=((3, 1000.0),)), speculate=True)
    with opened(model, context=64) as engine:
        assert one(engine, wanted).ids == [3] * 44


def test_storm(model: Path, scaled) -> None:
    """Guesses, pauses, prefixes and cancellations at once on a small pool: the rest equal their single runs."""
    chance = random.Random(5)
    n = scaled(24, soak=1000)
    wanted = [
        request(1, chance.randint(1, 60), speculate=True, sampling=chance.choice(SAMPLINGS), deterministic=True)
        ._replace(prompt=prompt(chance.randint(1, 12), seed=i % 5) * chance.randint(1, 4))
        for i in range(n)
    ]  # fmt: skip
    with opened(model, prefix_cache=0) as engine:
        alone = [one(engine, single._replace(speculate=False)).tokens for single in wanted]
    got: list[Answer] = []
    with opened(model, context=128, kv_tokens=160, max_seqs=5, prefill_chunk=16, queue=n) as engine:
        while len(got) < n or engine.step():
            while len(got) < n and chance.random() < 0.6:
                got.append(ask(engine, wanted[len(got)]))
            for answer in got:
                if not answer.over and chance.random() < 0.01:
                    assert answer.job is not None
                    answer.job.cancel()
            engine.step()
        finish(engine)
        stats = engine.stats()
        assert stats["kv_blocks_used"] == 0 and stats["accepted_tokens_total"] > 0
    for answer, tokens in zip(got, alone, strict=True):
        assert answer.tokens == (tokens[: len(answer.tokens)] if answer.reason == "cancelled" else tokens)
