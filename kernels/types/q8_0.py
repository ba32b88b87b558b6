"""Q8_0: 32 weights in 34 bytes, w = d * q.

    byte   0       2                                                    34
         | d f16 | q i8[32]                                              |
"""

from __future__ import annotations

import numpy as np

from edged.kernels.simd import i8x32, load
from edged.kernels.types.block32 import Layout, block32_type


def dequantise(blocks: np.ndarray) -> np.ndarray:
    """u8 (..., n, 34) -> f32 (..., n, 32)."""
    d = blocks[..., :2].copy().view(np.float16).astype(np.float32)
    return d * blocks[..., 2:].view(np.int8).astype(np.float32)


@block32_type("q8_0", Layout(34, "s8"))
def quants(p):
    return load(i8x32, p + 2)
