"""softcap: d = cap * tanh(d / cap) with cap = f0, element by element (Gemma 2, arXiv 2408.00118)."""

from __future__ import annotations

import numpy as np

from edged.kernels.export import export, helper
from edged.kernels.ops.elementary import vtanh
from edged.kernels.ops.record import F0, OP_SIGNATURE, D, N, columns, decode_rows, prompt_rows
from edged.kernels.simd import f32, f32x8, i64, load, ptr, splat, store


def reference(d: np.ndarray, cap: float) -> np.ndarray:
    """d: (rows, n)."""
    return cap * np.tanh(d.astype(np.float64) / cap)


@helper
def vcap(x, cap):
    """cap * tanh(x / cap) of eight floats."""
    return vtanh(x / splat(f32x8, cap)) * splat(f32x8, cap)


@helper
def softcap_row(d, cap, c0, c1):
    for i in range(c0 // 8, c1 // 8):
        store(f32x8, d + i * 32, vcap(load(f32x8, d + i * 32), cap))


@export(OP_SIGNATURE)
def op_softcap(op, state, ith, nth):
    n = load(i64, op + N)
    d, cap = load(ptr, op + D), load(f32, op + F0)
    c0, c1 = columns(n, ith, nth)
    for r in range(decode_rows(op, state)):
        softcap_row(d + r * n * 4, cap, c0, c1)
    r0, r1 = prompt_rows(op, state, ith, nth)
    for r in range(r0, r1):
        softcap_row(d + r * n * 4, cap, 0, n)
