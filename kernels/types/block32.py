"""Kernels of the types with 32 weights per block and one scale (and offset) per block; build time only.

A type is described by its `quants(p) -> i8x32`, where p is the block, and by a `Layout`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from edged.kernels.export import export, helper
from edged.kernels.simd import (
    BIAS,
    cvt_f32,
    dot_ss,
    dot_us,
    f16x4,
    f32,
    f32x4,
    f32x8,
    f32xA,
    fma,
    get,
    high,
    hsum,
    i8x32,
    i32,
    i32x8,
    i32xA,
    load,
    load_f16,
    low,
    prefetch,
    sext,
    splat,
    store,
    zero,
)
from edged.kernels.types.common import PAIR, PREFETCH, ROWS, align64, put, rows_kernel
from edged.kernels.types.tile import Shape, bias_correction, tile_kernel
from edged.kernels.unroll import Param, static


@dataclass(frozen=True)
class Layout:
    """Block of `size` bytes that starts with the f16 scale d. weights: class of the values of `quants` (tile.Shape).

    zero: the value that stands for 0, w = d * (q - zero). has_min: w = d * q + m, m the f16 after d. scale: reads the
    scale of the block at p where it is no f16; for signed weights only.
    """

    size: int
    weights: str
    zero: int = 0
    has_min: int = 0
    scale: Any = load_f16


SIZE, ZERO, HAS_MIN, SIGNED = Param("SIZE"), Param("ZERO"), Param("HAS_MIN"), Param("SIGNED")
quants, scale = Param("quants"), Param("scale")
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
        d = splat(f32x8, scale(w))
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
    for r in range(r0, r1, PAIR):
        for m in static(PAIR):
            p[m] = w + (r + m) * stride
            for n in static(ROWS):
                f[m, n] = zero(f32xA)
                c[m, n] = zero(f32x4)
        for i in range(k // 32):
            prefetch(p[0] + (PREFETCH + i * SIZE))  # one stream for the rows of a pair, which lie one after the other
            for m in static(PAIR):
                if SIGNED:
                    d = scale(p[m])
                else:
                    scales = cvt_f32(load(f16x4, p[m]))  # lane 0: d, lane 1: m where there is one
                    d = get(scales, 0)
                q = quants(p[m])
                for n in static(ROWS):
                    s = dot32(zero(i32xA), q, load(i8x32, x + (n * xstride + i * 32)))
                    f[m, n] = fma(cvt_f32(s), splat(f32xA, d * load(f32, xd + (n * xstride + i * 4))), f[m, n])
                    if SIGNED == 0:
                        c[m, n] = fma(scales, splat(f32x4, load(f32, xs + (n * xstride + i * 4))), c[m, n])
                p[m] = p[m] + SIZE
        for m in static(PAIR):
            for n in static(ROWS):
                v = hsum(f[m, n])
                if HAS_MIN:
                    v = v + get(c[m, n], 1)
                if ZERO != 0:
                    v = fma(get(c[m, n], 0), f32(-ZERO), v)
                put(y + (n * ldy + r + m) * 4, v, add)


def unpack(w, stride, rows, k, wq, wd, wm, wc):
    for r in range(rows):
        p = w + r * stride
        for i in range(k // 32):
            o = r * (k // 32) + i
            d = scale(p)
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
            "SIGNED": int(layout.weights[0] == "s"), "scale": layout.scale,
        }  # fmt: skip
        export("ptr, i64, ptr", name=f"row_{name}", **values)(row)
        rows_kernel(name, pair=2, **values)(dot)
        tile_kernel(name, Shape(layout.weights, offset=32 * (1 - values["SIGNED"])), **values)(unpack)
        return function

    return register
