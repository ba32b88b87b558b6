"""layernorm: y = (x - mean) / sqrt(var + eps) * w + b, per row.

A thread reads whole rows of `a`: what writes `a` needs a SYNC before this op, and `d` must not be `a`.
"""

from __future__ import annotations

import numpy as np

from edged.kernels.export import export, helper
from edged.kernels.ops.record import F0, OP_SIGNATURE, A, B, C, D, N, columns, decode_rows, prompt_rows
from edged.kernels.simd import address, f32, f32x8, fma, hsum, i64, load, ptr, splat, store, vsqrt, zero


def reference(x: np.ndarray, weight: np.ndarray, bias: np.ndarray | None, eps: float) -> np.ndarray:
    """x: (rows, n), weight, bias: (n,)."""
    x = x.astype(np.float64)
    centred = x - x.mean(-1, keepdims=True)
    y = centred / np.sqrt((centred * centred).mean(-1, keepdims=True) + eps) * weight
    return y if bias is None else y + bias


@helper
def layernorm_row(x, weight, bias, y, n, eps, c0, c1):
    total = zero(f32x8)
    for i in range(n // 8):
        total = total + load(f32x8, x + i * 32)
    mean = splat(f32x8, hsum(total) / f32(n))
    squares = zero(f32x8)
    for i in range(n // 8):
        v = load(f32x8, x + i * 32) - mean
        squares = fma(v, v, squares)
    s = splat(f32x8, f32(1.0) / vsqrt(hsum(squares) / f32(n) + eps))
    for i in range(c0 // 8, c1 // 8):
        v = (load(f32x8, x + i * 32) - mean) * s * load(f32x8, weight + i * 32)
        if address(bias) != 0:
            v = v + load(f32x8, bias + i * 32)
        store(f32x8, y + i * 32, v)


@export(OP_SIGNATURE)
def op_layernorm(op, state, ith, nth):
    n = load(i64, op + N)
    x, weight, bias, y = load(ptr, op + A), load(ptr, op + B), load(ptr, op + C), load(ptr, op + D)
    eps = load(f32, op + F0)
    c0, c1 = columns(n, ith, nth)
    for r in range(decode_rows(op, state)):
        layernorm_row(x + r * n * 4, weight, bias, y + r * n * 4, n, eps, c0, c1)
    r0, r1 = prompt_rows(op, state, ith, nth)
    for r in range(r0, r1):
        layernorm_row(x + r * n * 4, weight, bias, y + r * n * 4, n, eps, 0, n)
