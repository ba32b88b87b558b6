"""IQ3_S: 256 weights in 110 bytes, 8 sub-blocks of 32, w = d * (2 s[g] + 1) * sign * book entry.

    byte   0       2                     66                    74                  106                      110
         | d f16 | low 8 bits of index  | bit j of byte g:    | bit j of byte i:  | s[g] in nibble g, u8[4] |
                   of 4 weights, u8[64]   ninth bit of index    sign of weight
                                          8 g + j               8 i + j
"""

from __future__ import annotations

import numpy as np

from edged.kernels.export import helper
from edged.kernels.simd import bitcast, bits_i8x32, concat, i8x8, i64, load, load_f16, shl, splat, u8, u32
from edged.kernels.types.codebooks import BOOKS, book_of, flip, nibbles8, pair4, reference_signs
from edged.kernels.types.reference import f16_at, unpack_bits
from edged.kernels.types.scaled256 import Layout, scaled256_type

book = book_of("iq3_s")


def dequantise(blocks: np.ndarray) -> np.ndarray:
    """u8 (..., n, 110) -> f32 (..., n, 256)."""
    shape = blocks.shape[:-1]
    index = blocks[..., 2:66] | unpack_bits(blocks[..., 66:74]).astype(np.uint16) << 8
    signs = reference_signs(blocks[..., 74:106])
    s = np.stack([blocks[..., 106:] & 15, blocks[..., 106:] >> 4], axis=-1).reshape(*shape, 8)
    d = f16_at(blocks, 0) * (2 * s.astype(np.float32) + 1)
    weights = BOOKS["iq3_s"][index].reshape(*shape, 8, 32) * signs.reshape(*shape, 8, 32)
    return (d[..., None] * weights).reshape(*shape, 256)


@helper
def scales(p, h):
    return shl(bitcast(i8x8, nibbles8(i64(load(u32, p + 106)))), 1) + splat(i8x8, 1)


@helper
def eight(at, u, j):
    """Weights of indices j and j + 1 of the group at `at`."""
    first = i64(load(u8, at + j)) | (u >> j & 1) << 8
    return pair4(book(), first, i64(load(u8, at + (j + 1))) | (u >> (j + 1) & 1) << 8)


@scaled256_type("iq3_s", Layout(110, "s6", 32), scale=load_f16, scales=scales)
def quants(p, g):
    at, u = p + (2 + g * 8), i64(load(u8, p + (66 + g)))
    v = concat(concat(eight(at, u, 0), eight(at, u, 2)), concat(eight(at, u, 4), eight(at, u, 6)))
    return flip(v, bits_i8x32(p + (74 + g * 4)))
