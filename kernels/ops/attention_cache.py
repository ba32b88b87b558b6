"""What both kinds of attention share: where a row's cache blocks are, and the masked softmax of its scores."""

from __future__ import annotations

from edged.kernels.export import helper
from edged.kernels.ops.elementary import vexp
from edged.kernels.ops.record import I2, I3, POS, SEQ, STRIDE, C, E, N
from edged.kernels.ops.softcap import vcap
from edged.kernels.simd import (
    f32,
    f32x8,
    get,
    hsum,
    i32,
    i64,
    load,
    ptr,
    splat,
    store,
    where_gt,
    zero,
)
from edged.kernels.table import KV_BLOCK

MINUS_INF = float("-inf")


@helper
def position(state, row):
    return i64(load(i32, load(ptr, state + POS) + row * 4))


@helper
def table_of(op, state, row):
    """The block table of the row's sequence."""
    return load(ptr, op + C) + i64(load(i32, load(ptr, state + SEQ) + row * 4)) * load(i64, op + N) * 4


@helper
def first_visible(op, pos):
    """First position that a row at `pos` attends."""
    window = load(i64, op + I3)
    if window > 0:
        return max(0, pos - window + 1)
    return 0


@helper
def head_block(op, table, block, kv_head):
    """f16 (KV_BLOCK, dim): the K rows of one block and head."""
    at = i64(load(i32, table + block * 4)) * load(i64, op + STRIDE)
    return load(ptr, op + E) + (at + kv_head * KV_BLOCK * load(i64, op + I2) * 2)


@helper
def row_max(scores, n):
    """Largest of n floats, n a multiple of 8; NaN may be skipped."""
    m = splat(f32x8, f32(MINUS_INF))
    for i in range(n // 8):
        v = load(f32x8, scores + i * 32)
        m = where_gt(v, m, v, m)
    best = get(m, 0)
    for j in static(1, 8):
        best = max_of(best, get(m, j))
    return best


@helper
def max_of(a, b):
    if b > a:
        return b
    return a


@helper
def prepare(scores, a, b, n, softcap):
    """Cap the scores of positions 0..n and hide all but a..b."""
    if softcap > f32(0.0):
        for i in range(n // 8):
            store(f32x8, scores + i * 32, vcap(load(f32x8, scores + i * 32), softcap))
    for i in range(a):
        store(f32, scores + i * 4, f32(MINUS_INF))
    for i in range(b, n):
        store(f32, scores + i * 4, f32(MINUS_INF))


@helper
def exponentials(scores, n, m):
    """Replace n scores s by exp(s - m), return their sum."""
    total = zero(f32x8)
    for i in range(n // 8):
        p = vexp(load(f32x8, scores + i * 32) - splat(f32x8, m))
        total = total + p
        store(f32x8, scores + i * 32, p)
    return hsum(total)
