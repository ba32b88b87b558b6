"""Q8_0: 32 weights in 34 bytes, w = d * q.

    byte  0      2                                33
         | d f16 | q i8[32]                         |
"""

from __future__ import annotations

import numpy as np

from edged.kernels.export import export
from edged.kernels.simd import (
    cvt_f32, dot_ss, f32, f32x8, f32xA, fma, hsum, i8x8, i8x32, i32x8, i32xA, load, load_f16, prefetch, sext, splat,
    store, zero,
)  # fmt: skip
from edged.kernels.types.common import PREFETCH, ROWS, align64, put, rows_kernel
from edged.kernels.unroll import static


def dequantise(blocks: np.ndarray) -> np.ndarray:
    """u8 (..., n, 34) -> f32 (..., n, 32)."""
    d = blocks[..., :2].copy().view(np.float16).astype(np.float32)
    return d * blocks[..., 2:].view(np.int8).astype(np.float32)


@export("ptr, i64, ptr", name="row_q8_0")
def row(w, k, y):
    for i in range(k // 32):
        d = splat(f32x8, load_f16(w))
        for j in static(4):
            store(f32x8, y + (i * 128 + j * 32), cvt_f32(sext(i32x8, load(i8x8, w + (2 + j * 8)))) * d)
        w = w + 34


@rows_kernel("q8_0")
def dot(w, stride, r0, r1, k, x, xstride, y, ldy, add):
    xd = x + align64(k)
    for r in range(r0, r1):
        p = w + r * stride
        for n in static(ROWS):
            acc[n] = zero(f32xA)
        for i in range(k // 32):
            d = load_f16(p)
            q = load(i8x32, p + 2)
            for n in static(ROWS):
                s = dot_ss(zero(i32xA), q, load(i8x32, x + (n * xstride + i * 32)))
                acc[n] = fma(cvt_f32(s), splat(f32xA, d * load(f32, xd + (n * xstride + i * 4))), acc[n])
            prefetch(p + PREFETCH)
            p = p + 34
        for n in static(ROWS):
            put(y + (n * ldy + r) * 4, hsum(acc[n]), add)
