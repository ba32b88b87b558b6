"""Kernels of the float types, over f32 activations; build time only.

A type is described by its size and `floats(p) -> f32x8`.
"""

from __future__ import annotations

from edged.kernels.export import export, helper
from edged.kernels.simd import f32x8, fma, hsum, load, prefetch, store, zero
from edged.kernels.types.common import PREFETCH, ROWS, put, rows_kernel
from edged.kernels.types.tile import tile_kernel
from edged.kernels.unroll import Param, static

SIZE = Param("SIZE")
floats = Param("floats")
CHAINS = 4  # independent sums: hides the latency of fma


def row(w, k, y):
    for i in range(k // 8):
        store(f32x8, y + i * 32, floats(w + i * 8 * SIZE))


def dot(w, stride, r0, r1, k, x, xstride, y, ldy, add):
    for r in range(r0, r1):
        p = w + r * stride
        for n in static(ROWS):
            for j in static(CHAINS):
                f[n, j] = zero(f32x8)
        for i in range(k // 32):
            for j in static(CHAINS):
                v = floats(p + j * 8 * SIZE)
                for n in static(ROWS):
                    f[n, j] = fma(v, load(f32x8, x + (n * xstride + i * 128 + j * 32)), f[n, j])
            for t in static(SIZE // 2):
                prefetch(p + (PREFETCH + 64 * t))
            p = p + 32 * SIZE
        for i in range(k // 32 * 4, k // 8):
            v = floats(p)
            for n in static(ROWS):
                f[n, 0] = fma(v, load(f32x8, x + (n * xstride + i * 32)), f[n, 0])
            p = p + 8 * SIZE
        for n in static(ROWS):
            put(y + (n * ldy + r) * 4, hsum((f[n, 0] + f[n, 1]) + (f[n, 2] + f[n, 3])), add)


def unpack(w, stride, rows, k, wq, wd, wm, wc):
    for r in range(rows):
        for i in range(k // 8):
            store(f32x8, wq + (r * k + i * 8) * 4, floats(w + (r * stride + i * 8 * SIZE)))


def float_type(name, size):
    """Decorator of `floats(p)` of tensor type `name`: registers all its kernels."""

    def register(function):
        values = {"SIZE": size, "floats": helper(function)}
        export("ptr, i64, ptr", name=f"row_{name}", **values)(row)
        rows_kernel(name, **values)(dot)
        tile_kernel(name, **values)(unpack)
        return function

    return register
