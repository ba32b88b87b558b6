"""Q3_K: 256 weights in 110 bytes, 16 sub-blocks of 16, w = d * (scale[j] - 32) * (q - 4).

    byte   0                               32                             96             108     110
         | byte l, bit g: third bit of     | low 2 bits of q, u8[64]     | scales [12]  | d f16 |
           weight 32 g + l

With l = 0 .. 31, weight 128 h + 32 i + l has its low bits in bits 2 i of byte 32 + 32 h + l. scale[j] has its low 4
bits in byte 96 + j % 8, low nibble for j < 8, and its upper 2 bits in bits 2 (j // 4) of byte 104 + j % 4.
"""

from __future__ import annotations

import numpy as np

from edged.kernels.export import helper
from edged.kernels.simd import bitcast, i8x8, i8x32, i64, load, load_f16_tail, lshr, shl, splat, u32
from edged.kernels.types.reference import f16_at, unpack_pairs
from edged.kernels.types.scaled256 import Layout, scaled256_type


def dequantise(blocks: np.ndarray) -> np.ndarray:
    """u8 (..., n, 110) -> f32 (..., n, 256)."""
    shape = blocks.shape[:-1]
    third = (blocks[..., None, :32] >> np.arange(8, dtype=np.uint8)[:, None] & 1).reshape(*shape, 256)
    q = (unpack_pairs(blocks[..., 32:96]) | third << 2).reshape(*shape, 16, 16)
    lower = np.concatenate([blocks[..., 96:104] & 15, blocks[..., 96:104] >> 4], axis=-1)
    upper = (blocks[..., None, 104:108] >> np.array([0, 2, 4, 6], np.uint8)[:, None] & 3).reshape(*shape, 16)
    d = f16_at(blocks, 108) * ((lower | upper << 4).astype(np.float32) - 32)
    return (d[..., None] * (q.astype(np.float32) - 4)).reshape(*shape, 256)


@helper
def scale(p):
    return load_f16_tail(p + 108)


@helper
def scales(p, h):
    lower = (load(i64, p + 96) >> (4 * h)) & 0x0F0F0F0F0F0F0F0F
    upper = i64(load(u32, p + 104)) >> (4 * h)
    upper = (upper & 0x03030303) | ((upper >> 2) & 0x03030303) << 32
    return bitcast(i8x8, lower | upper << 4) - splat(i8x8, 32)


@scaled256_type("q3_k", Layout(110, "s6", 16, zero=4), scale=scale, scales=scales)
def quants(p, g):
    q = lshr(load(i8x32, p + (32 + g // 4 * 32)), g % 4 * 2) & splat(i8x32, 3)
    u = load(i8x32, p)
    if g < 2:
        u = shl(u, 2 - g)
    else:
        u = lshr(u, g - 2)
    return q | (u & splat(i8x32, 4))
