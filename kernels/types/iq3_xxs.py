"""IQ3_XXS: 256 weights in 98 bytes, 8 sub-blocks of 32, w = d / 4 * (2 s + 1) * sign * book entry.

    byte   0       2                            66                         98
         | d f16 | index of 4 weights, u8[64]  | u32[8], of signs and s   |

The 32 signs of a sub-block are in its u32 as 4 times 7 bits (codebooks.even_signs), s in the top 4 bits.
"""

from __future__ import annotations

import numpy as np

from edged.kernels.export import helper
from edged.kernels.simd import bitcast, concat, f32, i8x8, i64, load, load_f16, shl, splat, u8, u32
from edged.kernels.types.codebooks import BOOKS, book_of, even_signs, flip, pair4, reference_even_signs
from edged.kernels.types.reference import f16_at
from edged.kernels.types.scaled256 import Layout, scaled256_type
from edged.kernels.unroll import static

book = book_of("iq3_xxs")


def dequantise(blocks: np.ndarray) -> np.ndarray:
    """u8 (..., n, 98) -> f32 (..., n, 256)."""
    shape = blocks.shape[:-1]
    bits = blocks[..., 66:].copy().view("<u4")
    signs = reference_even_signs(bits[..., None] >> np.array([0, 7, 14, 21], np.uint32) & 127)
    weights = BOOKS["iq3_xxs"][blocks[..., 2:66]].reshape(*shape, 8, 32) * signs.reshape(*shape, 8, 32)
    d = f16_at(blocks, 0) * (2 * (bits >> 28).astype(np.float32) + 1) / 4
    return (d[..., None] * weights).reshape(*shape, 256)


@helper
def scale(p):
    return load_f16(p) * f32(0.25)


@helper
def scales(p, h):
    n = 0
    for i in static(8):
        n = n | i64(load(u8, p + (69 + i * 4)) >> 4) << (i * 8)
    return shl(bitcast(i8x8, n), 1) + splat(i8x8, 1)


@helper
def eight(at):
    """Weights of 2 indices."""
    return pair4(book(), i64(load(u8, at)), i64(load(u8, at + 1)))


@scaled256_type("iq3_xxs", Layout(98, "s7", 32), scale=scale, scales=scales)
def quants(p, g):
    at = p + (2 + g * 8)
    v = concat(concat(eight(at), eight(at + 2)), concat(eight(at + 4), eight(at + 6)))
    return flip(v, even_signs(i64(load(u32, p + (66 + g * 4)))))
