"""Kernels of the types with 32 weights per block and one scale (and offset) per block; build time only.

A type is described by its `quants(p) -> i8x32`, where p is the block, and by a `Layout`.
"""

from __future__ import annotations

from dataclasses import dataclass

from edged.kernels.export import export, helper
from edged.kernels.simd import (
    BIAS, concat, cvt_f32, dot_ss, dot_us, f32, f32x4, f32x8, f32xA, fma, high, hsum, i8x32, i32, i32x8, i32xA, load,
    load_f16, load_f16_4, load_f16_4_with_next, low, prefetch, sext, splat, spread4, store, zero,
)  # fmt: skip
from edged.kernels.types.common import PREFETCH, ROWS, align64, put, rows_kernel
from edged.kernels.types.tile import Shape, bias_correction, tile_kernel
from edged.kernels.unroll import Param, static


@dataclass(frozen=True)
class Layout:
    """Block of `size` bytes that starts with the f16 scale d. weights: class of the values of `quants` (tile.Shape).

    zero: the value that stands for 0, w = d * (q - zero). has_min: w = d * q + m, m the f16 after d.
    """

    size: int
    weights: str
    zero: int = 0
    has_min: int = 0


SIZE, ZERO, HAS_MIN, SIGNED = Param("SIZE"), Param("ZERO"), Param("HAS_MIN"), Param("SIGNED")
quants = Param("quants")
dot32 = Param("dot32", lambda v: (dot_ss if v["SIGNED"] else dot_us).value(v))


@helper
def offset(p, d):
    """m of w = d * q + m."""
    if HAS_MIN:
        return load_f16(p + 2)
    return f32(-ZERO) * d


def row(w, k, y):
    """One row of weights to f32, in the rounding of the reference."""
    for i in range(k // 32):
        d = splat(f32x8, load_f16(w))
        if HAS_MIN:
            m = splat(f32x8, load_f16(w + 2))
        q = quants(w)
        quarter[0], quarter[1] = low(low(q)), high(low(q))
        quarter[2], quarter[3] = low(high(q)), high(high(q))
        for j in static(4):
            v = cvt_f32(sext(i32x8, quarter[j]) - splat(i32x8, ZERO)) * d
            if HAS_MIN:
                v = v + m
            store(f32x8, y + (i * 128 + j * 32), v)
        w = w + SIZE


def dot(w, stride, r0, r1, k, x, xstride, y, ldy, add):
    xd = x + align64(k)
    xs = xd + align64(k // 8)
    for r in range(r0, r1):
        p = w + r * stride
        for n in static(ROWS):
            f[n] = zero(f32xA)
            c[n] = zero(f32x4)
            rest[n] = f32(0.0)
        for g in range(k // 128):  # four blocks: their scales as one vector
            if HAS_MIN:
                pairs = load_f16_4_with_next(p, SIZE)
                d, m = low(pairs), high(pairs)
            else:
                d = load_f16_4(p, SIZE)
                m = d
            for n in static(ROWS):
                scales = spread4(d * load(f32x4, xd + (n * xstride + g * 16)))
                scale[n, 0], scale[n, 1] = low(low(scales)), high(low(scales))
                scale[n, 2], scale[n, 3] = low(high(scales)), high(high(scales))
                if SIGNED == 0:
                    c[n] = fma(m, load(f32x4, xs + (n * xstride + g * 16)), c[n])
            for j in static(4):
                q = quants(p + j * SIZE)
                for n in static(ROWS):
                    s = dot32(zero(i32xA), q, load(i8x32, x + (n * xstride + g * 128 + j * 32)))
                    f[n] = fma(cvt_f32(s), scale[n, j], f[n])
            for t in static((4 * SIZE + 63) // 64):
                prefetch(p + (PREFETCH + 64 * t))
            p = p + 4 * SIZE
        for i in range(k // 128 * 4, k // 32):
            d1 = load_f16(p)
            q = quants(p)
            for n in static(ROWS):
                s = dot32(zero(i32xA), q, load(i8x32, x + (n * xstride + i * 32)))
                f[n] = fma(cvt_f32(s), splat(f32xA, d1 * load(f32, xd + (n * xstride + i * 4))), f[n])
                if HAS_MIN:
                    rest[n] = fma(load_f16(p + 2), load(f32, xs + (n * xstride + i * 4)), rest[n])
                if ZERO != 0:
                    rest[n] = fma(d1, load(f32, xs + (n * xstride + i * 4)), rest[n])
            p = p + SIZE
        for n in static(ROWS):
            v = hsum(f[n])
            if HAS_MIN:
                v = v + (hsum(c[n]) + rest[n])
            if ZERO != 0:
                v = fma(hsum(c[n]) + rest[n], f32(-ZERO), v)
            put(y + (n * ldy + r) * 4, v, add)


def unpack(w, stride, rows, k, wq, wd, wm, wc):
    for r in range(rows):
        p = w + r * stride
        for i in range(k // 32):
            o = r * (k // 32) + i
            d = load_f16(p)
            q = quants(p)
            store(i8x32, wq + o * 32, q)
            store(f32, wd + o * 4, d)
            if SIGNED == 0:
                store(f32, wm + o * 4, offset(p, d))
            if BIAS != 0:
                store(i32, wc + o * 4, bias_correction(q))
            p = p + SIZE


def block32_type(name, layout):
    """Decorator of the helper `quants(p)` of tensor type `name`: registers all its kernels."""

    def register(function):
        values = {
            "SIZE": layout.size, "ZERO": layout.zero, "HAS_MIN": layout.has_min, "quants": helper(function),
            "SIGNED": int(layout.weights[0] == "s"),
        }  # fmt: skip
        export("ptr, i64, ptr", name=f"row_{name}", **values)(row)
        rows_kernel(name, **values)(dot)
        tile_kernel(name, Shape(layout.weights, offset=1 - values["SIGNED"]), **values)(unpack)
        return function

    return register
