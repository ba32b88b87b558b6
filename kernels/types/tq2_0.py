"""TQ2_0: 256 weights of -1, 0 or 1 in 66 bytes, w = d * (q - 1).

    byte   0                      64      66
         | 2 bits of q, u8[64]   | d f16 |      weight 128 h + 32 i + l is in bits 2 i of byte 32 h + l
"""

from __future__ import annotations

import numpy as np

from edged.kernels.export import helper
from edged.kernels.simd import i8x32, load, load_f16_tail, lshr, splat
from edged.kernels.types.reference import f16_at, unpack_pairs
from edged.kernels.types.scaled256 import Layout, scaled256_type


def dequantise(blocks: np.ndarray) -> np.ndarray:
    """u8 (..., n, 66) -> f32 (..., n, 256)."""
    return f16_at(blocks, 64) * (unpack_pairs(blocks[..., :64]).astype(np.float32) - 1)


@helper
def scale(p):
    return load_f16_tail(p + 64)


@scaled256_type("tq2_0", Layout(66, "s6", 256), scale=scale)
def quants(p, g):
    return (lshr(load(i8x32, p + g // 4 * 32), g % 4 * 2) & splat(i8x32, 3)) - splat(i8x32, 1)
