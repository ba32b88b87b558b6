"""Calls the native sampler with numpy alone."""

from __future__ import annotations

from typing import Any

import numpy as np

from edged.kernels.program import address
from edged.kernels.table import SAMPLING, sampling_scratch_bytes

OFF = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}


def logits_of(n: int, seed: int = 0, spread: float = 3.0) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(n) * spread).astype(np.float32)


def sample(
    library: Any, logits: np.ndarray, draw: int = 0, *, bias: dict[int, float] | None = None,
    seen: dict[int, int] | None = None, repeat: float = 1.0, presence: float = 0.0, frequency: float = 0.0,
    **params: float,
) -> int:  # fmt: skip
    """Call the library as the engine does."""
    arrays = {
        "bias_ids": np.array(list(bias or ()), np.int32), "bias": np.array(list((bias or {}).values()), np.float32),
        "seen_ids": np.array(list(seen or ()), np.int32),
        "seen_counts": np.array(list((seen or {}).values()), np.int32),
        "scratch": np.empty(sampling_scratch_bytes(len(logits), len(bias or ()), len(seen or ())), np.uint8),
    }  # fmt: skip
    record = np.zeros(1, SAMPLING)
    for name, value in {
        **OFF, **params, "repeat": repeat, "presence": presence, "frequency": frequency, "draw": draw,
        "n_bias": len(bias or ()), "n_seen": len(seen or ()), **{k: address(a) for k, a in arrays.items()},
    }.items():  # fmt: skip
        record[name] = value
    before = logits.tobytes()
    token = library.sample(address(logits), len(logits), address(record))
    assert logits.tobytes() == before, "the logits were changed"
    return int(token)


def filters() -> list[dict[str, float]]:
    """Settings that switch every filter off, on, and to its limits."""
    return [
        {**OFF, "temperature": t, "top_k": k, "top_p": p, "min_p": m}
        for t in (0.3, 1.0, 5.0)
        for k in (0, 1, 5, 40, 10**9)
        for p in (0.0, 1e-9, 0.5, 0.95, 1.0)
        for m in (0.0, 0.05, 0.5, 1.0)
    ]
