"""Kernels of Q4_K and Q5_K, 256 weights per block with 8 six-bit scales and offsets; build time only.

A block starts with d f16, dmin f16 and 12 bytes of scales; weight j of sub-block i is d * scale[i] * q - dmin * min[i].
A type is described by `quants(p, i) -> i8x32`, the values of sub-block i (a literal) of the block at p.
"""

from __future__ import annotations

import numpy as np

from edged.kernels.export import export, helper
from edged.kernels.simd import (
    BIAS,
    bitcast,
    cvt_f32,
    dot_scaled,
    f32,
    f32x8,
    f32xA,
    fma,
    get,
    high,
    hsum,
    i8x8,
    i8x32,
    i32,
    i32x8,
    i32xA,
    i64,
    load,
    load_f16,
    low,
    prefetch,
    scales_u,
    splat,
    spread,
    store,
    u32,
    zero,
    zext,
)
from edged.kernels.types.common import PREFETCH, ROWS, align64, put, rows_kernel
from edged.kernels.types.tile import Shape, bias_correction, tile_kernel
from edged.kernels.unroll import Param, static


def unpack_scales(packed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """u8 (..., 12) -> scales, mins, each u8 (..., 8).

    Bytes 0-3 hold scale 0-3 in their low 6 bits, bytes 4-7 min 0-3; byte 8 + i holds the low 4 bits of scale 4 + i
    and, high nibble, of min 4 + i, whose upper 2 bits are the top bits of bytes i and 4 + i.
    """
    a, b, c = packed[..., :4], packed[..., 4:8], packed[..., 8:12]
    scales = np.concatenate([a & 63, (c & 15) | (a >> 6 << 4)], axis=-1)
    mins = np.concatenate([b & 63, (c >> 4) | (b >> 6 << 4)], axis=-1)
    return scales, mins


@helper
def scales_of(p):
    """12 bytes -> 8 scales, i8x8."""
    a, c = i64(load(u32, p)), i64(load(u32, p + 8))
    upper = (c & 0x0F0F0F0F) | (((a >> 6) & 0x03030303) << 4)
    return bitcast(i8x8, (a & 0x3F3F3F3F) | (upper << 32))


@helper
def mins_of(p):
    """12 bytes -> 8 mins, i8x8."""
    b, c = i64(load(u32, p + 4)), i64(load(u32, p + 8))
    upper = ((c >> 4) & 0x0F0F0F0F) | (((b >> 6) & 0x03030303) << 4)
    return bitcast(i8x8, (b & 0x3F3F3F3F) | (upper << 32))


SIZE = Param("SIZE")
quants = Param("quants")


def row(w, k, y):
    """One row of weights to f32, in the rounding of the reference."""
    for _ in range(k // 256):
        d = cvt_f32(zext(i32x8, scales_of(w + 4))) * splat(f32x8, load_f16(w))
        m = cvt_f32(zext(i32x8, mins_of(w + 4))) * splat(f32x8, load_f16(w + 2))
        for i in static(8):
            q = quants(w, i)
            quarter[0], quarter[1] = low(low(q)), high(low(q))
            quarter[2], quarter[3] = low(high(q)), high(high(q))
            for j in static(4):
                v = cvt_f32(zext(i32x8, quarter[j])) * splat(f32x8, get(d, i)) - splat(f32x8, get(m, i))
                store(f32x8, y + (i * 128 + j * 32), v)
        y = y + 1024
        w = w + SIZE


def dot(w, stride, r0, r1, k, x, xstride, y, ldy, add):
    xd = x + align64(k)
    xs = xd + align64(k // 64)
    for r in range(r0, r1):
        p = w + r * stride
        for n in static(ROWS):
            f[n] = zero(f32xA)
            m[n] = zero(f32x8)
        for b in range(k // 256):
            scales = scales_u(scales_of(p + 4))
            mins = zext(i32x8, mins_of(p + 4))
            for n in static(ROWS):
                s[n] = zero(i32xA)
            for i in static(8):
                q = quants(p, i)
                for n in static(ROWS):
                    a = load(i8x32, x + (n * xstride + b * 256 + i * 32))
                    s[n] = dot_scaled(s[n], q, a, spread(i32xA, scales, i))
            for n in static(ROWS):
                d = load(f32, xd + (n * xstride + b * 4))
                sums = load(i32x8, xs + (n * xstride + b * 32))
                m[n] = fma(cvt_f32(mins * sums), splat(f32x8, d * load_f16(p + 2)), m[n])
                f[n] = fma(cvt_f32(s[n]), splat(f32xA, d * load_f16(p)), f[n])
            for t in static((SIZE + 63) // 64):
                prefetch(p + (PREFETCH + 64 * t))
            p = p + SIZE
        for n in static(ROWS):
            put(y + (n * ldy + r) * 4, hsum(f[n]) - hsum(m[n]), add)


def unpack(w, stride, rows, k, wq, wd, wm, wc):
    for r in range(rows):
        p = w + r * stride
        for b in range(k // 256):
            o = r * (k // 32) + b * 8
            store(f32x8, wd + o * 4, cvt_f32(zext(i32x8, scales_of(p + 4))) * splat(f32x8, load_f16(p)))
            store(f32x8, wm + o * 4, cvt_f32(zext(i32x8, mins_of(p + 4))) * splat(f32x8, -load_f16(p + 2)))
            for i in static(8):
                q = quants(p, i)
                store(i8x32, wq + (o + i) * 32, q)
                if BIAS != 0:
                    store(i32, wc + (o + i) * 4, bias_correction(q))
            p = p + SIZE


def block256_type(name, size, weights):
    """Decorator of `quants(p, i)` of tensor type `name`: registers all its kernels. weights: class of tile.Shape."""

    def register(function):
        values = {"SIZE": size, "quants": helper(function)}
        export("ptr, i64, ptr", name=f"row_{name}", **values)(row)
        rows_kernel(name, **values)(dot)
        tile_kernel(name, Shape(weights, offset=32, act=256), **values)(unpack)
        return function

    return register
