"""The native sampler against a plain numpy one, and every edge value of its parameters."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edged.kernels.program import address
from edged.kernels.table import SAMPLE_NO_TOKEN, SAMPLE_NOT_FINITE, SAMPLING, sampling_scratch_bytes
from tests.kernels.sampler import filters, logits_of, sample

SIZES = (1, 7, 64, 1000, 49152)


@pytest.mark.parametrize("n", SIZES)
def test_choice_equals_the_plain_sampler(library: Any, n: int) -> None:
    from edged.kernels.ops.sampling import reference

    dice = np.random.default_rng(n)
    logits = logits_of(n, n)
    for params in filters() if n <= 1000 else filters()[::11]:
        for draw in [0, 2**32 - 1, int(dice.integers(2**32))]:
            # the native sampler rounds to f32: within that of a bound either neighbour is right
            near = {reference(logits, params, d)[0] for d in (max(0, draw - 9000), min(2**32 - 1, draw + 9000))}
            assert sample(library, logits, draw, **params) in near, (params, draw)


def test_draws_follow_the_probabilities(library: Any) -> None:
    logits = np.log(np.array([0.5, 0.25, 0.125, 0.125], np.float32))
    draws = [sample(library, logits, n * 2**32 // 4096) for n in range(4096)]
    assert np.bincount(draws).tolist() == [2048, 1024, 512, 512]
    draws = [sample(library, logits, n * 2**32 // 4096, top_k=2, temperature=0.5) for n in range(4096)]
    assert np.bincount(draws).tolist() == pytest.approx([4096 * 0.8, 4096 * 0.2], abs=1)


def test_top_p_keeps_the_token_that_reaches_it_and_always_one(library: Any) -> None:
    logits = np.log(np.array([0.1, 0.4, 0.3, 0.2], np.float32))

    def kept(**params: float) -> set[int]:
        return {sample(library, logits, n * 2**24, **params) for n in range(256)}

    assert kept(top_p=0.0) == kept(top_p=1e-9) == kept(top_p=0.39) == kept(top_k=1) == {1}
    assert kept(top_p=0.41) == kept(top_k=2) == {1, 2}
    assert kept(top_p=0.71) == {1, 2, 3}
    assert kept(top_p=0.91) == kept() == {0, 1, 2, 3}
    assert kept(min_p=0.6) == {1, 2}
    assert kept(min_p=1.0) == {1}
    assert kept(top_k=3, top_p=0.7) == {1, 2}  # of 0.9: 0.4 + 0.3 = 78 %
    assert kept(top_p=0.71, min_p=0.6) == {1, 2}


def test_equal_logits_rank_by_id(library: Any) -> None:
    logits = np.zeros(300, np.float32)
    assert sample(library, logits, temperature=0.0) == 0
    assert {sample(library, logits, n * 2**24, top_k=3) for n in range(256)} == {0, 1, 2}


@pytest.mark.parametrize("temperature", [0.0, -1.0, 1e-9, 1e-4, 1e-40])
def test_d11_tiny_temperatures_are_greedy(library: Any, temperature: float) -> None:
    for n in SIZES:
        logits = logits_of(n, 3)
        for draw in (0, 2**31, 2**32 - 1):
            for top_k in (0, 40):
                got = sample(library, logits, draw, temperature=temperature, top_k=top_k)
                assert got == int(np.argmax(logits))


@pytest.mark.parametrize("temperature", [0.0, 1e-9, 1e-4, 1.0, 100.0])
@pytest.mark.parametrize("top_p", [0.0, 1e-9, 1.0])
@pytest.mark.parametrize("top_k", [0, 1, 2**31 - 1])
def test_d11_edge_values_give_valid_ids(library: Any, temperature: float, top_p: float, top_k: int) -> None:
    for logits in (logits_of(1000), logits_of(1000, spread=1e30), np.zeros(9, np.float32)):
        for draw in (0, 2**32 - 1):
            got = sample(library, logits, draw, temperature=temperature, top_p=top_p, top_k=top_k)
            assert 0 <= got < len(logits)


def test_d11_faults_are_reported(library: Any) -> None:
    for n in (7, 64, 1000):
        for where in (0, n // 2, n - 1):
            for fault in (np.nan, np.inf, -np.nan):
                logits = logits_of(n)
                logits[where] = fault
                for params in ({"temperature": 0.0}, {"top_k": 40}, {}):
                    assert sample(library, logits, **params) == SAMPLE_NOT_FINITE
        for params in ({"temperature": 0.0}, {"top_k": 40}, {}):
            assert sample(library, np.full(n, -np.inf, np.float32), **params) == SAMPLE_NO_TOKEN


def test_tokens_without_probability_are_never_drawn(library: Any) -> None:
    logits = np.full(500, -np.inf, np.float32)
    logits[[77, 400]] = 0.0
    for params in ({}, {"top_k": 40}, {"top_p": 0.99}, {"min_p": 0.01}):
        drawn = {sample(library, logits, draw, **params) for draw in (0, 2**30, 3 * 2**30, 2**32 - 1)}
        assert drawn == {77, 400}


def test_bias_and_penalties_follow_llama_cpp(library: Any) -> None:
    logits = np.array([2.0, -1.0, 1.9, 0.0], np.float32)
    greedy = {"temperature": 0.0}
    assert sample(library, logits, **greedy) == 0
    assert sample(library, logits, seen={0: 1}, repeat=1.1, **greedy) == 2  # 2 / 1.1 < 1.9
    below = np.array([-0.5, -0.6], np.float32)
    assert sample(library, below, seen={0: 1}, repeat=1.1, **greedy) == 0
    assert sample(library, below, seen={0: 1}, repeat=1.3, **greedy) == 1  # -0.5 * 1.3 < -0.6
    assert sample(library, logits, bias={3: 2.5}, **greedy) == 3
    assert sample(library, logits, bias={0: -100.0}, **greedy) == 2
    assert sample(library, logits, seen={0: 3}, presence=0.2, **greedy) == 2
    assert sample(library, logits, seen={0: 3}, frequency=0.04, **greedy) == 2  # three times 0.04
    assert sample(library, logits, seen={0: 2}, frequency=0.04, **greedy) == 0
    assert sample(library, logits, bias={3: 4.0}, seen={3: 1}, repeat=4.0, **greedy) == 0  # bias first, then / 4


def test_repeated_bias_ids_add_up_and_are_undone(library: Any) -> None:
    logits = np.zeros(20, np.float32)
    record = np.zeros(1, SAMPLING)
    ids, bias = np.array([5, 5, 6], np.int32), np.array([1.0, 1.0, 1.5], np.float32)
    scratch = np.empty(sampling_scratch_bytes(20, 3, 0), np.uint8)
    for name, value in {"n_bias": 3, "bias_ids": ids, "bias": bias, "scratch": scratch, "repeat": 1.0}.items():
        record[name] = address(value) if isinstance(value, np.ndarray) else value
    assert library.sample(address(logits), 20, address(record)) == 5
    assert not logits.any()


@pytest.mark.parametrize("n", SIZES)
def test_logprobs_of_a_token_and_of_the_best(library: Any, n: int) -> None:
    logits = logits_of(n, 5, 8.0)
    x = logits.astype(np.float64)
    want = x - x.max() - np.log(np.exp(x - x.max()).sum())
    for top in (0, 1, min(n, 20)):
        ids, values = np.full(20, -1, np.int32), np.zeros(20, np.float32)
        for token in {0, n // 2, n - 1}:
            got = library.logprobs(address(logits), n, token, top, address(ids), address(values))
            assert got == pytest.approx(want[token], abs=4e-6)
        order = np.lexsort((np.arange(n), -x))[:top]
        assert ids[:top].tolist() == order.tolist()
        assert (ids[top:] == -1).all()
        assert values[:top] == pytest.approx(want[order], abs=4e-6)


@pytest.mark.parametrize("fault", [np.nan, np.inf])
def test_d11_a_fault_has_no_log_probability(library: Any, fault: float) -> None:
    for n in (7, 64, 1000):
        logits = logits_of(n)
        logits[n // 2] = fault
        assert np.isnan(library.logprobs(address(logits), n, 0, 0, 0, 0))
        assert np.isnan(library.logprobs(address(np.full(n, -np.inf, np.float32)), n, 0, 0, 0, 0))
