"""matmul: y = W x [+ bias] for every row; with ADD it is added to the output.

Decode rows take matvec (1 row) or matvec_rows (groups of at most 16), prompt rows always take tile. Each thread owns a
range of output columns, so that a weight is read by one thread only.
"""

from __future__ import annotations

import numpy as np

from edged.kernels.export import export, helper
from edged.kernels.ops.dispatch import by_type
from edged.kernels.ops.quantise import row_record_bytes
from edged.kernels.ops.record import (
    FLAGS,
    I0,
    MAX_DECODE,
    N_PROMPT,
    OP_SIGNATURE,
    REGION,
    STOP,
    STRIDE,
    TYPE,
    A,
    B,
    C,
    D,
    K,
    N,
    decode_rows,
    scratch,
    share,
)
from edged.kernels.simd import address, atomic_load, f32, i32, i64, load, ptr, store, u16
from edged.kernels.table import ADD, REGION_BODY, TYPES, ActKind

POLL = 256  # output columns between two looks at the stop word
MAX_ROWS = 16  # most rows that matvec_rows takes
COLUMNS = 16  # output columns are dealt out in whole cache lines


def reference(weights: np.ndarray, x: np.ndarray, bias: np.ndarray | None = None) -> np.ndarray:
    """weights: (n, k) dequantised; x: (rows, k) as the activation buffer holds it; bias: (n,)."""
    y = x.astype(np.float64) @ weights.astype(np.float64).T
    return y if bias is None else y + bias


def act_kind(type_id: int) -> ActKind:
    """Activation kind that the kernels of a tensor type read."""
    return next(t.act for t in TYPES if t.id == type_id)


matvec = by_type("matvec", "ptr, i64, i64, i64, i64, ptr, ptr, i64")
matvec_rows = by_type("matvec_rows", "ptr, i64, i64, i64, i64, ptr, i64, i64, ptr, i64, i64")
tile = by_type("tile", "ptr, i64, i64, i64, i64, ptr, i64, ptr, i64, i64, ptr, ptr")


@helper
def decode(op, rows, x, y, r0, r1, add, stop):
    """Output columns r0..r1 of the decode rows."""
    type_id, w, stride, k = load(u16, op + TYPE), load(ptr, op + A), load(i64, op + STRIDE), load(i64, op + K)
    ldy, record = load(i64, op + I0), row_record_bytes(type_id, k)
    groups = (rows + MAX_ROWS - 1) // MAX_ROWS
    for c0 in range(r0, r1, POLL):
        if atomic_load(i32, stop) != 0:
            return
        c1 = min(r1, c0 + POLL)
        for g in range(groups):
            i0, i1 = rows * g // groups, rows * (g + 1) // groups
            xg, yg = x + i0 * record, y + i0 * ldy * 4
            if i1 - i0 == 1:
                matvec(type_id, w, stride, c0, c1, k, xg, yg, add)
            else:
                matvec_rows(type_id, w, stride, c0, c1, k, xg, record, i1 - i0, yg, ldy, add)


@helper
def add_bias(bias, y, ldy, rows, r0, r1):
    for i in range(rows):
        for r in range(r0, r1):
            at = y + (i * ldy + r) * 4
            store(f32, at, load(f32, at) + load(f32, bias + r * 4))


@export(OP_SIGNATURE)
def op_matmul(op, state, ith, nth):
    x, y, ldy, bias = load(ptr, op + B), load(ptr, op + D), load(i64, op + I0), load(ptr, op + C)
    add = i64(load(u16, op + FLAGS) & ADD != 0)
    stop = load(ptr, state + STOP)
    r0, r1 = share(load(i64, op + N), COLUMNS, ith, nth)
    rows = decode_rows(op, state)
    if rows > 0:
        decode(op, rows, x, y, r0, r1, add, stop)
        if address(bias) != 0:
            add_bias(bias, y, ldy, rows, r0, r1)
    n_prompt = load(i64, state + N_PROMPT)
    if n_prompt > 0 and load(u16, op + REGION) == REGION_BODY:
        type_id, k, max_decode = load(u16, op + TYPE), load(i64, op + K), load(i64, state + MAX_DECODE)
        panels = x + max_decode * row_record_bytes(type_id, k)
        y = y + max_decode * ldy * 4
        w, stride = load(ptr, op + A), load(i64, op + STRIDE)
        tile(type_id, w, stride, r0, r1, k, panels, n_prompt, y, ldy, add, scratch(state, ith), stop)
        if address(bias) != 0:
            add_bias(bias, y, ldy, n_prompt, r0, r1)
