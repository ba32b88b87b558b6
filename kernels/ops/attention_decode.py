"""Attention of decode rows: tasks (row, kv head, partition, heads of the group), then a merge.

Partials: f32 [row][head][partition][16 + dim] = m, l, merge weight, unused..., acc. A record is written by one task
and merged by one thread. How many heads share a task changes no result: each head has its own accumulators.
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
from edged.kernels.ops.dispatch import choose
from edged.kernels.ops.elementary import exp_of
from edged.kernels.ops.record import F0, F1, I0, I1, I2, N_DECODE, STOP, A, B, D, K, N, scratch, share
from edged.kernels.simd import (
    atomic_load,
    concat,
    cvt_f32,
    f16x8,
    f32,
    f32x4,
    f32x8,
    fma,
    high,
    i32,
    i64,
    load,
    low,
    prefetch,
    ptr,
    shuffle,
    splat,
    store,
    zero,
)
from edged.kernels.table import KV_BLOCK, KV_PARTITION
from edged.kernels.unroll import Param, static

# heads computed together; positions and f32x8 columns whose sums are held in registers (16 of them on x86)
HEADS, POSITIONS, VECTORS = Param("HEADS"), Param("POSITIONS"), Param("VECTORS")
scores_of, values_of_32, values_of_8 = Param("scores_of"), Param("values_of_32"), Param("values_of_8")
MAX_HEADS = 3
HEADER = 16  # floats before acc

even_low, even_high = shuffle([0, 4, 1, 5]), shuffle([2, 6, 3, 7])
pair_low, pair_high = shuffle([0, 1, 4, 5]), shuffle([2, 3, 6, 7])


@helper
def fold(a, b):
    """Lane sums of a and b, halfway: [a0 + a2, b0 + b2, a1 + a3, b1 + b3] of their folded halves."""
    ab = concat(low(a) + high(a), low(b) + high(b))
    return even_low(ab) + even_high(ab)


@helper
def sums4(a, b, c, d):
    """The lane sums of four f32x8 as one f32x4."""
    abcd = concat(fold(a, b), fold(c, d))
    return pair_low(abcd) + pair_high(abcd)


def attend_scores(q, k, ahead, out, dim, scale):
    """out f32 [HEADS][KV_PARTITION]: scale * q . k for four positions. q: f32 (HEADS, dim); k: f16 (4, dim).

    ahead: what to fetch meanwhile, as much as k.
    """
    for i in range(0, dim * 8, 64):
        prefetch(ahead + i)
    for first in static(0, 4, POSITIONS):
        for h in static(HEADS):
            for j in static(POSITIONS):
                acc[h, first + j] = zero(f32x8)
        for i in range(dim // 8):
            for j in static(POSITIONS):
                kj = cvt_f32(load(f16x8, k + ((first + j) * dim + i * 8) * 2))
                for h in static(HEADS):
                    acc[h, first + j] = fma(load(f32x8, q + (h * dim + i * 8) * 4), kj, acc[h, first + j])
    for h in static(HEADS):
        s = sums4(acc[h, 0], acc[h, 1], acc[h, 2], acc[h, 3])
        store(f32x4, out + h * KV_PARTITION * 4, s * splat(f32x4, scale))


def attend_values(op, table, kv_head, p, a, b, column, out, ldo):
    """out f32 [HEADS][ldo]: sum of p * v over positions a..b, for VECTORS * 8 columns from `column`.

    p: f32 [HEADS][KV_PARTITION], indexed by position within the partition.
    """
    dim, v_offset = load(i64, op + I2), load(i64, op + K)
    for h in static(HEADS):
        for c in static(VECTORS):
            acc[h, c] = zero(f32x8)
    for block in range(a // KV_BLOCK, (b - 1) // KV_BLOCK + 1):
        v = head_block(op, table, block, kv_head) + (v_offset + column * 2)
        ahead = head_block(op, table, min(block + 1, (b - 1) // KV_BLOCK), kv_head) + (v_offset + column * 2)
        for pos in range(max(a, block * KV_BLOCK), min(b, (block + 1) * KV_BLOCK)):
            row = v + pos % KV_BLOCK * dim * 2
            prefetch(ahead + pos % KV_BLOCK * dim * 2)
            for h in static(HEADS):
                weight[h] = splat(f32x8, load(f32, p + (h * KV_PARTITION + pos % KV_PARTITION) * 4))
            for c in static(VECTORS):
                vc = cvt_f32(load(f16x8, row + c * 16))
                for h in static(HEADS):
                    acc[h, c] = fma(weight[h], vc, acc[h, c])
    for h in static(HEADS):
        for c in static(VECTORS):
            store(f32x8, out + (h * ldo + column + c * 8) * 4, acc[h, c])


def attend_partition(op, table, kv_head, q, a, b, partial, ldp, scores):
    """Partials of HEADS heads over positions a..b of one partition. q: f32 (HEADS, dim); ldp: floats between heads.

    scores: scratch, f32 [HEADS][KV_PARTITION].
    """
    dim, scale, softcap = load(i64, op + I2), load(f32, op + F0), load(f32, op + F1)
    start = a // KV_PARTITION * KV_PARTITION
    begin, end = a // 8 * 8, (b + 7) // 8 * 8
    for pos in range(begin, end, 4):
        block, within = pos // KV_BLOCK, pos % KV_BLOCK * dim * 2
        k = head_block(op, table, block, kv_head) + within
        ahead = head_block(op, table, min(block + 1, (b - 1) // KV_BLOCK), kv_head) + within
        scores_of(q, k, ahead, scores + (pos - start) * 4, dim, scale)
    for h in range(HEADS):
        row, to = scores + (h * KV_PARTITION + begin - start) * 4, partial + h * ldp * 4
        prepare(row, a - begin, b - begin, end - begin, softcap)
        m = row_max(row, end - begin)
        store(f32, to, m)
        store(f32, to + 4, exponentials(row, end - begin, m))
    for column in range(0, dim // 32 * 32, 32):
        values_of_32(op, table, kv_head, scores, a, b, column, partial + HEADER * 4, ldp)
    for column in range(dim // 32 * 32, dim, 8):
        values_of_8(op, table, kv_head, scores, a, b, column, partial + HEADER * 4, ldp)


def _register() -> None:
    scores, values = "ptr, ptr, ptr, ptr, i64, f32", "ptr, ptr, i64, ptr, i64, i64, i64, ptr, i64"
    partition = "ptr, ptr, i64, ptr, i64, i64, ptr, i64, ptr"
    for n in range(1, MAX_HEADS + 1):
        calls = {"scores_of": (f"attend_scores_{n}", scores)}
        positions = 2 if n == 3 else 4
        export(scores, name=f"attend_scores_{n}", internal=True, HEADS=n, POSITIONS=positions)(attend_scores)
        for c in (1, 4):
            calls[f"values_of_{8 * c}"] = (f"attend_values_{n}_{8 * c}", values)
            export(values, name=f"attend_values_{n}_{8 * c}", internal=True, HEADS=n, VECTORS=c)(attend_values)
        externs = {key: extern(*call) for key, call in calls.items()}
        export(partition, name=f"attend_partition_{n}", internal=True, HEADS=n, **externs)(attend_partition)


_register()
partition_of = choose("attend_partition", "ptr, ptr, i64, ptr, i64, i64, ptr, i64, ptr",
                      [(n, f"attend_partition_{n}") for n in range(1, MAX_HEADS + 1)])


@helper
def partition_count(op, state, row):
    """Partitions that a row's visible positions touch, and the first of them."""
    pos = position(state, row)
    first = first_visible(op, pos) // KV_PARTITION
    return pos // KV_PARTITION + 1 - first, first


@helper
def partial_at(op, row, head, part):
    """The partial record of (row, head, partition), and the floats from head to head."""
    parts = (load(i64, op + N) * KV_BLOCK + KV_PARTITION - 1) // KV_PARTITION
    record = HEADER + load(i64, op + I2)
    index = (row * load(i64, op + I0) + head) * parts + part
    return load(ptr, op + B) + index * record * 4, parts * record


@helper
def heads_per_task(op, state, nth):
    """Whole groups in equal portions of at most MAX_HEADS; single heads where that leaves too few tasks to share."""
    kv_heads = load(i64, op + I1)
    group = load(i64, op + I0) // kv_heads
    portions = (group + MAX_HEADS - 1) // MAX_HEADS
    tasks = 0
    for row in range(load(i64, state + N_DECODE)):
        count, _ = partition_count(op, state, row)
        tasks += count * kv_heads * portions
    if tasks < 2 * nth:
        return 1
    return (group + portions - 1) // portions


@helper
def attend_decode(op, state, ith, nth):
    heads, kv_heads, dim = load(i64, op + I0), load(i64, op + I1), load(i64, op + I2)
    group = heads // kv_heads
    portion = heads_per_task(op, state, nth)
    stop = load(ptr, state + STOP)
    task = 0
    for row in range(load(i64, state + N_DECODE)):
        pos, table = position(state, row), table_of(op, state, row)
        count, first = partition_count(op, state, row)
        for part in range(first, first + count):
            a = max(first_visible(op, pos), part * KV_PARTITION)
            b = min(pos + 1, (part + 1) * KV_PARTITION)
            for head in range(0, heads, group):
                for h in range(head, head + group, portion):
                    if task % nth == ith:
                        if atomic_load(i32, stop) != 0:
                            return
                        n = min(portion, head + group - h)
                        q = load(ptr, op + A) + (row * heads + h) * dim * 4
                        partial, ldp = partial_at(op, row, h, part)
                        partition_of(n, op, table, h // group, q, a, b, partial, ldp, scratch(state, ith))
                    task += 1


@helper
def merge_head(op, row, head, first, count, dim):
    """out = sum(w acc) / sum(w l), w = exp(m - max m), over the partitions in order."""
    partial, _ = partial_at(op, row, head, first)
    record = (HEADER + dim) * 4
    m = f32(MINUS_INF)
    for i in range(count):
        m = max_of(m, load(f32, partial + i * record))
    total = f32(0.0)
    for i in range(count):
        at = partial + i * record
        weight = exp_of(load(f32, at) - m)
        store(f32, at + 8, weight)
        total = fma(weight, load(f32, at + 4), total)
    out = load(ptr, op + D) + (row * load(i64, op + I0) + head) * dim * 4
    for c in range(dim // 8):
        acc = zero(f32x8)
        for i in range(count):
            at = partial + i * record
            acc = fma(splat(f32x8, load(f32, at + 8)), load(f32x8, at + (HEADER * 4 + c * 32)), acc)
        store(f32x8, out + c * 32, acc / splat(f32x8, total))


@helper
def merge_decode(op, state, ith, nth):
    heads, dim = load(i64, op + I0), load(i64, op + I2)
    h0, h1 = share(load(i64, state + N_DECODE) * heads, 1, ith, nth)
    for i in range(h0, h1):
        row = i // heads
        count, first = partition_count(op, state, row)
        merge_head(op, row, i % heads, first, count, dim)
