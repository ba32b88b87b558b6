"""scale: d *= f0, element by element."""

from __future__ import annotations

import numpy as np

from edged.kernels.export import export, helper
from edged.kernels.ops.record import F0, OP_SIGNATURE, D, N, columns, decode_rows, prompt_rows
from edged.kernels.simd import f32, f32x8, i64, load, ptr, splat, store


def reference(d: np.ndarray, factor: float) -> np.ndarray:
    """d: (rows, n)."""
    return d * np.float32(factor)


@helper
def scale_row(d, factor, c0, c1):
    for i in range(c0 // 8, c1 // 8):
        store(f32x8, d + i * 32, load(f32x8, d + i * 32) * splat(f32x8, factor))


@export(OP_SIGNATURE)
def op_scale(op, state, ith, nth):
    n = load(i64, op + N)
    d, factor = load(ptr, op + D), load(f32, op + F0)
    c0, c1 = columns(n, ith, nth)
    for r in range(decode_rows(op, state)):
        scale_row(d + r * n * 4, factor, c0, c1)
    r0, r1 = prompt_rows(op, state, ith, nth)
    for r in range(r0, r1):
        scale_row(d + r * n * 4, factor, 0, n)
