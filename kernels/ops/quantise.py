"""quantise: put f32 rows into the form that matmul reads (layouts in table.py).

Per block of 32 or 256 values: d = max|x| / 127, q = round(x / d) to even, and sums of q that stand in for the
offsets of asymmetric weights. Decode rows become row records, prompt rows the lanes of panels; the last panel is
filled with zeros. A thread writes the blocks of its own columns (decode) and panels (prompt).

A NaN or infinity in a block makes its d NaN or infinite, so it survives into the product.
"""

from __future__ import annotations

import numpy as np

from edged.kernels.activations import TINY, quantised
from edged.kernels.export import export, extern, helper
from edged.kernels.ops.record import (
    MAX_DECODE,
    N_PROMPT,
    OP_SIGNATURE,
    REGION,
    TYPE,
    A,
    D,
    N,
    columns,
    decode_rows,
    share,
)
from edged.kernels.simd import (
    BIAS,
    NT,
    bitcast,
    cvt_i32,
    f32,
    f32x8,
    get,
    hsum,
    i8x8,
    i16,
    i32,
    i32x8,
    i64,
    load,
    ptr,
    shuffle,
    splat,
    store,
    trunc,
    u16,
    vround,
    where_gt,
    zero,
)
from edged.kernels.table import (
    ACT_BLOCK,
    ACT_F32,
    ACT_Q8_32,
    ACT_Q8_256,
    REGION_BODY,
    TYPES,
    ActKind,
    act_panel_parts,
)
from edged.kernels.unroll import static

TYPES_OF_F32 = tuple(t.id for t in TYPES if t.act == ACT_F32)
TYPES_OF_Q8_256 = tuple(t.id for t in TYPES if t.act == ACT_Q8_256)
rotate4, rotate2, rotate1 = (shuffle([(i + n) % 8 for i in range(8)]) for n in (4, 2, 1))


def reference_panels(x: np.ndarray, kind: ActKind, lanes: int, bias: int) -> np.ndarray:
    """Panels, u8 (panels, panel bytes), of x: f32 (rows, k); the last one padded with zero rows."""
    k = x.shape[1]
    x = np.concatenate([x, np.zeros((-len(x) % lanes, k), np.float32)])
    parts = act_panel_parts(kind, k, lanes)
    out = np.zeros((len(x) // lanes, parts[-1]), np.uint8)
    for panel, rows in zip(out, x.reshape(len(out), lanes, k), strict=True):
        if kind == ACT_F32:
            columns_ = [rows.T]
        else:
            q, d = quantised(rows, kind)
            sums = q.reshape(lanes, k // 32, 32).sum(-1, dtype=np.int32).astype(np.float32)
            packed = (q.astype(np.int16) + bias).astype(np.uint8).reshape(lanes, k // 4, 4).transpose(1, 0, 2)
            columns_ = [packed, d.T, (np.repeat(d, ACT_BLOCK[kind] // 32, 1) * sums).T]
        for offset, column in zip(parts, columns_, strict=False):
            raw = np.ascontiguousarray(column).view(np.uint8).ravel()
            panel[offset : offset + raw.size] = raw
    return out


@helper
def align64(n):
    return (n + 63) & -64


@helper
def record_bytes(kind, k):
    """table.act_row_parts(kind, k)[-1]"""
    if kind == ACT_F32:
        return align64(4 * k)
    if kind == ACT_Q8_32:
        return align64(k) + 2 * align64(k // 8)
    return align64(k) + align64(k // 64) + 2 * align64(k // 8)


@helper
def row_record_bytes(type_id, k):
    """Size of the row records that the kernels of a tensor type read."""
    if type_id in TYPES_OF_F32:
        return record_bytes(ACT_F32, k)
    if type_id in TYPES_OF_Q8_256:
        return record_bytes(ACT_Q8_256, k)
    return record_bytes(ACT_Q8_32, k)


@helper
def peak(x, n):
    """max |x| of n floats. Compared as integers, which order like the floats and put NaN above infinity."""
    m = zero(i32x8)
    for i in range(n // 8):
        a = bitcast(i32x8, load(f32x8, x + i * 32)) & splat(i32x8, i32(0x7FFFFFFF))
        m = where_gt(a, m, a, m)
    m = where_gt(rotate4(m), m, rotate4(m), m)
    m = where_gt(rotate2(m), m, rotate2(m), m)
    m = where_gt(rotate1(m), m, rotate1(m), m)
    return get(bitcast(f32x8, m), 0)


@helper
def inverse_step(m):
    """127 / m, zero for blocks too small to scale."""
    if m > f32(TINY):
        return f32(127.0) / m
    return f32(0.0)


@helper
def rounded(x, inverse):
    return cvt_i32(vround(load(f32x8, x) * splat(f32x8, inverse)))


@helper
def record_q8_32(x, record, k, c0, c1):
    """Columns c0..c1 of one Q8_32 row record."""
    d = record + align64(k)
    s = d + align64(k // 8)
    for i in range(c0 // 32, c1 // 32):
        m = peak(x + i * 128, 32)
        inverse = inverse_step(m)
        total = zero(i32x8)
        for j in static(4):
            q = rounded(x + (i * 128 + j * 32), inverse)
            total = total + q
            store(i8x8, record + (i * 32 + j * 8), trunc(i8x8, q))
        store(f32, d + i * 4, m / f32(127.0))
        store(f32, s + i * 4, m / f32(127.0) * f32(hsum(total)))


@helper
def record_q8_256(x, record, k, c0, c1):
    """Columns c0..c1 of one Q8_256 row record."""
    d = record + align64(k)
    s = d + align64(k // 64)
    t = s + align64(k // 8)
    for b in range(c0 // 256, c1 // 256):
        m = peak(x + b * 1024, 256)
        inverse = inverse_step(m)
        store(f32, d + b * 4, m / f32(127.0))
        for i in range(b * 16, b * 16 + 16):
            q0, q1 = rounded(x + i * 64, inverse), rounded(x + (i * 64 + 32), inverse)
            store(i8x8, record + i * 16, trunc(i8x8, q0))
            store(i8x8, record + (i * 16 + 8), trunc(i8x8, q1))
            store(i16, t + i * 2, i16(hsum(q0 + q1)))
        for i in range(b * 8, b * 8 + 8):
            store(i32, s + i * 4, i32(load(i16, t + i * 4)) + i32(load(i16, t + (i * 4 + 2))))


@helper
def record_f32(x, record, c0, c1):
    for i in range(c0 // 8, c1 // 8):
        store(f32x8, record + i * 32, load(f32x8, x + i * 32))


@helper
def panel_bytes(kind, k):
    """table.act_panel_parts(kind, k, NT)[-1]"""
    if kind == ACT_F32:
        return align64(4 * k * NT)
    if kind == ACT_Q8_32:
        return align64(k * NT) + 2 * align64(k // 8 * NT)
    return align64(k * NT) + align64(k // 64 * NT) + align64(k // 8 * NT)


@helper
def lane_q8(x, panel, k, block, lane):
    """One lane of a Q8 panel; block: 32 or 256."""
    d = panel + align64(k * NT)
    s = d + align64(4 * k // block * NT)
    for b in range(k // block):
        m = peak(x + b * block * 4, block)
        inverse = inverse_step(m)
        store(f32, d + (b * NT + lane) * 4, m / f32(127.0))
        for i in range(b * (block // 32), (b + 1) * (block // 32)):
            total = zero(i32x8)
            for j in static(4):
                q = rounded(x + (i * 128 + j * 32), inverse)
                total = total + q
                four = bitcast(i64, trunc(i8x8, q + splat(i32x8, i32(BIAS))))
                to = panel + ((i * 8 + j * 2) * NT + lane) * 4
                store(i32, to, i32(four))
                store(i32, to + NT * 4, i32(four >> 32))
            store(f32, s + (i * NT + lane) * 4, m / f32(127.0) * f32(hsum(total)))


@helper
def clear_lane_q8(panel, k, block, lane):
    """A lane of a Q8 panel that holds a row of zeros."""
    d = panel + align64(k * NT)
    s = d + align64(4 * k // block * NT)
    for i in range(k // 4):
        store(i32, panel + (i * NT + lane) * 4, i32(BIAS * 0x01010101))
    for i in range(k // block):
        store(f32, d + (i * NT + lane) * 4, f32(0.0))
    for i in range(k // 32):
        store(f32, s + (i * NT + lane) * 4, f32(0.0))


@helper
def lane_f32(x, panel, k, lane, valid):
    for i in range(k):
        v = f32(0.0)
        if valid:
            v = load(f32, x + i * 4)
        store(f32, panel + (i * NT + lane) * 4, v)


@export("ptr, ptr, i64, i64, i64, i64", internal=True)
def quantise_record(x, record, kind, k, c0, c1):
    if kind == ACT_F32:
        record_f32(x, record, c0, c1)
    elif kind == ACT_Q8_32:
        record_q8_32(x, record, k, c0, c1)
    else:
        record_q8_256(x, record, k, c0, c1)


@export("ptr, ptr, i64, i64, i64", internal=True)
def quantise_panel(x, panel, kind, k, rows):
    """x: f32 (rows, k), rows <= NT."""
    for lane in range(NT):
        row = x + lane * k * 4
        if kind == ACT_F32:
            lane_f32(row, panel, k, lane, lane < rows)
        else:
            block = 32
            if kind == ACT_Q8_256:
                block = 256
            if lane < rows:
                lane_q8(row, panel, k, block, lane)
            else:
                clear_lane_q8(panel, k, block, lane)


record_of = extern("quantise_record", "ptr, ptr, i64, i64, i64, i64")
panel_of = extern("quantise_panel", "ptr, ptr, i64, i64, i64")


@export(OP_SIGNATURE)
def op_quantise(op, state, ith, nth):
    k, kind = load(i64, op + N), i64(load(u16, op + TYPE))
    x, out = load(ptr, op + A), load(ptr, op + D)
    size = record_bytes(kind, k)
    c0, c1 = columns(k, ith, nth)
    for r in range(decode_rows(op, state)):
        record_of(x + r * k * 4, out + r * size, kind, k, c0, c1)
    if load(u16, op + REGION) == REGION_BODY:
        n_prompt, max_decode = load(i64, state + N_PROMPT), load(i64, state + MAX_DECODE)
        x, out, size = x + max_decode * k * 4, out + max_decode * size, panel_bytes(kind, k)
        r0, r1 = share(n_prompt, NT, ith, nth)
        for r in range(r0, r1, NT):
            panel_of(x + r * k * 4, out + r // NT * size, kind, k, min(NT, r1 - r))
