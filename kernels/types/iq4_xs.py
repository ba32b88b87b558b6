"""IQ4_XS: 256 weights in 136 bytes, 8 sub-blocks of 32, w = d * (scale[i] - 32) * VALUES[q], VALUES as in IQ4_NL.

    byte   0       2                      4                        8                                      136
         | d f16 | u16, bits 2 i: upper   | low 4 bits of scale[i] | byte 16 i + j: weight 32 i + j in the
                   2 bits of scale[i]       in nibble i              low nibble, 32 i + 16 + j in the high |
"""

from __future__ import annotations

import numpy as np

from edged.kernels.export import helper
from edged.kernels.simd import bitcast, i8x8, i64, load, load_f16, lookup16, nibbles, splat, u16, u32
from edged.kernels.types.codebooks import nibbles8
from edged.kernels.types.iq4_nl import VALUES, values
from edged.kernels.types.reference import f16_at
from edged.kernels.types.scaled256 import Layout, scaled256_type


def dequantise(blocks: np.ndarray) -> np.ndarray:
    """u8 (..., n, 136) -> f32 (..., n, 256)."""
    shape = blocks.shape[:-1]
    lower = np.stack([blocks[..., 4:8] & 15, blocks[..., 4:8] >> 4], axis=-1).reshape(*shape, 8)
    upper = blocks[..., 2:4].copy().view("<u2") >> np.arange(0, 16, 2, dtype=np.uint16) & 3
    d = f16_at(blocks, 0) * ((lower | upper << 4).astype(np.float32) - 32)
    qs = blocks[..., 8:].reshape(*shape, 8, 16)
    q = np.array(VALUES, np.float32)[np.concatenate([qs & 15, qs >> 4], axis=-1)]
    return (d[..., None] * q).reshape(*shape, 256)


@helper
def scales(p, h):
    """The upper bits, 2 each, become bytes as nibbles8 does it."""
    c = i64(load(u16, p + 2))
    c = (c | c << 24) & 0x000000FF000000FF
    c = (c | c << 12) & 0x000F000F000F000F
    c = (c | c << 6) & 0x0303030303030303
    return bitcast(i8x8, nibbles8(i64(load(u32, p + 4))) | c << 4) - splat(i8x8, 32)


@scaled256_type("iq4_xs", Layout(136, "s8", 32), scale=load_f16, scales=scales)
def quants(p, g):
    return lookup16(values(), nibbles(p + (8 + g * 16)))
