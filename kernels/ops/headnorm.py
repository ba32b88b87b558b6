"""headnorm: rmsnorm of each head, in place. Decode rows are shared by heads, prompt rows by panels, as in rope."""

from __future__ import annotations

import numpy as np

from edged.kernels.export import export, helper
from edged.kernels.ops.record import F0, I0, I1, OP_SIGNATURE, A, B, N, decode_rows, prompt_rows, share
from edged.kernels.ops.rmsnorm import rmsnorm_row
from edged.kernels.simd import f32, i64, load, ptr


def reference(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    """x: (rows, heads, head_dim), weight: (head_dim,)."""
    x = x.astype(np.float64)
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight


@helper
def headnorm_row(x, weight, dim, eps, h0, h1):
    for h in range(h0, h1):
        rmsnorm_row(x + h * dim * 4, weight, x + h * dim * 4, dim, eps, False, 0, dim)


@export(OP_SIGNATURE)
def op_headnorm(op, state, ith, nth):
    n, heads, dim = load(i64, op + N), load(i64, op + I0), load(i64, op + I1)
    x, weight = load(ptr, op + A), load(ptr, op + B)
    eps = load(f32, op + F0)
    h0, h1 = share(heads, 1, ith, nth)
    for r in range(decode_rows(op, state)):
        headnorm_row(x + r * n * 4, weight, dim, eps, h0, h1)
    r0, r1 = prompt_rows(op, state, ith, nth)
    for r in range(r0, r1):
        headnorm_row(x + r * n * 4, weight, dim, eps, 0, heads)
