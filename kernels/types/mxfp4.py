"""MXFP4: 32 weights in 17 bytes, w = 2**(e - 128) * VALUES[q]; VALUES are twice the numbers of FP4 (E2M1).

    byte   0    1                                                    17
         | e  | byte j: weight j in the low nibble, j + 16 in the high |

Source: OCP Microscaling Formats (MX) Specification 1.0; e = 255, its NaN, is read as any other, as in ggml.
"""

from __future__ import annotations

import numpy as np

from edged.kernels.export import helper
from edged.kernels.simd import bitcast, constant, f32, i8x16, i32, i64, load, lookup16, nibbles, u8
from edged.kernels.types.block32 import Layout, block32_type
from edged.kernels.types.reference import unpack_nibbles

VALUES = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
values = constant(i8x16, VALUES)


def dequantise(blocks: np.ndarray) -> np.ndarray:
    """u8 (..., n, 17) -> f32 (..., n, 32)."""
    d = np.ldexp(np.float32(1), blocks[..., :1].astype(np.int32) - 128)
    return d * np.array(VALUES, np.float32)[unpack_nibbles(blocks[..., 1:])]


@helper
def scale(p):
    """2**(e - 128), made of the bits of a float; the two smallest are denormal."""
    e = i64(load(u8, p))
    bits = (e - 1) << 23
    if e < 2:
        bits = 0x00200000 << e
    return bitcast(f32, i32(bits))


@block32_type("mxfp4", Layout(17, "s8", scale=scale))
def quants(p):
    return lookup16(values(), nibbles(p + 1))
