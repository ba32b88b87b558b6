"""Q6_K: 256 weights in 210 bytes, 16 sub-blocks of 16, w = d * scale[i] * (q - 32).

    byte   0                            128                     192           208     210
         | low 4 bits of q, u8[128]    | upper 2 bits, u8[64]  | scale i8[16] | d f16 |

Each half h of 128 weights has 64 bytes of low and 32 bytes of upper bits. With l = 0 .. 31, weight 128 h + 32 i + l
has its low bits in byte 64 h + 32 (i % 2) + l, low nibble for i < 2, and its upper bits in bits 2 i of byte
128 + 32 h + l.
"""

from __future__ import annotations

import numpy as np

from edged.kernels.export import helper
from edged.kernels.simd import i8x8, i8x32, load, load_f16_tail, lshr, shl, splat
from edged.kernels.types.reference import f16_at
from edged.kernels.types.scaled256 import Layout, scaled256_type


def dequantise(blocks: np.ndarray) -> np.ndarray:
    """u8 (..., n, 210) -> f32 (..., n, 256)."""
    shape = blocks.shape[:-1]
    lower = blocks[..., :128].reshape(*shape, 2, 1, 64) >> np.array([0, 4], np.uint8)[:, None] & 15
    upper = blocks[..., 128:192].reshape(*shape, 2, 1, 32) >> np.array([0, 2, 4, 6], np.uint8)[:, None] & 3
    q = lower.reshape(*shape, 16, 16) | upper.reshape(*shape, 16, 16) << 4
    scales = blocks[..., 192:208].view(np.int8).astype(np.float32)
    d = f16_at(blocks, 208) * scales
    return (d[..., None] * (q.astype(np.float32) - 32)).reshape(*shape, 256)


@helper
def scale(p):
    return load_f16_tail(p + 208)


@helper
def scales(p, h):
    return load(i8x8, p + (192 + h * 8))


@scaled256_type("q6_k", Layout(210, "s6", 16, zero=32), scale=scale, scales=scales)
def quants(p, g):
    q = load(i8x32, p + (g // 4 * 64 + g % 2 * 32))
    u = load(i8x32, p + (128 + g // 4 * 32))
    if g % 4 < 2:
        q = q & splat(i8x32, 15)
        u = shl(u, 4 - 2 * (g % 4))
    else:
        q = lshr(q, 4)
        if g % 4 == 3:
            u = lshr(u, 2)
    return q | (u & splat(i8x32, 48))
