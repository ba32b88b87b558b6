"""Q5_K: 256 weights in 176 bytes, 8 sub-blocks of 32, w = d * scale[i] * q - dmin * min[i].

    byte   0       2          4                  16                              48                          176
         | d f16 | dmin f16 | scales, mins [12] | byte l, bit i: fifth bit of   | byte 32 j + l: low 4 bits of
                                                  weight 32 i + l                 weight 64 j + l and, high
                                                                                  nibble, 64 j + 32 + l        |
"""

from __future__ import annotations

import numpy as np

from edged.kernels.simd import i8x32, load, lshr, shl, splat
from edged.kernels.types.block256 import block256_type, unpack_scales
from edged.kernels.types.reference import f16_at


def dequantise(blocks: np.ndarray) -> np.ndarray:
    """u8 (..., n, 176) -> f32 (..., n, 256)."""
    scales, mins = unpack_scales(blocks[..., 4:16])
    d = f16_at(blocks, 0) * scales.astype(np.float32)
    m = f16_at(blocks, 2) * mins.astype(np.float32)
    qs = blocks[..., 48:].reshape(*blocks.shape[:-1], 4, 32)
    q = np.stack([qs & 15, qs >> 4], axis=-2).reshape(*blocks.shape[:-1], 8, 32)
    fifth = blocks[..., None, 16:48] >> np.arange(8, dtype=np.uint8)[:, None] & 1
    q = q | fifth << 4
    return (d[..., None] * q.astype(np.float32) - m[..., None]).reshape(*blocks.shape[:-1], 256)


@block256_type("q5_k", 176, "u5")
def quants(p, i):
    q = load(i8x32, p + (48 + i // 2 * 32))
    h = load(i8x32, p + 16)
    if i % 2:
        q = lshr(q, 4)
    else:
        q = q & splat(i8x32, 15)
    if i < 4:
        h = shl(h, 4 - i)
    else:
        h = lshr(h, i - 4)
    return q | (h & splat(i8x32, 16))
