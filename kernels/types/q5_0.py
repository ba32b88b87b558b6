"""Q5_0: 32 weights in 22 bytes, w = d * (q - 16).

    byte   0       2                              6                      22
         | d f16 | bit j: fifth bit of weight j | byte j: low 4 bits of weight j and, high nibble, j + 16 |
"""

from __future__ import annotations

import numpy as np

from edged.kernels.simd import bits_i8x32, i8x32, nibbles, splat
from edged.kernels.types.block32 import Layout, block32_type
from edged.kernels.types.reference import f16_at, unpack_bits, unpack_nibbles


def dequantise(blocks: np.ndarray) -> np.ndarray:
    """u8 (..., n, 22) -> f32 (..., n, 32)."""
    q = unpack_nibbles(blocks[..., 6:]) | unpack_bits(blocks[..., 2:6]) << 4
    return f16_at(blocks, 0) * (q.astype(np.float32) - 16)


@block32_type("q5_0", Layout(22, "u5", zero=16))
def quants(p):
    return nibbles(p + 6) | (bits_i8x32(p + 2) & splat(i8x32, 16))
