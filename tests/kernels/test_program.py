"""The interpreter and its threads: right results, the same on any number of threads, and no step is ever lost."""

from __future__ import annotations

import contextlib
import gc
import random
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edged.errors import EdgedError
from edged.kernels.program import Program, Workers
from edged.kernels.table import STATE
from tests.kernels import tiny_program
from tests.kernels.tiny_program import MAX_DECODE, VOCAB, Tiny

TOKENS = np.random.default_rng(9).integers(0, VOCAB, 150)


@pytest.fixture
def tiny(library: Any) -> Iterator[Callable[..., Tiny]]:
    with contextlib.ExitStack() as stack:

        def make(threads: int, **options: Any) -> Tiny:
            model = Tiny(library, threads, **options)
            stack.callback(model.workers.close)
            return model

        yield make


def generate(model: Tiny, seq: int = 0, steps: int = 12, prompt: int = 37) -> np.ndarray:
    """Logits of a prefill in two chunks and of some decode steps with fixed tokens."""
    rows = [model.prefill(seq, TOKENS[:prompt], 23)]
    rows += [model.step([(seq, p, int(TOKENS[p]))], [], [0]) for p in range(prompt, prompt + steps)]
    return np.concatenate(rows)


def workers() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name.startswith("edged-worker")]


def test_prompt_and_decode_rows_match_a_float64_forward(tiny: Callable[..., Tiny]) -> None:
    model = tiny(2)
    want = tiny_program.forward(model.w, TOKENS[:49])[36:]
    assert np.abs(generate(model) - want).max() < 1e-3 * np.ptp(want)  # the cache holds f16


def test_results_do_not_depend_on_the_number_of_threads(tiny: Callable[..., Tiny]) -> None:
    alone = generate(tiny(1))
    for threads in (2, 3, 4):
        assert generate(tiny(threads)).tobytes() == alone.tobytes()


@pytest.mark.parametrize("chunk", [1, 7, 16, 33, 64])
def test_a_prompt_gives_the_same_bits_in_any_chunks(tiny: Callable[..., Tiny], chunk: int) -> None:
    whole, parts = tiny(2), tiny(2)
    first, second = whole.prefill(0, TOKENS[:64], 64), parts.prefill(0, TOKENS[:64], chunk)
    assert first is not None and second is not None
    assert first.tobytes() == second.tobytes()
    assert whole.cache.tobytes() == parts.cache.tobytes()


def test_a_sequence_gives_the_same_bits_alone_and_in_a_batch(tiny: Callable[..., Tiny]) -> None:
    alone, batch = tiny(2), tiny(2)
    want = generate(alone)
    batch.prefill(0, TOKENS[:37], 23)
    batch.prefill(1, TOKENS[50:60], 64)
    for n, p in enumerate(range(37, 49)):
        prompt = [(2, n * 5 + i, int(TOKENS[i])) for i in range(5)]
        got = batch.step([(1, 10 + n, 5), (0, p, int(TOKENS[p]))], prompt, [MAX_DECODE + 4, 1])
        assert got is not None
        assert got[1].tobytes() == want[n + 1].tobytes()


def test_a_stopped_step_says_so_and_the_next_one_starts_clean(tiny: Callable[..., Tiny]) -> None:
    for threads in (1, 3):
        model = tiny(threads)
        want = generate(model)
        model.program.stop()
        assert model.step([(0, 48, int(TOKENS[48]))], [], [0]) is None
        again = model.step([(0, 48, int(TOKENS[48]))], [], [0])
        assert again is not None
        assert again.tobytes() == want[-1].tobytes()


def test_a_stop_ends_the_step_in_progress(library: Any, tiny: Callable[..., Tiny]) -> None:
    model = tiny(1)
    model.prefill(0, TOKENS[:5], 5)
    threads = Workers(library, 2)
    long = Program(threads, np.tile(model.ops, 2000))
    waiting = threading.Thread(target=stop_after, args=(long, 100))
    waiting.start()
    assert not long.step(model.state)
    waiting.join()
    assert 100 <= long.progress < 2000 * len(model.ops)
    threads.close()


def stop_after(program: Program, ops: int) -> None:
    while program.progress < ops:
        time.sleep(0.001)
    program.stop()


def test_steps_stopped_from_another_thread_at_any_moment_can_be_repeated(tiny: Callable[..., Tiny]) -> None:
    want = generate(tiny(1))
    model = tiny(3)
    over = threading.Event()
    stops = 0

    def hammer() -> None:
        nonlocal stops
        dice = random.Random(4)
        while not over.is_set():
            for _ in range(dice.randrange(3000)):
                pass
            model.program.stop()
            stops += 1
            time.sleep(0.0002)

    hammering = threading.Thread(target=hammer)
    hammering.start()
    try:
        stopped = 0
        for _ in range(20):
            for n, p in enumerate(range(37, 49)):
                if n == 0:
                    while (got := model.step([], [(0, i, int(TOKENS[i])) for i in range(23)], [MAX_DECODE])) is None:
                        stopped += 1
                    rest = [(0, i, int(TOKENS[i])) for i in range(23, 37)]
                    while (got := model.step([], rest, [MAX_DECODE + 13])) is None:
                        stopped += 1
                    assert got.tobytes() == want[0].tobytes()
                while (got := model.step([(0, p, int(TOKENS[p]))], [], [0])) is None:
                    stopped += 1
                assert got.tobytes() == want[n + 1].tobytes()
    finally:
        over.set()
        hammering.join()
    assert 0 < stopped <= stops  # a stop ends one step at most


def test_a_thousand_steps_on_changing_numbers_of_threads(library: Any) -> None:
    dice = random.Random(2)
    want = generate(Tiny(library, 1), steps=1)
    for _ in range(20):
        model = Tiny(library, dice.randrange(1, 6), spin=dice.choice([0, 10, 2000]))
        model.prefill(0, TOKENS[:37], 23)
        for _ in range(50):
            got = model.step([(0, 37, int(TOKENS[37]))], [], [0])
            assert got is not None
            assert got.tobytes() == want[1].tobytes()
            if dice.random() < 0.1:
                time.sleep(0.001)  # long enough for the workers to fall asleep
        model.workers.close()


def test_workers_sleep_between_steps(tiny: Callable[..., Tiny]) -> None:
    model = tiny(3)
    generate(model)
    threads = workers()
    assert len(threads) == 2
    for thread in threads:
        stat = Path(f"/proc/self/task/{thread.native_id}/stat")
        end = time.monotonic() + 10
        while (state := stat.read_text().rpartition(")")[2].split()[0]) != "S" and time.monotonic() < end:
            time.sleep(0.01)
        assert state == "S"
        assert stat.with_name("comm").read_text().strip() == thread.name


def test_progress_counts_ops(tiny: Callable[..., Tiny]) -> None:
    model = tiny(2)
    model.prefill(0, TOKENS[:10], 10)
    once = model.program.progress
    model.prefill(0, TOKENS[:10], 10)
    assert once > 30
    assert model.program.progress == 2 * once


def test_close_ends_the_threads_and_may_be_repeated(library: Any) -> None:
    before = len(workers())
    model = Tiny(library, 4)
    assert len(workers()) == before + 3
    model.workers.close()
    model.workers.close()
    assert len(workers()) == before
    with pytest.raises(EdgedError, match="closed"):
        model.program.step(np.zeros(1, STATE))


def test_an_abandoned_program_ends_its_threads(library: Any) -> None:
    before = len(workers())
    model = Tiny(library, 3)
    model.prefill(0, TOKENS[:5], 5)
    del model
    gc.collect()
    assert len(workers()) == before


def test_a_step_without_rows_is_done_at_once(tiny: Callable[..., Tiny]) -> None:
    model = tiny(2)
    got = model.step([], [], [])
    assert got is not None
    assert got.shape == (0, VOCAB)
