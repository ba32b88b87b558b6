"""F16: IEEE 754 binary16, little-endian."""

from __future__ import annotations

import numpy as np

from edged.kernels.simd import cvt_f32, f16x8, load
from edged.kernels.types.floats import float_type


def dequantise(blocks: np.ndarray) -> np.ndarray:
    """u8 (..., n, 2) -> f32 (..., n, 1)."""
    return np.ascontiguousarray(blocks).view("<f2").astype(np.float32)


@float_type("f16", 2)
def floats(p):
    return cvt_f32(load(f16x8, p))
