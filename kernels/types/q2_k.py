"""Q2_K: 256 weights in 84 bytes, 16 sub-blocks of 16, w = d * scale[j] * q - dmin * min[j].

    byte   0                              16                       80      82         84
         | scale[j] in the low nibble of  | 2 bits of q, u8[64]   | d f16 | dmin f16 |
           byte j, min[j] in the high

With l = 0 .. 31, weight 128 h + 32 i + l is in bits 2 i of byte 16 + 32 h + l.
"""

from __future__ import annotations

import numpy as np

from edged.kernels.export import helper
from edged.kernels.simd import i8x8, i8x32, load, load_f16_tail, lshr, splat
from edged.kernels.types.reference import f16_at, unpack_pairs
from edged.kernels.types.scaled256 import Layout, scaled256_type


def dequantise(blocks: np.ndarray) -> np.ndarray:
    """u8 (..., n, 84) -> f32 (..., n, 256)."""
    q = unpack_pairs(blocks[..., 16:80]).reshape(*blocks.shape[:-1], 16, 16)
    d = f16_at(blocks, 80) * (blocks[..., :16] & 15).astype(np.float32)
    m = f16_at(blocks, 82) * (blocks[..., :16] >> 4).astype(np.float32)
    return (d[..., None] * q.astype(np.float32) - m[..., None]).reshape(*blocks.shape[:-1], 256)


@helper
def scale(p):
    return load_f16_tail(p + 80)


@helper
def dmin(p):
    return load_f16_tail(p + 82)


@helper
def scales(p, h):
    return load(i8x8, p + h * 8) & splat(i8x8, 15)


@helper
def mins(p, h):
    return lshr(load(i8x8, p + h * 8), 4)


@scaled256_type("q2_k", Layout(84, "s6", 16, has_min=1), scale=scale, scales=scales, mins=mins, dmin=dmin)
def quants(p, g):
    return lshr(load(i8x32, p + (16 + g // 4 * 32)), g % 4 * 2) & splat(i8x32, 3)
