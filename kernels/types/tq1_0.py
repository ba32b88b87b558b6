"""TQ1_0: 256 weights of -1, 0 or 1 in 54 bytes, w = d * (q - 1).

    byte   0                            32                           48                     52      54
         | weight 32 i + l, i = 0 .. 4 | weight 160 + 16 i + l,     | weight 240 + 4 i + l | d f16 |
                                         i = 0 .. 4                   i = 0 .. 3

A byte b holds digits to base 3 as a fraction: digit i is the integer part of 3 * (3**i * b % 256) / 256.
"""

from __future__ import annotations

import numpy as np

from edged.kernels.export import helper
from edged.kernels.simd import (
    bitcast,
    concat,
    constant,
    i8,
    i8x16,
    i8x32,
    i32,
    i32x4,
    load,
    load_f16_tail,
    splat,
    where_gt,
    zero,
)
from edged.kernels.types.reference import f16_at
from edged.kernels.types.scaled256 import Layout, scaled256_type

powers5 = constant(i8x32, (1,) * 16 + (3,) * 16)
powers6 = constant(i8x32, (9,) * 16 + (27,) * 16)
powers7 = constant(i8x32, (81,) * 16 + (1,) * 4 + (3,) * 4 + (9,) * 4 + (27,) * 4)


def dequantise(blocks: np.ndarray) -> np.ndarray:
    """u8 (..., n, 54) -> f32 (..., n, 256)."""
    power = np.array([1, 3, 9, 27, 81], np.uint8)[:, None]
    parts = (blocks[..., None, :32] * power, blocks[..., None, 32:48] * power, blocks[..., None, 48:52] * power[:4])
    b = np.concatenate([part.reshape(*blocks.shape[:-1], -1) for part in parts], axis=-1)
    return f16_at(blocks, 52) * ((b.astype(np.uint16) * 3 >> 8).astype(np.float32) - 1)


@helper
def scale(p):
    return load_f16_tail(p + 52)


@scaled256_type("tq1_0", Layout(54, "s6", 256), scale=scale)
def quants(p, g):
    if g < 5:
        b = load(i8x32, p)
        for _ in range(g):
            b = b + b + b
    else:
        half = load(i8x16, p + 32)
        if g == 5:
            b = concat(half, half) * powers5()
        elif g == 6:
            b = concat(half, half) * powers6()
        else:
            b = concat(half, bitcast(i8x16, splat(i32x4, load(i32, p + 48)))) * powers7()
    b = b ^ splat(i8x32, i8(-128))  # compared as signed: 3 b / 256 is at least 1 from 86 on, 2 from 171 on
    one, none = splat(i8x32, 1), zero(i8x32)
    return where_gt(b, splat(i8x32, 85 - 128), none, none - one) + where_gt(b, splat(i8x32, 170 - 128), one, none)
