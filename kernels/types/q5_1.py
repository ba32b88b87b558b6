"""Q5_1: 32 weights in 24 bytes, w = d * q + m.

    byte   0       2       4                              8              24
         | d f16 | m f16 | bit j: fifth bit of weight j | byte j: low 4 bits of weight j and, high nibble, j + 16 |
"""

from __future__ import annotations

import numpy as np

from edged.kernels.simd import bits_i8x32, i8x32, nibbles, splat
from edged.kernels.types.block32 import Layout, block32_type
from edged.kernels.types.reference import f16_at, unpack_bits, unpack_nibbles


def dequantise(blocks: np.ndarray) -> np.ndarray:
    """u8 (..., n, 24) -> f32 (..., n, 32)."""
    q = unpack_nibbles(blocks[..., 8:]) | unpack_bits(blocks[..., 4:8]) << 4
    return f16_at(blocks, 0) * q.astype(np.float32) + f16_at(blocks, 2)


@block32_type("q5_1", Layout(24, "u5", has_min=1))
def quants(p):
    return nibbles(p + 8) | (bits_i8x32(p + 4) & splat(i8x32, 16))
