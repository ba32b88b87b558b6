"""rmsnorm: y = x / sqrt(mean(x**2) + eps) * w, per row; with ADD it is added to the output.

A thread reads whole rows of `a`: what writes `a` needs a SYNC before this op, and `d` must not be `a`.
"""

from __future__ import annotations

import numpy as np

from edged.kernels.export import export, helper
from edged.kernels.ops.record import (
    F0,
    FLAGS,
    OP_SIGNATURE,
    A,
    B,
    D,
    N,
    columns,
    decode_rows,
    prompt_rows,
)
from edged.kernels.simd import address, f32, f32x8, fma, hsum, i64, load, ptr, splat, store, u16, vsqrt, zero
from edged.kernels.table import ADD


def reference(x: np.ndarray, weight: np.ndarray | None, eps: float) -> np.ndarray:
    """x: (rows, n), weight: (n,) or None."""
    x = x.astype(np.float64)
    y = x / np.sqrt((x * x).mean(-1, keepdims=True) + eps)
    return y if weight is None else y * weight


@helper
def inverse_rms(x, n, eps):
    """1 / sqrt(mean(x**2) + eps) of n floats."""
    squares = zero(f32x8)
    for i in range(n // 8):
        v = load(f32x8, x + i * 32)
        squares = fma(v, v, squares)
    return f32(1.0) / vsqrt(hsum(squares) / f32(n) + eps)


@helper
def rmsnorm_row(x, weight, y, n, eps, add, c0, c1):
    s = splat(f32x8, inverse_rms(x, n, eps))
    weighted = address(weight) != 0
    for i in range(c0 // 8, c1 // 8):
        v = load(f32x8, x + i * 32) * s
        if weighted:
            v = v * load(f32x8, weight + i * 32)
        if add:
            v = v + load(f32x8, y + i * 32)
        store(f32x8, y + i * 32, v)


@export(OP_SIGNATURE)
def op_rmsnorm(op, state, ith, nth):
    n = load(i64, op + N)
    x, weight, y = load(ptr, op + A), load(ptr, op + B), load(ptr, op + D)
    eps = load(f32, op + F0)
    add = load(u16, op + FLAGS) & ADD != 0
    c0, c1 = columns(n, ith, nth)
    for r in range(decode_rows(op, state)):
        rmsnorm_row(x + r * n * 4, weight, y + r * n * 4, n, eps, add, c0, c1)
    r0, r1 = prompt_rows(op, state, ith, nth)
    for r in range(r0, r1):
        rmsnorm_row(x + r * n * 4, weight, y + r * n * 4, n, eps, add, 0, n)
