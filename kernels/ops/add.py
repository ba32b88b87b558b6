"""add: d += a, element by element."""

from __future__ import annotations

import numpy as np

from edged.kernels.export import export, helper
from edged.kernels.ops.record import OP_SIGNATURE, A, D, N, columns, decode_rows, prompt_rows
from edged.kernels.simd import f32x8, i64, load, ptr, store


def reference(d: np.ndarray, a: np.ndarray) -> np.ndarray:
    """d, a: (rows, n)."""
    return d + a


@helper
def add_row(a, d, c0, c1):
    for i in range(c0 // 8, c1 // 8):
        store(f32x8, d + i * 32, load(f32x8, d + i * 32) + load(f32x8, a + i * 32))


@export(OP_SIGNATURE)
def op_add(op, state, ith, nth):
    n = load(i64, op + N)
    a, d = load(ptr, op + A), load(ptr, op + D)
    c0, c1 = columns(n, ith, nth)
    for r in range(decode_rows(op, state)):
        add_row(a + r * n * 4, d + r * n * 4, c0, c1)
    r0, r1 = prompt_rows(op, state, ith, nth)
    for r in range(r0, r1):
        add_row(a + r * n * 4, d + r * n * 4, 0, n)
