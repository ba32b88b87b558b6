"""IQ1_S: 256 weights in 50 bytes, 8 sub-blocks of 32, w = d / 8 * (2 s + 1) * (book entry + 1 or - 1).

    byte   0       2                                   34                                                    50
         | d f16 | low 8 bits of index of 8 weights,  | u16[8]: bits 3 j: upper 3 bits of index 4 g + j,
                   u8[32]                               bits 12 .. 14: s, bit 15: minus                    |

The entries of the book are -8, 0 and 8.
"""

from __future__ import annotations

import numpy as np

from edged.kernels.export import helper
from edged.kernels.simd import bitcast, f32, i8, i8x8, i8x32, i64, load, load_f16, shl, splat, u8, u16
from edged.kernels.types.codebooks import BOOKS, book_of, gather8
from edged.kernels.types.reference import f16_at
from edged.kernels.types.scaled256 import Layout, scaled256_type
from edged.kernels.unroll import static

book = book_of("iq1")


def dequantise(blocks: np.ndarray) -> np.ndarray:
    """u8 (..., n, 50) -> f32 (..., n, 256)."""
    shape = blocks.shape[:-1]
    qh = blocks[..., 34:].copy().view("<u2")
    upper = (qh[..., None] >> np.array([0, 3, 6, 9], np.uint16) & 7).reshape(*shape, 32)
    weights = BOOKS["iq1"][blocks[..., 2:34] | upper << 8].reshape(*shape, 8, 32)
    delta = 1 - 2 * (qh >> 15).astype(np.float32)
    d = f16_at(blocks, 0) * (2 * (qh >> 12 & 7).astype(np.float32) + 1) / 8
    return (d[..., None] * (weights + delta[..., None])).reshape(*shape, 256)


@helper
def scale(p):
    return load_f16(p) * f32(0.125)


@helper
def scales(p, h):
    n = 0
    for i in static(8):
        n = n | (i64(load(u8, p + (35 + i * 2))) >> 4 & 7) << (i * 8)
    return shl(bitcast(i8x8, n), 1) + splat(i8x8, 1)


@helper
def index(at, u, j):
    return i64(load(u8, at + j)) | (u >> (3 * j) & 7) << 8


@scaled256_type("iq1_s", Layout(50, "s6", 32), scale=scale, scales=scales)
def quants(p, g):
    at, u = p + (2 + g * 4), i64(load(u16, p + (34 + g * 2)))
    v = gather8(book(), index(at, u, 0), index(at, u, 1), index(at, u, 2), index(at, u, 3))
    return v + splat(i8x32, i8(1 - 2 * (u >> 15)))
