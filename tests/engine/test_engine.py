"""The face of the engine: limits, refusals, faults, cancellation, threads."""

from __future__ import annotations

import math
import queue
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edged import engine, gguf
from edged.config import EngineConfig
from edged.engine.engine import Engine, Pace
from edged.engine.request import Done, Event, Failed, PromptScores, Request, Sampling, Sink
from edged.errors import BadConfig, BadRequest, Busy, ContextFull, EdgedError, ModelFault, NotReady
from tests import tiny
from tests.engine.running import GREEDY, Answer, answers, ask, finish, opened, prompt, request

N_CTX = 64
NAN_TOKEN, INF_TOKEN = 150, 151


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that turns mad when it reads NAN_TOKEN or INF_TOKEN."""

    def poison(_: dict[str, Any], tensors: dict[str, np.ndarray]) -> None:
        tensors["output.weight"] = tensors["token_embd.weight"].copy()
        tensors["token_embd.weight"][NAN_TOKEN] = np.nan
        tensors["token_embd.weight"][INF_TOKEN] = np.inf

    return tiny.write(tmp_path_factory.mktemp("tiny") / "model.gguf", n_ctx=N_CTX, change=poison)


@pytest.fixture
def running(path: Path) -> Iterator[Engine]:
    with opened(path) as opened_engine:
        yield opened_engine


# -- limits ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("max_tokens", [None, N_CTX, 10**12])
def test_d01_the_context_ends_every_answer(running: Engine, max_tokens: int | None) -> None:
    (answer,) = answers(running, request(10, max_tokens))
    assert (len(answer.ids), answer.reason) == (N_CTX - 10, "length")


def test_d02_max_tokens_near_the_end_of_the_context(running: Engine) -> None:
    (answer,) = answers(running, request(60, 20))
    assert (len(answer.ids), answer.reason) == (4, "length")


def test_d03_a_prompt_must_leave_room_for_one_token(running: Engine) -> None:
    for n in (N_CTX, N_CTX + 1):
        with pytest.raises(ContextFull) as caught:
            ask(running, request(n))
        assert caught.value.code == "context_length_exceeded"
        assert f"{n} tokens" in caught.value.message
        assert f"context holds {N_CTX}" in caught.value.message
    (answer,) = answers(running, request(N_CTX - 1, None))
    assert (len(answer.ids), answer.reason) == (1, "length")


def test_max_tokens_0_generates_nothing(running: Engine) -> None:
    (answer,) = answers(running, request(5, 0))
    assert [type(event) for event in answer.events] == [Done]
    assert running.stats()["prompt_tokens_total"] == 0


@pytest.mark.parametrize("n", [1, 2, 40])
def test_max_tokens_0_scores_the_prompt(running: Engine, n: int) -> None:
    scored, with_answer = answers(running, request(n, 0, prompt_logprobs=True), request(n, 1, prompt_logprobs=True))
    assert [type(event) for event in scored.events] == [PromptScores, Done]
    assert scored.scores == with_answer.scores
    assert len(scored.scores.logprobs) == len(scored.scores.tops) == n - 1


def test_a_stop_id_ends_the_answer(running: Engine) -> None:
    settings = Sampling(20.0, 0, 1.0, 0.0, seed=1)
    ids = answers(running, request(10, 8, sampling=settings))[0].ids
    stop = next(id for id in ids if ids.index(id) >= 2)
    (answer,) = answers(running, request(10, 8, sampling=settings, stop_ids=frozenset({stop})))
    assert answer.ids == ids[: ids.index(stop) + 1]
    assert [token.stop for token in answer.tokens] == [False] * ids.index(stop) + [True]
    assert answer.reason == "stop"


def test_usage(running: Engine) -> None:
    (answer,) = answers(running, request(10, 4))
    assert isinstance(answer.end, Done)
    usage = answer.end.usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens) == (10, 4, 0)
    assert min(usage.queue_s, usage.prefill_s, usage.decode_s) > 0


# -- refusals ----------------------------------------------------------------------------------------------------------

BAD_SAMPLING = [
    ("temperature", -1.0), ("temperature", math.nan), ("temperature", math.inf), ("top_p", -0.1), ("top_p", 1.5),
    ("top_p", math.nan), ("min_p", 2.0), ("repeat_penalty", 0.0), ("repeat_penalty", math.inf),
    ("presence_penalty", math.nan), ("frequency_penalty", -math.inf), ("repeat_last_n", -2),
    ("logit_bias", ((tiny.N_VOCAB, 1.0),)), ("logit_bias", ((-1, 1.0),)), ("logit_bias", ((1, math.nan),)),
    ("logit_bias", ((1, math.inf),)),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), BAD_SAMPLING)
def test_d11_settings_out_of_range_are_refused(running: Engine, name: str, value: Any) -> None:
    with pytest.raises(BadRequest) as caught:
        ask(running, request(3, sampling=Sampling(**{name: value})))
    assert caught.value.param == name


@pytest.mark.parametrize(
    ("wanted", "param"),
    [
        (Request(()), "prompt"),
        (Request((0, tiny.N_VOCAB)), "prompt"),
        (Request((-1,)), "prompt"),
        (Request((1,), -1), "max_tokens"),
        (Request((1,), top_logprobs=-1), "top_logprobs"),
    ],
)
def test_impossible_requests_are_refused(running: Engine, wanted: Request, param: str) -> None:
    with pytest.raises(BadRequest) as caught:
        ask(running, wanted)
    assert caught.value.param == param
    assert not running.step()


def test_a_full_queue_refuses(path: Path) -> None:
    with opened(path, max_seqs=2, queue=3) as running:
        got = [ask(running, request(4)) for _ in range(5)]
        with pytest.raises(Busy):
            ask(running, request(4))
        finish(running, got[0])
        got.append(ask(running, request(4)))
        finish(running, *got)
    assert len({tuple(answer.ids) for answer in got}) == 1


def test_a_pool_smaller_than_one_context_is_refused(path: Path) -> None:
    with pytest.raises(BadConfig, match="kv_tokens is 63, but one context takes 64"), opened(path, kv_tokens=63):
        pass


# -- sampling ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [0, 1e-9, 1e-4, 100.0])
@pytest.mark.parametrize("top_p", [0, 1e-9, 1])
@pytest.mark.parametrize("top_k", [0, 1, 10**9])
def test_d11_extreme_settings_give_valid_tokens(running: Engine, temperature: float, top_p: float, top_k: int) -> None:
    settings = Sampling(temperature, top_k, top_p, seed=1)
    drawn, greedy = answers(running, request(9, 6, sampling=settings), request(9, 6))
    assert len(drawn.ids) == 6
    assert all(0 <= id < tiny.N_VOCAB for id in drawn.ids)
    if temperature < 1 or top_p < 1 or top_k == 1:
        assert drawn.ids == greedy.ids


def test_seeds(running: Engine) -> None:
    """The same seed draws the same tokens, in any company; others draw others."""
    wild = [
        request(9, 20, sampling=Sampling(100.0, 0, 1.0, 0.0, seed=seed)) for seed in (1, 2, 1, None, None, -5, 2**60)
    ]
    got = [tuple(answer.ids) for answer in answers(running, *wild)]
    assert got[0] == got[2]
    assert len(set(got)) == len(got) - 1
    assert tuple(answers(running, wild[0])[0].ids) == got[0]


def test_logit_bias(running: Engine) -> None:
    plain = answers(running, request(9, 1))[0].ids[0]
    banned, forced = answers(
        running,
        request(9, 1, sampling=GREEDY._replace(logit_bias=((plain, -math.inf),))),
        request(9, 1, sampling=GREEDY._replace(logit_bias=((33, 1000.0),))),
    )
    assert banned.ids[0] != plain
    assert forced.ids == [33]


def test_penalties_look_at_prompt_and_output(running: Engine) -> None:
    """A presence penalty that forbids repetition: no token of the window comes again."""
    wanted = request(9, 30, sampling=GREEDY._replace(presence_penalty=1e6, repeat_last_n=-1))
    (answer,) = answers(running, wanted)
    everything = [*wanted.prompt, *answer.ids]
    assert len(set(answer.ids)) == 30
    assert not set(answer.ids) & set(wanted.prompt)
    (short,) = answers(running, request(9, 30, sampling=GREEDY._replace(presence_penalty=1e6, repeat_last_n=4)))
    window = [*wanted.prompt, *short.ids]
    assert all(token not in window[i - 4 : i] for i, token in enumerate(window) if i >= 9)
    assert len(everything) > len(set(window))


def test_logprobs(running: Engine) -> None:
    (answer,) = answers(running, request(9, 4, top_logprobs=tiny.N_VOCAB))
    for token in answer.tokens:
        ids, values = zip(*token.top, strict=True)
        assert sorted(ids) == list(range(tiny.N_VOCAB))
        assert list(values) == sorted(values, reverse=True)
        assert (ids[0], values[0]) == (token.id, token.logprob)
        assert math.isclose(sum(map(math.exp, values)), 1, rel_tol=1e-4)


# -- faults ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("token", [NAN_TOKEN, INF_TOKEN])
@pytest.mark.parametrize("fields", [{}, {"prompt_logprobs": True}])
def test_d11_logits_that_are_not_finite_fail_one_request(running: Engine, token: int, fields: dict[str, Any]) -> None:
    """In the same panel of prompt rows and in the same batch of decode rows as healthy ones."""
    wanted = [request(5, 12, seed=1), request(6, 12, seed=2)]
    expected = [answer.tokens for answer in answers(running, *wanted)]
    mad = Request((1, 2, token), 12, GREEDY, **fields)
    first, failed, second = answers(running, wanted[0], mad, wanted[1])
    assert isinstance(failed.end, Failed)
    assert isinstance(failed.end.error, ModelFault)
    assert [first.tokens, second.tokens] == expected
    assert [answer.tokens for answer in answers(running, *wanted)] == expected
    assert running.stats()["failed_total"] == 1


def test_a_fault_in_a_token_fed_back(running: Engine) -> None:
    """A decode row that goes mad beside healthy ones."""
    wanted = request(5, 12, seed=1)
    expected = answers(running, wanted)[0].tokens
    mad = Request((1, 2), 12, GREEDY._replace(logit_bias=((NAN_TOKEN, 1000.0),)))
    failed, fine = answers(running, mad, wanted)
    assert failed.ids == [NAN_TOKEN]
    assert isinstance(failed.end, Failed)
    assert fine.tokens == expected


def test_d11_no_token_left_to_choose(running: Engine) -> None:
    ban = GREEDY._replace(logit_bias=tuple((id, -math.inf) for id in range(tiny.N_VOCAB)))
    failed, fine = answers(running, request(4, sampling=ban), request(4))
    assert isinstance(failed.end, Failed)
    assert failed.end.error.code == "model_fault"
    assert len(fine.ids) == 8


def test_a_fault_of_edged_itself_leaves_nobody_waiting(path: Path) -> None:
    with gguf.open(path) as model:
        running = engine.open(EngineConfig(threads=1), model)

        def broken(decode: object, prompt: object) -> None:
            raise ZeroDivisionError

        batch = running._runner.batch
        fill, batch.fill = batch.fill, broken  # type: ignore[method-assign]
        got = wait(running, request(4))
        assert isinstance(got[-1], Failed)
        assert "ZeroDivisionError" in got[-1].error.message
        batch.fill = fill  # type: ignore[method-assign]
        assert isinstance(wait(running, request(4))[-1], Done)
        running.close()


def test_what_a_failing_step_has_ended_is_told(running: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(decode: object, prompt: object) -> None:
        raise ZeroDivisionError

    cancelled, other = ask(running, request(4)), ask(running, request(4, 1, seed=1))
    assert running.step()
    assert cancelled.job is not None
    cancelled.job.cancel()
    late = ask(running, request(4, 1))
    with monkeypatch.context() as patched:
        patched.setattr(running._runner.batch, "fill", broken)
        with pytest.raises(ZeroDivisionError):
            running.step()
    assert cancelled.reason == "cancelled"
    finish(running, other, late)
    assert other.reason == late.reason == "length"


def test_a_fault_of_edged_itself_reaches_requests_that_arrive_meanwhile(path: Path) -> None:
    with gguf.open(path) as model:
        running = engine.open(EngineConfig(threads=1), model)
        late: queue.Queue[Any] = queue.Queue()

        def broken(decode: object, prompt: object) -> None:
            batch.fill = fill  # type: ignore[method-assign]
            running.submit(request(4), late.put)
            raise ZeroDivisionError

        batch = running._runner.batch
        fill, batch.fill = batch.fill, broken  # type: ignore[method-assign]
        assert isinstance(wait(running, request(4))[-1], Failed)
        assert isinstance(late.get(timeout=10), Failed)
        assert isinstance(wait(running, request(4))[-1], Done)
        running.close()


# -- cancelling and closing --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("alone", [True, False])
def test_cancelling_ends_a_step_that_nobody_wants(path: Path, alone: bool) -> None:
    """One that others wait for goes on: a client that keeps hanging up must not keep them waiting."""
    expected = []
    with opened(path) as running:
        expected = [answer.tokens for answer in answers(running, request(30), request(9))]
        leaving = ask(running, request(50))
        staying = [] if alone else [ask(running, request(30)), ask(running, request(9))]
        program = running._runner.program
        step = program.step
        steps = []

        def cancelled_meanwhile(state: np.ndarray) -> bool:
            if not steps:
                assert leaving.job is not None
                leaving.job.cancel()  # as from another thread, while the step is computed
            steps.append(step(state))
            return steps[-1]

        program.step = cancelled_meanwhile  # type: ignore[method-assign]
        finish(running, leaving, *staying)
    assert steps[0] is not alone
    assert leaving.reason == "cancelled"
    assert [answer.tokens for answer in staying] == ([] if alone else expected)


def test_closing_cancels_everything(path: Path) -> None:
    with opened(path) as running:
        got = [ask(running, request(9, None)) for _ in range(12)]
        running.step()
    assert [answer.reason for answer in got] == ["cancelled"] * 12
    running.close()
    with pytest.raises(NotReady):
        ask(running, request(3))


def wait(running: Engine, wanted: Request) -> list[Event]:
    """The events of a request to an engine with a thread."""
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    running.submit(wanted, events.put)
    got = [events.get(timeout=60)]
    while not isinstance(got[-1], Done | Failed):
        got.append(events.get(timeout=60))
    return got


def test_a_thread_serves_many_and_posts_once_a_step(path: Path) -> None:
    """Requests from many threads; each step's events come in one call."""
    posts: list[list[tuple[Sink, Event]]] = []

    def post(events: list[tuple[Sink, Event]]) -> None:
        posts.append(events)
        for sink, event in events:
            sink(event)

    wanted = [request(5 + i, 10, seed=i) for i in range(6)]
    with opened(path) as plain:
        expected = [answer.events[:-1] for answer in answers(plain, *wanted)]
    with gguf.open(path) as model:
        running = engine.open(EngineConfig(threads=2), model, post=post)
        got: list[list[Event]] = [[] for _ in wanted]
        threads = [threading.Thread(target=lambda i=i: got[i].extend(wait(running, wanted[i]))) for i in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        stats = running.stats()
        running.close()
        running.close()
    assert [events[:-1] for events in got] == expected
    assert len(posts) <= stats["steps_total"]
    assert (stats["requests_total"], stats["tokens_total"], stats["running"], stats["waiting"]) == (6, 60, 0, 0)


def test_progress_moves_with_every_step(running: Engine) -> None:
    """What a watchdog looks at."""
    ask(running, request(9, 3))
    seen = []
    while running.step():
        seen.append(running.stats()["progress"])
    assert seen == sorted(set(seen))


def test_cancel_after_the_end_is_harmless(running: Engine) -> None:
    answer = Answer()
    job = running.submit(request(3, 2), answer)
    finish(running, answer)
    job.cancel()
    assert not running.step()
    assert answer.reason == "length"
    with pytest.raises(EdgedError):
        ask(running, Request(()))


# -- the size of prompt steps ------------------------------------------------------------------------------------------


def test_pace_follows_the_machine() -> None:
    """A fast one gets full steps, a slow one short ones; steps too small to tell change nothing."""
    fast, slow = Pace(256), Pace(256)
    for _ in range(8):
        fast.measure(fast.rows, fast.rows / 2000)
        slow.measure(slow.rows, slow.rows / 80)
    assert fast.rows == 256
    assert 8 <= slow.rows <= 20
    slow.measure(1, 1.0)
    assert slow.rows >= 8
    fixed = Pace(7, fixed=True)
    fixed.measure(7, 100.0)
    assert fixed.rows == 7


def test_prompts_of_the_tests_differ() -> None:
    assert prompt(9) != prompt(9, seed=1)
