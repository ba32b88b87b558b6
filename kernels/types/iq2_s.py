"""IQ2_S: 256 weights in 82 bytes, 16 sub-blocks of 16, w = d / 8 * (2 s[j] + 1) * sign * book entry.

    byte   0       2                34               66                         74                       82
         | d f16 | low 8 bits of   | bit j of byte i: | bits 2 j of byte g:      | s[j] in nibble j, u8[8] |
                   index i, u8[32]   sign of weight     upper 2 bits of index
                                     8 i + j            4 g + j
"""

from __future__ import annotations

import numpy as np

from edged.kernels.export import helper
from edged.kernels.simd import bitcast, bits_i8x32, f32, i8x8, i64, load, load_f16, shl, splat, u8, u32
from edged.kernels.types.codebooks import BOOKS, book_of, flip, gather8, nibbles8, reference_signs
from edged.kernels.types.reference import f16_at
from edged.kernels.types.scaled256 import Layout, scaled256_type

book = book_of("iq2_s")


def dequantise(blocks: np.ndarray) -> np.ndarray:
    """u8 (..., n, 82) -> f32 (..., n, 256)."""
    shape = blocks.shape[:-1]
    upper = (blocks[..., 66:74, None] >> np.array([0, 2, 4, 6], np.uint8) & 3).reshape(*shape, 32)
    index = blocks[..., 2:34] | upper.astype(np.uint16) << 8
    weights = BOOKS["iq2_s"][index] * reference_signs(blocks[..., 34:66])
    s = np.stack([blocks[..., 74:] & 15, blocks[..., 74:] >> 4], axis=-1).reshape(*shape, 16)
    d = f16_at(blocks, 0) * (2 * s.astype(np.float32) + 1) / 8
    return (d[..., None] * weights.reshape(*shape, 16, 16)).reshape(*shape, 256)


@helper
def scale(p):
    return load_f16(p) * f32(0.125)


@helper
def scales(p, h):
    return shl(bitcast(i8x8, nibbles8(i64(load(u32, p + (74 + h * 4))))), 1) + splat(i8x8, 1)


@helper
def index(p, u, g, j):
    return i64(load(u8, p + (2 + g * 4 + j))) | (u >> (2 * j) & 3) << 8


@scaled256_type("iq2_s", Layout(82, "s7", 16), scale=scale, scales=scales)
def quants(p, g):
    u = i64(load(u8, p + (66 + g)))
    v = gather8(book(), index(p, u, g, 0), index(p, u, g, 1), index(p, u, g, 2), index(p, u, g, 3))
    return flip(v, bits_i8x32(p + (34 + g * 4)))
