"""IQ4_NL: 32 weights in 18 bytes, w = d * VALUES[q].

    byte   0       2                                                    18
         | d f16 | byte j: weight j in the low nibble, j + 16 in the high |
"""

from __future__ import annotations

import numpy as np

from edged.kernels.simd import constant, i8x16, lookup16, nibbles
from edged.kernels.types.block32 import Layout, block32_type
from edged.kernels.types.reference import f16_at, unpack_nibbles

# kvalues_iq4nl of ggml-common.h: levels of a distribution that is dense about zero
VALUES = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
values = constant(i8x16, VALUES)


def dequantise(blocks: np.ndarray) -> np.ndarray:
    """u8 (..., n, 18) -> f32 (..., n, 32)."""
    return f16_at(blocks, 0) * np.array(VALUES, np.float32)[unpack_nibbles(blocks[..., 2:])]


@block32_type("iq4_nl", Layout(18, "s8"))
def quants(p):
    return lookup16(values(), nibbles(p + 2))
