"""exp, tanh and log within a few units in the last place, and NaN never lost on the way through an op."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edged.kernels.program import address
from edged.kernels.table import ACT_Q8_32, ACT_Q8_256, TYPE_BY_NAME, act_bytes
from tests.kernels.case_runner import Case, run

N = 1 << 16


def elementwise(library: Any, op: str, x: np.ndarray, **fields: Any) -> np.ndarray:
    """One op over a single decode row."""
    x = x.astype(np.float32)
    case = Case(op, op, {"n": x.size, "a": "x", "d": "y", **fields}, {"n_decode": 1}, {"x": x, "y": x.copy()}, {})
    return run(library, case)["y"]


def ulps(got: np.ndarray, want: np.ndarray) -> float:
    """Largest error in units of the last place of the exact f64 value."""
    return float(np.max(np.abs(got - want) / np.spacing(np.abs(want).astype(np.float32))))


def sweep(limit: float) -> np.ndarray:
    """Values of all sizes down to 1e-30, of both signs."""
    small = np.geomspace(1e-30, limit, N // 4)
    return np.concatenate([small, -small, np.linspace(-limit, limit, N // 2)]).astype(np.float32)


def test_tanh(library: Any) -> None:
    x = sweep(20.0)
    assert ulps(elementwise(library, "softcap", x, f0=1.0), np.tanh(x.astype(np.float64))) <= 2.5


def test_exp_within_the_logistic_function(library: Any) -> None:
    x = sweep(80.0)
    exact = x.astype(np.float64) / (1 + np.exp(-x.astype(np.float64)))
    assert ulps(elementwise(library, "gate", x, i0=0), exact) <= 4


def test_log_within_log_probabilities(library: Any) -> None:
    for n in (1, 2, 3, 1000, 100_000):
        logits = np.zeros(n, np.float32)  # ln n, and no error but that of the logarithm
        assert -library.logprobs(address(logits), n, 0, 0, 0, 0) == pytest.approx(np.log(n), rel=2e-7, abs=1e-12)


def test_gates_at_their_limits(library: Any) -> None:
    x = np.array([0.0, -0.0, 1e4, -1e4, 3e38, -3e38, 88.5, -88.5], np.float32)
    for kind in (0, 1):
        assert elementwise(library, "gate", x, i0=kind) == pytest.approx(np.maximum(x, 0), abs=1e-30)
    capped = elementwise(library, "softcap", np.array([np.inf, -np.inf, 3e38, -3e38] * 2), f0=30.0)
    assert capped.tolist() == [30.0, -30.0, 30.0, -30.0] * 2


@pytest.mark.parametrize("fault", [np.nan, -np.nan, np.inf])
@pytest.mark.parametrize(
    ("op", "fields"),
    [("rmsnorm", {"f0": 1e-6}), ("layernorm", {"b": "w", "f0": 1e-6}), ("gate", {"b": "w"}), ("gate", {"i0": 1}),
     ("add", {}), ("softcap", {"f0": 30.0}), ("scale", {"f0": 2.0})],
)  # fmt: skip
def test_a_fault_stays_in_its_row_and_is_not_lost(library: Any, op: str, fields: dict[str, Any], fault: float) -> None:
    rows, n = 5, 96
    x = np.random.default_rng(8).standard_normal((rows, n)).astype(np.float32)
    w = np.ones((rows, n), np.float32)

    def result(x: np.ndarray) -> np.ndarray:
        buffers = {"x": x, "w": w, "y": x.copy()}
        case = Case(op, op, {"n": n, "a": "x", "d": "y", **fields}, {"n_decode": rows}, buffers, {})
        return run(library, case)["y"]

    good = result(x)
    for column in (0, 50, n - 1):
        bad = x.copy()
        bad[2, column] = fault
        got = result(bad)
        if np.isnan(fault) or op in ("add", "scale"):
            assert not np.isfinite(got[2, column])
        assert got[[0, 1, 3, 4]].tobytes() == good[[0, 1, 3, 4]].tobytes()


@pytest.mark.parametrize("fault", [np.nan, np.inf])
@pytest.mark.parametrize(("kind", "weights"), [(ACT_Q8_32, "q8_0"), (ACT_Q8_256, "q6_k")])
def test_a_fault_survives_quantisation_and_the_product(library: Any, kind: Any, weights: str, fault: float) -> None:
    t, k, n = TYPE_BY_NAME[weights], 512, 16
    blocks = np.random.default_rng(3).integers(0, 60, (n, k // t.block, t.size)).astype(np.uint8)
    for n_decode, n_prompt in ((3, 0), (0, 3)):
        x = np.random.default_rng(4).standard_normal((64, k)).astype(np.float32)
        first = 0 if n_decode else 8
        x[first + 1, 300] = fault
        counts = {"n_decode": n_decode, "n_prompt": n_prompt, "max_decode": 8, "max_prompt": 32}
        act = np.zeros(act_bytes(kind, k, 8, 32, library.lanes), np.uint8)
        fields = {"n": k, "type": kind, "a": "x", "d": "act"}
        act = run(library, Case("", "quantise", fields, counts, {"x": x, "act": act}, {}))["act"]
        fields = {"type": t.id, "n": n, "k": k, "stride": t.row_bytes(k), "a": "w", "b": "act", "d": "y", "i0": n}
        buffers = {"w": blocks, "act": act, "y": np.zeros((40, n), np.float32)}
        y = run(library, Case("", "matmul", fields, counts, buffers, {}, scratch=1 << 18))["y"]
        assert not np.isfinite(y[first + 1]).any()
        assert np.isfinite(y[[first, first + 2]]).all()
