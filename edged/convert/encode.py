"""Weights in the types that conversion writes."""

from __future__ import annotations

import numpy as np

from edged.errors import BadModel

Encoded = tuple[np.ndarray, str, tuple[int, ...]]  # bytes, type, shape in GGML's order


def encode(name: str, dtype: str, array: np.ndarray, type: str) -> Encoded:
    """An array of safetensors (`dtype` is its name there) as `type`.

    Raises BadModel for weights that are no floats, infinite or NaN, or too large for the type.
    """
    if dtype == "BF16":
        weights = (array.astype(np.uint32) << 16).view(np.float32)
    elif array.dtype.kind == "f":
        with np.errstate(over="ignore"):
            weights = array.astype(np.float32)
    else:
        raise BadModel(f"tensor {name} has the dtype {dtype}; weights must be floats")
    if not weights.size:
        raise BadModel(f"tensor {name} is empty")
    if type == "q8_0" and weights.shape[-1] % 32:
        type = "f16"
    with np.errstate(over="ignore"):
        encoded, largest = _ENCODERS[type](weights)
    if not np.isfinite(largest):
        raise BadModel(f"tensor {name} has weights that are no finite {type}",
                       hint="the largest type is f32" if np.isfinite(weights).all() else "the checkpoint is damaged")
    return np.ascontiguousarray(encoded).reshape(-1).view(np.uint8), type, weights.shape[::-1]


def _f32(x: np.ndarray) -> tuple[np.ndarray, float]:
    return x, float(np.abs(x).max())


def _f16(x: np.ndarray) -> tuple[np.ndarray, float]:
    half = x.astype("<f2")
    return half, float(np.abs(half).max())


def _bf16(x: np.ndarray) -> tuple[np.ndarray, float]:
    """To the nearest, ties to even."""
    bits = x.view(np.uint32)
    if not np.isfinite(x).all():
        return bits, np.nan
    rounded = (bits + 0x7FFF + (bits >> 16 & 1) >> 16).astype("<u2")
    return rounded, float((rounded.astype(np.uint32) << 16).view(np.float32).max())


def _q8_0(x: np.ndarray) -> tuple[np.ndarray, float]:
    """Blocks as drawn in kernels/types/q8_0.py. Source: ggml-quants.c, quantize_row_q8_0_ref."""
    x = x.reshape(-1, 32)
    d = np.abs(x).max(-1, keepdims=True) / np.float32(127)
    inverse = np.divide(np.float32(1), d, out=np.zeros_like(d), where=d != 0)
    scaled = x * inverse
    quants = np.trunc(scaled + np.copysign(np.float32(0.5), scaled))  # halves away from zero
    scales = d.astype("<f2")
    if not np.isfinite(scales).all():
        return scales, np.nan
    return np.concatenate([scales.view(np.uint8), quants.astype(np.int8).view(np.uint8)], -1), float(scales.max())


_ENCODERS = {"f32": _f32, "f16": _f16, "bf16": _bf16, "q8_0": _q8_0}
