"""Q6_K: 256 weights in 210 bytes, 16 sub-blocks of 16, w = d * scale[i] * (q - 32).

    byte   0                            128                     192           208     210
         | low 4 bits of q, u8[128]    | upper 2 bits, u8[64]  | scale i8[16] | d f16 |

Each half h of 128 weights has 64 bytes of low and 32 bytes of upper bits. With l = 0 .. 31, weight 128 h + 32 i + l
has its low bits in byte 64 h + 32 (i % 2) + l, low nibble for i < 2, and its upper bits in bits 2 i of byte
128 + 32 h + l.
"""

from __future__ import annotations

import numpy as np

from edged.kernels.export import export, helper
from edged.kernels.simd import (
    BIAS,
    cvt_f32,
    dot_scaled2,
    dot_us,
    f32,
    f32x8,
    fma,
    get,
    high,
    hsum,
    i8x8,
    i8x32,
    i16x8,
    i32,
    i32x8,
    i32xA,
    load,
    load_f16_tail,
    low,
    lshr,
    prefetch,
    scales_s,
    sext,
    shl,
    splat,
    spread_pair,
    store,
    zero,
)
from edged.kernels.types.common import PREFETCH, ROWS, align64, put, rows_kernel
from edged.kernels.types.reference import f16_at
from edged.kernels.types.tile import Shape, tile_kernel
from edged.kernels.unroll import static

SIZE = 210


def dequantise(blocks: np.ndarray) -> np.ndarray:
    """u8 (..., n, 210) -> f32 (..., n, 256)."""
    shape = blocks.shape[:-1]
    lower = blocks[..., :128].reshape(*shape, 2, 1, 64) >> np.array([0, 4], np.uint8)[:, None] & 15
    upper = blocks[..., 128:192].reshape(*shape, 2, 1, 32) >> np.array([0, 2, 4, 6], np.uint8)[:, None] & 3
    q = lower.reshape(*shape, 16, 16) | upper.reshape(*shape, 16, 16) << 4
    scales = blocks[..., 192:208].view(np.int8).astype(np.float32)
    d = f16_at(blocks, 208) * scales
    return (d[..., None] * (q.astype(np.float32) - 32)).reshape(*shape, 256)


@helper
def quants(p, h, i):
    """The 32 values 0 .. 63 of group i of half h."""
    q = load(i8x32, p + (h * 64 + i % 2 * 32))
    u = load(i8x32, p + (128 + h * 32))
    if i < 2:
        q = q & splat(i8x32, 15)
        u = shl(u, 4 - 2 * i)
    else:
        q = lshr(q, 4)
        if i == 3:
            u = lshr(u, 2)
    return q | (u & splat(i8x32, 48))


@export("ptr, i64, ptr", name="row_q6_k")
def row(w, k, y):
    for _ in range(k // 256):
        d = splat(f32x8, load_f16_tail(w + 208))
        for h in static(2):
            scales = cvt_f32(sext(i32x8, load(i8x8, w + (192 + h * 8)))) * d
            for i in static(4):
                q = quants(w, h, i) - splat(i8x32, 32)
                quarter[0], quarter[1] = low(low(q)), high(low(q))
                quarter[2], quarter[3] = low(high(q)), high(high(q))
                for j in static(4):
                    v = cvt_f32(sext(i32x8, quarter[j])) * splat(f32x8, get(scales, 2 * i + j // 2))
                    store(f32x8, y + (h * 512 + i * 128 + j * 32), v)
        y = y + 1024
        w = w + SIZE


@rows_kernel("q6_k")
def dot(w, stride, r0, r1, k, x, xstride, y, ldy, add):
    xd = x + align64(k)
    xt = xd + align64(k // 64) + align64(k // 8)
    for r in range(r0, r1):
        p = w + r * stride
        for n in static(ROWS):
            f[n] = zero(f32x8)
        for b in range(k // 256):
            for n in static(ROWS):
                s[n] = zero(i32x8)
                c[n] = zero(i32x8)
            for h in static(2):
                bytes8 = load(i8x8, p + (192 + h * 8))
                scales = scales_s(bytes8)
                for n in static(ROWS):
                    sums = load(i16x8, xt + (n * xstride + b * 32 + h * 16))
                    c[n] = c[n] + sext(i32x8, bytes8) * sext(i32x8, sums)
                for i in static(4):
                    q = quants(p, h, i)
                    for n in static(ROWS):
                        a = load(i8x32, x + (n * xstride + b * 256 + h * 128 + i * 32))
                        s[n] = dot_scaled2(s[n], q, a, spread_pair(scales, 2 * i))
            d = load_f16_tail(p + 208)
            for n in static(ROWS):
                f[n] = fma(cvt_f32(s[n] - shl(c[n], 5)), splat(f32x8, load(f32, xd + (n * xstride + b * 4)) * d), f[n])
            for t in static(4):
                prefetch(p + (PREFETCH + 64 * t))
            p = p + SIZE
        for n in static(ROWS):
            put(y + (n * ldy + r) * 4, hsum(f[n]), add)


@tile_kernel("q6_k", Shape("s6", scale=16, act=256))
def unpack(w, stride, rows, k, wq, wd, wm, wc):
    for r in range(rows):
        p = w + r * stride
        for b in range(k // 256):
            o = r * (k // 16) + b * 16
            d = splat(f32x8, load_f16_tail(p + 208))
            for h in static(2):
                store(f32x8, wd + (o + h * 8) * 4, cvt_f32(sext(i32x8, load(i8x8, p + (192 + h * 8)))) * d)
                for i in static(4):
                    q = quants(p, h, i) - splat(i8x32, 32)
                    to = o + h * 8 + i * 2
                    store(i8x32, wq + to * 16, q)
                    if BIAS != 0:
                        s = dot_us(zero(i32xA), splat(i8x32, 1), q)  # lower half of the lanes: bytes 0 .. 15
                        store(i32, wc + to * 4, -BIAS * hsum(low(s)))
                        store(i32, wc + (to + 1) * 4, -BIAS * hsum(high(s)))
            p = p + SIZE
