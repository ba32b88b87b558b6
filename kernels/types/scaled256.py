"""Kernels of the types with 256 weights per block, small values and integer scales of sub-blocks; build time only.

w = d * scale[j] * (q - zero), or d * scale[j] * q - dmin * min[j]. A type is described by a `Layout` and by

    quants(p, g) -> i8x32   the values of group g = 0 .. 7 of 32 weights of the block at p
    scales(p, h) -> i8x8    8 scales: of half h where sub-blocks have 16 weights, of the block where they have 32
    mins(p, h) -> i8x8      the same of the offsets
    scale(p), dmin(p)       d and dmin as f32

A product of d, a scale and a value has at most 24 significant bits, so every order of the factors gives the bits of
the reference.
"""

from __future__ import annotations

from dataclasses import dataclass

from edged.kernels.export import export, helper
from edged.kernels.simd import (
    BIAS,
    cvt_f32,
    dot_scaled2,
    dot_scaled2_s,
    dot_scaled_s,
    dot_ss,
    dot_us,
    f32,
    f32x8,
    fma,
    get,
    high,
    hsum,
    i8x32,
    i16x8,
    i32,
    i32x8,
    i32xA,
    load,
    low,
    prefetch,
    scales_s,
    sext,
    shuffle,
    splat,
    spread,
    spread_pair,
    store,
    zero,
)
from edged.kernels.types.common import PREFETCH, ROWS, align64, put, rows_kernel
from edged.kernels.types.tile import Shape, bias_correction, tile_kernel
from edged.kernels.unroll import Param, static
from edged.kernels.vectors import VECTORS


@dataclass(frozen=True)
class Layout:
    """Block of `size` bytes. weights: class of the values once `zero` is subtracted (tile.Shape).

    sub: weights per scale: 16, 32, or 256 where d is the only one. zero: the value that stands for 0; without it
    values are signed. has_min: values are unsigned and offset by dmin * min[j], sub is 16.
    """

    size: int
    weights: str
    sub: int
    zero: int = 0
    has_min: int = 0


SIZE, SUB, ZERO, HAS_MIN = Param("SIZE"), Param("SUB"), Param("ZERO"), Param("HAS_MIN")
TILE_SUB = Param("TILE_SUB")  # weights per scale of the unpacked rows
quants, scales, mins, scale, dmin = Param("quants"), Param("scales"), Param("mins"), Param("scale"), Param("dmin")
dot16 = Param("dot16")  # dot_scaled2 for the values as they are stored
i32xS = Param("i32xS", lambda v: VECTORS["i32x8"] if v["SUB"] == 16 else v["i32xA"])
f32xS = Param("f32xS", lambda v: VECTORS["f32x8"] if v["SUB"] == 16 else v["f32xA"])
twice_low, twice_high = shuffle([0, 0, 1, 1, 2, 2, 3, 3]), shuffle([4, 4, 5, 5, 6, 6, 7, 7])


def row(w, k, y):
    """One row of weights to f32, in the rounding of the reference."""
    for _ in range(k // 256):
        d = scale(w)
        for g in static(8):
            if SUB == 16 and g % 4 == 0:
                s = cvt_f32(sext(i32x8, scales(w, g // 4))) * splat(f32x8, d)
                if HAS_MIN:
                    m = cvt_f32(sext(i32x8, mins(w, g // 4))) * splat(f32x8, dmin(w))
            if SUB == 32 and g == 0:
                s = cvt_f32(sext(i32x8, scales(w, 0))) * splat(f32x8, d)
            q = quants(w, g)
            quarter[0], quarter[1] = low(low(q)), high(low(q))
            quarter[2], quarter[3] = low(high(q)), high(high(q))
            for j in static(4):
                v = cvt_f32(sext(i32x8, quarter[j]) - splat(i32x8, ZERO))
                if SUB == 16:
                    v = v * splat(f32x8, get(s, g % 4 * 2 + j // 2))
                    if HAS_MIN:
                        v = v - splat(f32x8, get(m, g % 4 * 2 + j // 2))
                if SUB == 32:
                    v = v * splat(f32x8, get(s, g))
                if SUB == 256:
                    v = v * splat(f32x8, d)
                store(f32x8, y + (g * 128 + j * 32), v)
        y = y + 1024
        w = w + SIZE


def dot(w, stride, r0, r1, k, x, xstride, y, ldy, add):
    xd = x + align64(k)
    xt = xd + align64(k // 64) + align64(k // 8)
    for r in range(r0, r1):
        p = w + r * stride
        for n in static(ROWS):
            f[n] = zero(f32xS)
            m[n] = zero(f32x8)
        for b in range(k // 256):
            for n in static(ROWS):
                s[n] = zero(i32xS)
                c[n] = zero(i32x8)
            for g in static(8):
                if SUB == 16 and g % 4 == 0:
                    offsets = scales(p, g // 4)
                    factors = scales_s(offsets)
                    if HAS_MIN:
                        offsets = mins(p, g // 4)
                    if ZERO + HAS_MIN != 0:
                        for n in static(ROWS):
                            sums = load(i16x8, xt + (n * xstride + b * 32 + g * 4))
                            c[n] = c[n] + sext(i32x8, offsets) * sext(i32x8, sums)
                if SUB == 32 and g == 0:
                    factors = scales_s(scales(p, 0))
                q = quants(p, g)
                for n in static(ROWS):
                    a = load(i8x32, x + (n * xstride + b * 256 + g * 32))
                    if SUB == 16:
                        s[n] = dot16(s[n], q, a, spread_pair(factors, g % 4 * 2))
                    if SUB == 32:
                        s[n] = dot_scaled_s(s[n], q, a, spread(i32xA, factors, g))
                    if SUB == 256:
                        s[n] = dot_ss(s[n], q, a)
            d = scale(p)
            for n in static(ROWS):
                dx = load(f32, xd + (n * xstride + b * 4))
                if HAS_MIN:
                    m[n] = fma(cvt_f32(c[n]), splat(f32x8, dx * dmin(p)), m[n])
                if SUB == 16 and ZERO != 0:
                    s[n] = s[n] - c[n] * splat(i32x8, ZERO)
                f[n] = fma(cvt_f32(s[n]), splat(f32xS, dx * d), f[n])
            for t in static((SIZE + 63) // 64):
                prefetch(p + (PREFETCH + 64 * t))
            p = p + SIZE
        for n in static(ROWS):
            v = hsum(f[n])
            if HAS_MIN:
                v = v - hsum(m[n])
            put(y + (n * ldy + r) * 4, v, add)


def unpack(w, stride, rows, k, wq, wd, wm, wc):
    for r in range(rows):
        p = w + r * stride
        for b in range(k // 256):
            o = r * (k // TILE_SUB) + b * (256 // TILE_SUB)
            d = splat(f32x8, scale(p))
            for h in static(2):
                if SUB == 256:
                    store(f32x8, wd + (o + h * 8) * 4, d)
                if SUB == 16:
                    store(f32x8, wd + (o + h * 8) * 4, cvt_f32(sext(i32x8, scales(p, h))) * d)
                if HAS_MIN:
                    v = cvt_f32(sext(i32x8, mins(p, h))) * splat(f32x8, -dmin(p))
                    store(f32x8, wm + (o + h * 8) * 4, v)
            if SUB == 32:
                v = cvt_f32(sext(i32x8, scales(p, 0))) * d
                if TILE_SUB == 32:
                    store(f32x8, wd + o * 4, v)
                else:
                    store(f32x8, wd + o * 4, twice_low(v))
                    store(f32x8, wd + (o + 8) * 4, twice_high(v))
            for g in static(8):
                q = quants(p, g) - splat(i8x32, ZERO)
                store(i8x32, wq + (r * k + b * 256 + g * 32), q)
                if BIAS != 0:
                    if TILE_SUB == 32:
                        store(i32, wc + (o + g) * 4, bias_correction(q))
                    else:
                        s = dot_us(zero(i32xA), splat(i8x32, 1), q)  # lower half of the lanes: bytes 0 .. 15
                        store(i32, wc + (o + g * 2) * 4, -BIAS * hsum(low(s)))
                        store(i32, wc + (o + g * 2 + 1) * 4, -BIAS * hsum(high(s)))
            p = p + SIZE


def scaled256_type(name, layout, *, scale, scales=None, mins=None, dmin=None):
    """Decorator of the helper `quants(p, g)` of tensor type `name`: registers all its kernels."""

    def register(function):
        unsigned = layout.zero or layout.has_min
        shape = Shape(layout.weights, scale=32 if layout.weights == "s8" else 16, offset=16 * layout.has_min, act=256)
        values = {
            "SIZE": layout.size, "SUB": layout.sub, "ZERO": layout.zero, "HAS_MIN": layout.has_min,
            "TILE_SUB": shape.scale, "quants": helper(function), "scale": scale, "scales": scales, "mins": mins,
            "dmin": dmin, "dot16": dot_scaled2 if unsigned else dot_scaled2_s,
        }  # fmt: skip
        export("ptr, i64, ptr", name=f"row_{name}", **values)(row)
        rows_kernel(name, **values)(dot)
        tile_kernel(name, shape, **values)(unpack)
        return function

    return register
