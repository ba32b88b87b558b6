"""Q4_K: 256 weights in 144 bytes, 8 sub-blocks of 32, w = d * scale[i] * q - dmin * min[i].

    byte   0       2          4                  16                                             144
         | d f16 | dmin f16 | scales, mins [12] | byte 32 j + l: weight 64 j + l in the low nibble,
                                                                        64 j + 32 + l in the high |
"""

from __future__ import annotations

import numpy as np

from edged.kernels.simd import i8x32, load, lshr, splat
from edged.kernels.types.block256 import block256_type, unpack_scales
from edged.kernels.types.reference import f16_at


def dequantise(blocks: np.ndarray) -> np.ndarray:
    """u8 (..., n, 144) -> f32 (..., n, 256)."""
    scales, mins = unpack_scales(blocks[..., 4:16])
    d = f16_at(blocks, 0) * scales.astype(np.float32)
    m = f16_at(blocks, 2) * mins.astype(np.float32)
    qs = blocks[..., 16:].reshape(*blocks.shape[:-1], 4, 32)
    q = np.stack([qs & 15, qs >> 4], axis=-2).reshape(*blocks.shape[:-1], 8, 32)
    return (d[..., None] * q.astype(np.float32) - m[..., None]).reshape(*blocks.shape[:-1], 256)


@block256_type("q4_k", 144, "u4")
def quants(p, i):
    q = load(i8x32, p + (16 + i // 2 * 32))
    if i % 2:
        return lshr(q, 4)
    return q & splat(i8x32, 15)
