"""gather: copy the rows whose logits are wanted from a BODY buffer to the rows of a LOGITS buffer.

A thread copies its columns, as an elementwise op on LOGITS rows.
"""

from __future__ import annotations

import numpy as np

from edged.kernels.export import export
from edged.kernels.ops.record import LOGIT_ROWS, N_LOGITS, OP_SIGNATURE, A, D, N, columns
from edged.kernels.simd import f32x8, i32, i64, load, ptr, store


def reference(x: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """x: (rows, n); rows: (n_logits,)."""
    return x[rows]


@export(OP_SIGNATURE)
def op_gather(op, state, ith, nth):
    n, x, d = load(i64, op + N), load(ptr, op + A), load(ptr, op + D)
    rows = load(ptr, state + LOGIT_ROWS)
    c0, c1 = columns(n, ith, nth)
    for r in range(load(i64, state + N_LOGITS)):
        row = x + i64(load(i32, rows + r * 4)) * n * 4
        for i in range(c0 // 8, c1 // 8):
            store(f32x8, d + (r * n * 4 + i * 32), load(f32x8, row + i * 32))
