"""Rows as matmul reads them, in numpy: what the op `quantise` makes of decode rows (layouts in table.py).

The reference of that op, and what asks a kernel for a product outside of a program.
"""

from __future__ import annotations

import numpy as np

from edged.kernels.table import ACT_BLOCK, ACT_F32, ACT_Q8_32, ActKind, act_row_parts

TINY = 1e-35  # blocks with a smaller maximum become zero: 127 / max would overflow


def quantised(x: np.ndarray, kind: ActKind) -> tuple[np.ndarray, np.ndarray]:
    """q: i8 (rows, k), d: f32 (rows, k / block) of rows x: f32 (rows, k)."""
    blocks = x.reshape(len(x), x.shape[1] // ACT_BLOCK[kind], ACT_BLOCK[kind])
    peak = np.abs(blocks).max(-1)
    with np.errstate(divide="ignore", over="ignore"):
        inverse = np.where(peak > TINY, np.float32(127) / peak, np.float32(0))
    q = np.rint(blocks * inverse[..., None]).astype(np.int8)
    return q.reshape(x.shape), peak / np.float32(127)


def row_records(x: np.ndarray, kind: ActKind) -> np.ndarray:
    """Row records, u8 (rows, record bytes), of x: f32 (rows, k)."""
    n, k = x.shape
    parts = act_row_parts(kind, k)
    out = np.zeros((n, parts[-1]), np.uint8)
    if kind == ACT_F32:
        columns = [x]
    else:
        q, d = quantised(x, kind)
        sums = q.reshape(n, k // 32, 32).sum(-1, dtype=np.int32)
        if kind == ACT_Q8_32:
            columns = [q, d, d * sums.astype(np.float32)]
        else:
            columns = [q, d, sums, q.reshape(n, k // 16, 16).sum(-1, dtype=np.int16)]
    for offset, column in zip(parts, columns, strict=False):
        raw = np.ascontiguousarray(column).view(np.uint8)
        out[:, offset : offset + raw.shape[1]] = raw
    return out
