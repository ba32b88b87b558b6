"""IQ2_XS: 256 weights in 74 bytes, 16 sub-blocks of 16, w = d / 8 * (2 s[j] + 1) * sign * book entry.

    byte   0       2                                                   66                      74
         | d f16 | u16[32]: index of 8 weights in the low 9 bits,     | s[j] in nibble j, u8[8] |
                   7 signs above (codebooks.even_signs)
"""

from __future__ import annotations

import numpy as np

from edged.kernels.export import helper
from edged.kernels.simd import bitcast, f32, i8x8, i64, load, load_f16, shl, splat, u16, u32
from edged.kernels.types.codebooks import BOOKS, book_of, even_signs, flip, gather8, nibbles8, reference_even_signs
from edged.kernels.types.reference import f16_at
from edged.kernels.types.scaled256 import Layout, scaled256_type

book = book_of("iq2_xs")


def dequantise(blocks: np.ndarray) -> np.ndarray:
    """u8 (..., n, 74) -> f32 (..., n, 256)."""
    shape = blocks.shape[:-1]
    qs = blocks[..., 2:66].copy().view("<u2").reshape(*shape, 16, 2)
    s = np.stack([blocks[..., 66:] & 15, blocks[..., 66:] >> 4], axis=-1).reshape(*shape, 16)
    d = f16_at(blocks, 0) * (2 * s.astype(np.float32) + 1) / 8
    weights = BOOKS["iq2_xs"][qs & 511] * reference_even_signs(qs >> 9)
    return (d[..., None, None] * weights).reshape(*shape, 256)


@helper
def scale(p):
    return load_f16(p) * f32(0.125)


@helper
def scales(p, h):
    return shl(bitcast(i8x8, nibbles8(i64(load(u32, p + (66 + h * 4))))), 1) + splat(i8x8, 1)


@scaled256_type("iq2_xs", Layout(74, "s7", 16), scale=scale, scales=scales)
def quants(p, g):
    at = p + (2 + g * 8)
    a, b, c, d = i64(load(u16, at)), i64(load(u16, at + 2)), i64(load(u16, at + 4)), i64(load(u16, at + 6))
    v = gather8(book(), a & 511, b & 511, c & 511, d & 511)
    return flip(v, even_signs(a >> 9 | (b >> 9) << 7 | (c >> 9) << 14 | (d >> 9) << 21))
