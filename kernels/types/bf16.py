"""BF16: the upper 16 bits of a binary32, little-endian."""

from __future__ import annotations

import numpy as np

from edged.kernels.simd import bitcast, f32x8, i16x8, i32x8, load, shl, zext
from edged.kernels.types.floats import float_type


def dequantise(blocks: np.ndarray) -> np.ndarray:
    """u8 (..., n, 2) -> f32 (..., n, 1)."""
    return (np.ascontiguousarray(blocks).view("<u2").astype(np.uint32) << 16).view(np.float32)


@float_type("bf16", 2)
def floats(p):
    return bitcast(f32x8, shl(zext(i32x8, load(i16x8, p)), 16))
