"""Q4_0: 32 weights in 18 bytes, w = d * (q - 8).

    byte   0       2                                                    18
         | d f16 | byte j: weight j in the low nibble, j + 16 in the high |
"""

from __future__ import annotations

import numpy as np

from edged.kernels.simd import nibbles
from edged.kernels.types.block32 import Layout, block32_type
from edged.kernels.types.reference import f16_at, unpack_nibbles


def dequantise(blocks: np.ndarray) -> np.ndarray:
    """u8 (..., n, 18) -> f32 (..., n, 32)."""
    return f16_at(blocks, 0) * (unpack_nibbles(blocks[..., 2:]).astype(np.float32) - 8)


@block32_type("q4_0", Layout(18, "u4", zero=8))
def quants(p):
    return nibbles(p + 2)
