"""F32: IEEE 754 binary32, little-endian."""

from __future__ import annotations

import numpy as np

from edged.kernels.simd import f32x8, load
from edged.kernels.types.floats import float_type


def dequantise(blocks: np.ndarray) -> np.ndarray:
    """u8 (..., n, 4) -> f32 (..., n, 1)."""
    return np.ascontiguousarray(blocks).view("<f4")


@float_type("f32", 4)
def floats(p):
    return load(f32x8, p)
