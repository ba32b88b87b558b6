"""Bit for bit: the same tokens and log-probabilities alone or in a batch, in any chunks, on any number of threads."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from edged.engine.request import Token
from tests import tiny
from tests.engine.running import Answer, answers, ask, finish, opened, prompt, request

KINDS = [("llama", "q4_1"), ("gemma3", "q8_0"), ("llama", "f16"), ("gemma3", "q5_0")]
REQUESTS = [request(n, 12, seed=n) for n in (1, 7, 33, 40, 70)]


@pytest.fixture(scope="module", params=KINDS, ids="-".join)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    arch, kind = request.param
    return tiny.write(tmp_path_factory.mktemp("tiny") / "model.gguf", arch, kind, n_ctx=256)


@pytest.fixture(scope="module")
def alone(model: Path) -> list[list[Token]]:
    """What each of REQUESTS gives by itself."""
    with opened(model) as engine:
        return [answers(engine, one)[0].tokens for one in REQUESTS]


def test_d08_thrice_the_same(model: Path, alone: list[list[Token]]) -> None:
    with opened(model) as engine:
        for _ in range(2):
            assert [answers(engine, one)[0].tokens for one in REQUESTS] == alone


@pytest.mark.parametrize("threads", [2, 4])
def test_d08_threads(model: Path, alone: list[list[Token]], threads: int) -> None:
    with opened(model, threads=threads) as engine:
        assert [answer.tokens for answer in answers(engine, *REQUESTS)] == alone


@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_d08_chunks(model: Path, alone: list[list[Token]], chunk: int) -> None:
    with opened(model, prefill_chunk=chunk) as engine:
        assert [answers(engine, one)[0].tokens for one in REQUESTS] == alone


@pytest.mark.parametrize("max_seqs", [1, 2, 3, 8, 24])
def test_d08_batches(model: Path, alone: list[list[Token]], max_seqs: int) -> None:
    """All at once: prompts beside tokens, and more rows than one group of matvec_rows takes."""
    with opened(model, max_seqs=max_seqs) as engine:
        assert [answer.tokens for answer in answers(engine, *REQUESTS * 4)] == alone * 4


def test_d08_a_prompt_that_is_scored(model: Path, alone: list[list[Token]]) -> None:
    """Logits of all its positions change nothing, and are the same in any chunks."""
    scored = [one._replace(prompt_logprobs=True) for one in REQUESTS]
    seen = []
    for chunk in (0, 5):
        with opened(model, prefill_chunk=chunk) as engine:
            got = answers(engine, *scored)
            assert [answer.tokens for answer in got] == alone
            seen.append([answer.scores for answer in got])
    assert seen[0] == seen[1]
    assert [len(scores.logprobs) for scores in seen[0]] == [len(one.prompt) - 1 for one in REQUESTS]


def test_a_pool_for_two_serves_six(model: Path) -> None:
    """Sequences are paused for lack of blocks and computed anew; nobody can tell."""
    wanted = [request(20 + 9 * i, 150, seed=i) for i in range(6)]
    with opened(model, context=256) as engine:
        alone = [answers(engine, one)[0].tokens for one in wanted]
    with opened(model, context=256, kv_tokens=512) as engine:
        got = answers(engine, *wanted)
        assert engine.stats()["paused_total"] > 0
        assert engine.stats()["kv_blocks_used"] == 0
    assert [answer.tokens for answer in got] == alone
    assert [answer.reason for answer in got] == ["length"] * 6


def test_storm(model: Path, scaled) -> None:
    """Requests join, leave and are cancelled at random steps on a small pool: the rest equal their single runs."""
    chance = random.Random(4)
    n = scaled(30, soak=2000)
    wanted = [request(chance.randint(1, 100), chance.randint(1, 28), seed=i) for i in range(n)]
    cancelled: set[int] = set()
    got: list[Answer] = []
    with opened(model, context=128, kv_tokens=160, max_seqs=5, prefill_chunk=16, queue=n) as engine:
        while len(got) < n or engine.step():
            while len(got) < n and chance.random() < 0.6:
                got.append(ask(engine, wanted[len(got)]))
            for i, answer in enumerate(got):
                if not answer.over and chance.random() < 0.02:
                    assert answer.job is not None
                    answer.job.cancel()
                    cancelled.add(i)
            engine.step()
        assert engine.stats()["kv_blocks_used"] == 0
    assert 0 < len(cancelled) < n
    with opened(model, context=128) as engine:
        for i, answer in enumerate(got):
            (single,) = answers(engine, wanted[i])
            if i in cancelled:
                assert answer.tokens == single.tokens[: len(answer.tokens)]
            else:
                assert (answer.tokens, answer.reason) == (single.tokens, single.reason)


def test_d10_cancel_anywhere(model: Path) -> None:
    """After a cancellation at any step of prompt and answer, another request that shares half the prompt is as ever."""
    with opened(model, prefill_chunk=8) as engine, opened(model, prefix_cache=0) as cold:
        for steps in range(18):
            first = request(80, 10, seed=steps)
            second = first._replace(prompt=(*first.prompt[:40], *prompt(20, seed=9)), max_tokens=6)
            one = ask(engine, first)
            for _ in range(steps):
                engine.step()
            assert one.job is not None
            one.job.cancel()
            one.job.cancel()
            other = ask(engine, second)
            finish(engine, one, other)
            assert one.reason == "cancelled"
            assert other.tokens == answers(cold, second)[0].tokens
        assert engine.stats()["kv_blocks_used"] == 0
        assert engine.stats()["prefix_hits_total"] >= 12
