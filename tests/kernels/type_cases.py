"""Cases for the kernels of the tensor types, with what they must give; needs the references and thus numba.

A case is one matrix: random rows, then rows with hostile scales and extreme values. Tokens: extreme activations, then
random ones, quantised as the type's kernels read them.
"""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

from edged.kernels.activations import quantised, row_records
from edged.kernels.ops.quantise import reference_panels
from edged.kernels.table import ACT_BLOCK, LEVELS, TYPES, TensorType

ROWS, TOKENS = 45, 37
WIDTHS = {1: (576, 640, 1024), 32: (576, 640, 1024), 256: (512, 1024)}
# where each block has its f16 scales
SCALES = {
    "q8_0": (0,), "q4_0": (0,), "q4_1": (0, 2), "q5_0": (0,), "q5_1": (0, 2), "q4_k": (0, 2), "q5_k": (0, 2),
    "q6_k": (208,), "q2_k": (80, 82), "q3_k": (108,), "iq4_nl": (0,), "iq4_xs": (0,),
    "iq2_xxs": (0,), "iq2_xs": (0,), "iq2_s": (0,), "iq3_xxs": (0,), "iq3_s": (0,), "iq1_s": (0,), "tq1_0": (52,),
    "tq2_0": (64,), "mxfp4": (0,), "iq1_m": (48,),
}  # fmt: skip
# zero, minus zero, negative, smallest and largest denormal, smallest normal, largest finite, infinities, NaN
HOSTILE = np.array([0, 0x8000, 0xBC00, 1, 0x8001, 0x3FF, 0x400, 0x7BFF, 0xFBFF, 0x7C00, 0xFC00, 0x7E00], "<u2")


def reference(t: TensorType, weights: np.ndarray) -> np.ndarray:
    """Rows of blocks, u8 (rows, row bytes) -> f32 (rows, k), by the reference of the type's own file."""
    module = importlib.import_module(f"edged.kernels.types.{t.name}")
    with np.errstate(invalid="ignore", over="ignore"):
        return module.dequantise(weights.reshape(len(weights), -1, t.size)).reshape(len(weights), -1)


def matrix(t: TensorType, k: int, rng: np.random.Generator) -> np.ndarray:
    """Weights, u8 (rows, row bytes): ROWS random ones, the hostile ones, all-0x00 and all-0xFF bytes."""
    if t.block == 1:
        return _floats(t, k, rng)
    blocks = rng.integers(0, 256, (ROWS, k // t.block, t.size), np.uint8)
    rows = [_with_scales(t, blocks, rng.normal(0, 0.05, (*blocks.shape[:2], len(SCALES[t.name]))))]
    one = np.full((1, k // t.block, len(SCALES[t.name])), 0.03)
    rows += [_with_scales(t, np.full_like(blocks[:1], byte), one) for byte in (0x00, 0xFF, 0x80, 0x7F, 0x0F, 0xF0)]
    for bits in HOSTILE:
        scale = np.full_like(one, bits.view("<f2")[()])
        rows.append(_with_scales(t, blocks[:1], scale))
    if t.name != "mxfp4":  # whose all-0xFF block overflows, though its scale is finite
        rows += [np.full_like(blocks[:1], byte) for byte in (0x00, 0xFF)]
    return np.ascontiguousarray(np.concatenate(rows)).reshape(-1, t.row_bytes(k))


def _with_scales(t: TensorType, blocks: np.ndarray, scales: np.ndarray) -> np.ndarray:
    out = blocks.copy()
    if t.name == "mxfp4":  # a power of two in one byte; it has neither NaN nor infinity
        out[..., 0] = 120 + blocks[..., 0] % 8
        return out
    if t.name == "iq1_m":  # a nibble on top of each of four words
        bits = scales.astype("<f2").view("<u2")
        out[..., 49::2] = out[..., 49::2] & 15 | (bits >> np.array([0, 4, 8, 12], np.uint16) & 15) << 4
        return out
    for i, at in enumerate(SCALES[t.name]):
        out[..., at : at + 2] = scales[..., i : i + 1].astype("<f2").view(np.uint8)
    return out


def _floats(t: TensorType, k: int, rng: np.random.Generator) -> np.ndarray:
    values = rng.normal(0, 1, (ROWS + 2 * len(HOSTILE), k)).astype(np.float32)
    for i, value in enumerate(np.concatenate([HOSTILE.view("<f2").astype(np.float32), [1e-40, -1e-42]])):
        values[ROWS + i, i::7] = value
    if t.name == "bf16":
        raw = (values.view("<u4") >> 16).astype("<u2")
    else:
        raw = values.astype({"f32": "<f4", "f16": "<f2"}[t.name])
    out = raw.view(np.uint8).reshape(len(values), -1)
    out[-2], out[-1] = 0x00, 0xFF
    return np.ascontiguousarray(out)


def tokens(k: int, rng: np.random.Generator) -> np.ndarray:
    """Activations, f32 (TOKENS, k): all 1, all -1, alternating, zero, one large value, then random ones."""
    x = rng.normal(0, 1, (TOKENS, k)).astype(np.float32)
    x[0], x[1], x[2], x[3] = 1, -1, np.where(np.arange(k) % 2, 1, -1), 0
    x[4] = np.where(np.arange(k) == k // 2, 1e4, x[4])
    return x


def case(t: TensorType, k: int) -> dict[str, Any]:
    """One case, arrays only. product, norms: f64 (TOKENS, rows), what x w must be and |x| |w|."""
    rng = np.random.default_rng([t.id, k])
    weights, x = matrix(t, k, rng), tokens(k, rng)
    exact = x.astype(np.float64)
    if t.act:
        q, d = quantised(x, t.act)
        exact = (q.reshape(TOKENS, -1, ACT_BLOCK[t.act]).astype(np.float64) * d[..., None]).reshape(TOKENS, k)
    rows = reference(t, weights)
    with np.errstate(invalid="ignore"):
        product = exact @ rows.T.astype(np.float64)
        product[:, np.isnan(rows).any(1)] = np.nan
        product[:, np.isinf(rows).any(1)] = np.inf
        norms = np.linalg.norm(exact, axis=1)[:, None] * np.linalg.norm(rows.astype(np.float64), axis=1)
    panels = {
        f"panels{lanes}": reference_panels(x, t.act, lanes, bias) for lanes, bias in {(v.lanes, v.bias) for v in LEVELS}
    }
    return {
        "type": np.array(t.name), "k": np.array(k), "weights": weights, "rows": rows, "product": product,
        "norms": norms, "records": row_records(x, t.act), **panels,
    }  # fmt: skip


def cases() -> list[dict[str, Any]]:
    """All types, all widths."""
    return [case(t, k) for t in TYPES for k in WIDTHS[t.block]]
