"""IQ1_M: 256 weights in 56 bytes, 16 sub-blocks of 16, w = d / 8 * (2 s[j] + 1) * (book entry + 1 or - 1).

    byte   0                          32                                    48                              56
         | low 8 bits of index of    | nibble i: upper 3 bits of index i,  | u16[4]: s[4 i + j] in bits 3 j,
           8 weights, u8[32]           bit 3: minus                          top 4 bits: nibble i of d f16 |

The entries of the book are -8, 0 and 8.
"""

from __future__ import annotations

import numpy as np

from edged.kernels.export import helper
from edged.kernels.simd import (
    bitcast,
    cvt_f32,
    f16x4,
    f32,
    get,
    i8x8,
    i8x32,
    i32,
    i64,
    load,
    mask_i8x32,
    shl,
    splat,
    u8,
    u16,
    u32,
)
from edged.kernels.types.codebooks import BOOKS, book_of, flip, gather8
from edged.kernels.types.scaled256 import Layout, scaled256_type
from edged.kernels.unroll import static

book = book_of("iq1")


def dequantise(blocks: np.ndarray) -> np.ndarray:
    """u8 (..., n, 56) -> f32 (..., n, 256)."""
    shape = blocks.shape[:-1]
    words = blocks[..., 48:].copy().view("<u2")
    d = np.bitwise_or.reduce(words >> 12 << np.array([0, 4, 8, 12], np.uint16), axis=-1)
    s = (words[..., None] >> np.array([0, 3, 6, 9], np.uint16) & 7).reshape(*shape, 16)
    scale = d.view("<f2").astype(np.float32)[..., None] * (2 * s.astype(np.float32) + 1) / 8
    upper = np.stack([blocks[..., 32:48] & 15, blocks[..., 32:48] >> 4], axis=-1).reshape(*shape, 32)
    weights = BOOKS["iq1"][blocks[..., :32] | (upper & 7).astype(np.uint16) << 8]
    weights = weights + (1 - 2 * (upper >> 3).astype(np.float32))[..., None]
    return (scale[..., None] * weights.reshape(*shape, 16, 16)).reshape(*shape, 256)


@helper
def scale(p):
    n = 0
    for i in static(4):
        n = n | (i64(load(u16, p + (48 + i * 2))) >> 12) << (4 * i)
    return get(cvt_f32(bitcast(f16x4, n)), 0) * f32(0.125)


@helper
def scales(p, h):
    words, n = i64(load(u32, p + (48 + h * 4))), 0
    for i in static(8):
        n = n | (words >> (i // 4 * 16 + i % 4 * 3) & 7) << (i * 8)
    return shl(bitcast(i8x8, n), 1) + splat(i8x8, 1)


@helper
def index(at, u, j):
    return i64(load(u8, at + j)) | (u >> (4 * j) & 7) << 8


@scaled256_type("iq1_m", Layout(56, "s6", 16), scale=scale, scales=scales)
def quants(p, g):
    at, u = p + g * 4, i64(load(u16, p + (32 + g * 2)))
    v = gather8(book(), index(at, u, 0), index(at, u, 1), index(at, u, 2), index(at, u, 3))
    minus = (u >> 3 & 1 | (u >> 7 & 1) << 8 | (u >> 11 & 1) << 16 | (u >> 15) << 24) * 255
    return v + flip(splat(i8x32, 1), mask_i8x32(i32(minus)))
