"""Attention of prompt rows: tasks (run of up to ATTENTION_TILE rows of one sequence, kv head).

A task's query rows are (token, head of the group). For each partition in order, the scores of all its cache blocks
are computed, then the softmax, then the weighted sum of V, both products by one 4 x 16 micro-kernel over blocks
converted to f32. Positions that a row does not see have weight 0, so its neighbours in the tile change no bit of it.
"""

from __future__ import annotations

from edged.kernels.export import export, extern, helper
from edged.kernels.ops.attention_cache import (
    MINUS_INF,
    exponentials,
    first_visible,
    head_block,
    max_of,
    position,
    prepare,
    row_max,
    table_of,
)
from edged.kernels.ops.elementary import exp_of
from edged.kernels.ops.record import (
    F0,
    F1,
    I0,
    I1,
    I2,
    MAX_DECODE,
    N_PROMPT,
    SEQ,
    STOP,
    TYPE,
    A,
    D,
    K,
    scratch,
)
from edged.kernels.simd import (
    atomic_load,
    concat,
    cvt_f32,
    f16x8,
    f32,
    f32x8,
    fma,
    i32,
    i64,
    load,
    ptr,
    shuffle,
    splat,
    store,
    u16,
    zero,
)
from edged.kernels.table import ATTENTION_TILE, KV_BLOCK, KV_PARTITION
from edged.kernels.unroll import static

BIDIRECTIONAL = 1

low_pairs, high_pairs = shuffle([0, 8, 1, 9, 4, 12, 5, 13]), shuffle([2, 10, 3, 11, 6, 14, 7, 15])
low_quads, high_quads = shuffle([0, 1, 8, 9, 4, 5, 12, 13]), shuffle([2, 3, 10, 11, 6, 7, 14, 15])
low_halves, high_halves = shuffle([0, 1, 2, 3, 8, 9, 10, 11]), shuffle([4, 5, 6, 7, 12, 13, 14, 15])

# Scratch of one thread, f32; rows: query rows of the tile, rounded up to 4; wide: dim rounded up to 16
#   queries [rows][dim] | scores [rows][KV_PARTITION] | sums [rows][wide] | maxima [rows] | totals [rows]
#   | block [dim][KV_BLOCK] (K, transposed) or [KV_BLOCK][wide] (V)


@export("ptr, i64, ptr, i64, ptr, i64, i64, i64", internal=True)
def multiply_4x16(a, lda, b, ldb, c, ldc, k, accumulate):
    """c f32 [4][16] (+)= a f32 [4][k] times b f32 [k][16]; ld*: floats from row to row."""
    for r in static(4):
        for j in static(2):
            acc[r, j] = zero(f32x8)
            if accumulate != 0:
                acc[r, j] = load(f32x8, c + (r * ldc + j * 8) * 4)
    for i in range(k):
        for j in static(2):
            v[j] = load(f32x8, b + (i * ldb + j * 8) * 4)
        for r in static(4):
            w = splat(f32x8, load(f32, a + (r * lda + i) * 4))
            for j in static(2):
                acc[r, j] = fma(w, v[j], acc[r, j])
    for r in static(4):
        for j in static(2):
            store(f32x8, c + (r * ldc + j * 8) * 4, acc[r, j])


multiply = extern("multiply_4x16", "ptr, i64, ptr, i64, ptr, i64, i64, i64")


@export("ptr, ptr, i64", internal=True)
def transpose_keys(k, out, dim):
    """k: f16 (KV_BLOCK, dim) -> out: f32 (dim, KV_BLOCK)."""
    for p in range(0, KV_BLOCK, 8):
        for i in range(0, dim, 8):
            for j in static(8):
                r[j] = cvt_f32(load(f16x8, k + ((p + j) * dim + i) * 2))
            for j in static(0, 8, 2):
                ab = concat(r[j], r[j + 1])
                u[j] = low_pairs(ab)
                u[j + 1] = high_pairs(ab)
            for j in static(0, 8, 4):
                lows, highs = concat(u[j], u[j + 2]), concat(u[j + 1], u[j + 3])
                w[j] = low_quads(lows)
                w[j + 1] = high_quads(lows)
                w[j + 2] = low_quads(highs)
                w[j + 3] = high_quads(highs)
            for j in static(4):
                both = concat(w[j], w[j + 4])
                store(f32x8, out + ((i + j) * KV_BLOCK + p) * 4, low_halves(both))
                store(f32x8, out + ((i + j + 4) * KV_BLOCK + p) * 4, high_halves(both))


@export("ptr, ptr, i64, i64, i64", internal=True)
def convert_values(v, out, dim, p0, p1):
    """v: f16 (KV_BLOCK, dim) -> out: f32 (KV_BLOCK, wide). Rows outside p0..p1 may hold anything: they become zero."""
    wide = (dim + 15) // 16 * 16
    for p in range(KV_BLOCK):
        for i in range(wide // 8):
            x = zero(f32x8)
            if p >= p0 and p < p1 and i * 8 < dim:
                x = cvt_f32(load(f16x8, v + (p * dim + i * 8) * 2))
            store(f32x8, out + (p * wide + i * 8) * 4, x)


keys_of = extern("transpose_keys", "ptr, ptr, i64")
values_of = extern("convert_values", "ptr, ptr, i64, i64, i64")


@helper
def load_queries(op, first_row, tokens, kv_head, queries, rows):
    """Queries of the tile times scale, then zero rows up to `rows`."""
    heads, dim = load(i64, op + I0), load(i64, op + I2)
    group = heads // load(i64, op + I1)
    scale = splat(f32x8, load(f32, op + F0))
    for r in range(rows):
        q = load(ptr, op + A) + ((first_row + r // group) * heads + kv_head * group + r % group) * dim * 4
        for i in range(dim // 8):
            x = zero(f32x8)
            if r < tokens * group:
                x = load(f32x8, q + i * 32) * scale
            store(f32x8, queries + (r * dim + i * 8) * 4, x)


@helper
def soften(scores, sums, wide, a, b, n, maximum, total, softcap):
    """Turn one row's scores of a partition into weights and rescale its sums. Only positions a..b of n are seen."""
    if b <= a:
        for i in range(n // 8):
            store(f32x8, scores + i * 32, zero(f32x8))
        return
    prepare(scores, a, b, n, softcap)
    before = load(f32, maximum)
    m = max_of(before, row_max(scores, n))
    shrink = exp_of(before - m)
    store(f32, maximum, m)
    store(f32, total, fma(load(f32, total), shrink, exponentials(scores, n, m)))
    for i in range(wide // 8):
        store(f32x8, sums + i * 32, load(f32x8, sums + i * 32) * splat(f32x8, shrink))


@helper
def sequence_end(state, row):
    """Positions of the sequence of `row`, all of whose rows follow one another in this step."""
    seq, end = load(ptr, state + SEQ), load(i64, state + MAX_DECODE) + load(i64, state + N_PROMPT)
    slot, last = load(i32, seq + row * 4), row
    while last + 1 < end and load(i32, seq + (last + 1) * 4) == slot:
        last += 1
    return position(state, last) + 1


@export("ptr, ptr, i64, i64, i64, ptr", internal=True)
def attend_tile(op, state, first_row, tokens, kv_head, area):
    """Attention of `tokens` rows of consecutive positions, for the heads of one kv head."""
    heads, dim, v_offset = load(i64, op + I0), load(i64, op + I2), load(i64, op + K)
    group, wide, softcap = heads // load(i64, op + I1), (dim + 15) // 16 * 16, load(f32, op + F1)
    rows = (tokens * group + 3) // 4 * 4
    queries = area
    scores = queries + rows * dim * 4
    sums = scores + rows * KV_PARTITION * 4
    maxima = sums + rows * wide * 4
    totals = maxima + rows * 4
    block_f32 = totals + rows * 4
    table, pos = table_of(op, state, first_row), position(state, first_row)
    load_queries(op, first_row, tokens, kv_head, queries, rows)
    for r in range(rows):
        store(f32, maxima + r * 4, f32(MINUS_INF))
        store(f32, totals + r * 4, f32(0.0))
        for i in range(wide // 8):
            store(f32x8, sums + (r * wide + i * 8) * 4, zero(f32x8))
    everything = load(u16, op + TYPE) == BIDIRECTIONAL
    seen, end = first_visible(op, pos), pos + tokens
    if everything:
        end = sequence_end(state, first_row)
    for part in range(seen // KV_PARTITION, (end - 1) // KV_PARTITION + 1):
        a, b = max(seen, part * KV_PARTITION), min(end, (part + 1) * KV_PARTITION)
        block0, block1 = a // KV_BLOCK, (b - 1) // KV_BLOCK + 1
        start, n = block0 * KV_BLOCK, (block1 - block0) * KV_BLOCK
        for block in range(block0, block1):
            keys_of(head_block(op, table, block, kv_head), block_f32, dim)
            for r in range(0, rows, 4):
                to = scores + (r * KV_PARTITION + block * KV_BLOCK - start) * 4
                for c in range(0, KV_BLOCK, 16):
                    multiply(queries + r * dim * 4, dim, block_f32 + c * 4, KV_BLOCK, to + c * 4, KV_PARTITION, dim, 0)
        for r in range(tokens * group):
            p = pos + r // group
            ra, rb = max(first_visible(op, p), a), min(p + 1, b)
            if everything:
                rb = b
            to = sums + r * wide * 4
            row = scores + r * KV_PARTITION * 4
            soften(row, to, wide, ra - start, rb - start, n, maxima + r * 4, totals + r * 4, softcap)
        for block in range(block0, block1):
            first = block * KV_BLOCK
            values_of(head_block(op, table, block, kv_head) + v_offset, block_f32, dim, a - first, b - first)
            for r in range(0, rows, 4):
                weights = scores + (r * KV_PARTITION + first - start) * 4
                for c in range(0, wide, 16):
                    to = sums + (r * wide + c) * 4
                    multiply(weights, KV_PARTITION, block_f32 + c * 4, wide, to, wide, KV_BLOCK, 1)
    for r in range(tokens * group):
        out = load(ptr, op + D) + ((first_row + r // group) * heads + kv_head * group + r % group) * dim * 4
        inverse = splat(f32x8, f32(1.0) / load(f32, totals + r * 4))
        for i in range(dim // 8):
            store(f32x8, out + i * 32, load(f32x8, sums + (r * wide + i * 8) * 4) * inverse)


tile_of = extern("attend_tile", "ptr, ptr, i64, i64, i64, ptr")


@helper
def run_length(state, row, end):
    """Rows from `row` on that continue one sequence at consecutive positions; at most ATTENTION_TILE, before `end`."""
    seq, pos = load(ptr, state + SEQ), position(state, row)
    n = 1
    while (n < ATTENTION_TILE and row + n < end and position(state, row + n) == pos + n
           and load(i32, seq + (row + n) * 4) == load(i32, seq + row * 4)):  # fmt: skip
        n += 1
    return n


@helper
def attend_prompt(op, state, ith, nth):
    kv_heads, stop = load(i64, op + I1), load(ptr, state + STOP)
    row = load(i64, state + MAX_DECODE)
    end = row + load(i64, state + N_PROMPT)
    task = 0
    while row < end:
        n = run_length(state, row, end)
        for kv_head in range(kv_heads):
            if task % nth == ith:
                if atomic_load(i32, stop) != 0:
                    return
                tile_of(op, state, row, n, kv_head, scratch(state, ith))
            task += 1
        row += n
