"""IQ2_XXS: 256 weights in 66 bytes, 8 sub-blocks of 32, w = d / 8 * (2 s + 1) * sign * book entry.

    byte   0       2                                       66
         | d f16 | 8 times: index u8[4] | u32 of signs, s |

An index stands for 8 weights, its signs are in bits 7 j .. 7 j + 6 of the u32 (codebooks.even_signs), s in its top 4.
"""

from __future__ import annotations

import numpy as np

from edged.kernels.export import helper
from edged.kernels.simd import bitcast, f32, i8x8, i64, load, load_f16, shl, splat, u8, u32
from edged.kernels.types.codebooks import BOOKS, book_of, even_signs, flip, gather8, reference_even_signs
from edged.kernels.types.reference import f16_at
from edged.kernels.types.scaled256 import Layout, scaled256_type
from edged.kernels.unroll import static

book = book_of("iq2_xxs")


def dequantise(blocks: np.ndarray) -> np.ndarray:
    """u8 (..., n, 66) -> f32 (..., n, 256)."""
    shape = blocks.shape[:-1]
    groups = blocks[..., 2:].reshape(*shape, 8, 8)
    bits = groups[..., 4:].copy().view("<u4")
    signs = reference_even_signs(bits >> np.array([0, 7, 14, 21], np.uint32) & 127)
    d = f16_at(blocks, 0)[..., None] * (2 * (bits >> 28).astype(np.float32) + 1) / 8
    return (d[..., None] * (BOOKS["iq2_xxs"][groups[..., :4]] * signs)).reshape(*shape, 256)


@helper
def scale(p):
    return load_f16(p) * f32(0.125)


@helper
def scales(p, h):
    n = 0
    for i in static(8):
        n = n | i64(load(u8, p + (9 + i * 8)) >> 4) << (i * 8)
    return shl(bitcast(i8x8, n), 1) + splat(i8x8, 1)


@scaled256_type("iq2_xxs", Layout(66, "s7", 32), scale=scale, scales=scales)
def quants(p, g):
    at = p + (2 + g * 8)
    v = gather8(book(), i64(load(u8, at)), i64(load(u8, at + 1)), i64(load(u8, at + 2)), i64(load(u8, at + 3)))
    return flip(v, even_signs(i64(load(u32, at + 4))))
