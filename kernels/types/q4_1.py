"""Q4_1: 32 weights in 20 bytes, w = d * q + m.

    byte   0       2       4                                             20
         | d f16 | m f16 | byte j: weight j in the low nibble, j + 16 in the high |
"""

from __future__ import annotations

import numpy as np

from edged.kernels.simd import nibbles
from edged.kernels.types.block32 import Layout, block32_type
from edged.kernels.types.reference import f16_at, unpack_nibbles


def dequantise(blocks: np.ndarray) -> np.ndarray:
    """u8 (..., n, 20) -> f32 (..., n, 32)."""
    return f16_at(blocks, 0) * unpack_nibbles(blocks[..., 4:]).astype(np.float32) + f16_at(blocks, 2)


@block32_type("q4_1", Layout(20, "u4", has_min=1))
def quants(p):
    return nibbles(p + 4)
