"""Scores of stored vectors against a query: the product of a q8_0 matrix and a row, which is a search by brute force.

No kernel of its own: `matvec_q8_0` streams 8-bit rows as fast as memory gives them, on every level.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from edged.kernels.table import ACT_Q8_32, TYPE_BY_NAME, act_row_parts

if TYPE_CHECKING:
    from edged.kernels.load import Library

Q8_0 = TYPE_BY_NAME["q8_0"]


def scanner(library: Library) -> Callable[[np.ndarray], Callable[[np.ndarray], np.ndarray]]:
    """`scan(query)(rows) -> scores` by the kernels of a library.

    rows: u8 (n, k / 32 * 34), contiguous q8_0 blocks; query: f32 (k,), quantised like any activation; scores: f32 (n,).
    """

    def scan(query: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
        k, stride, record = query.size, Q8_0.row_bytes(query.size), row_record(query)

        def score(rows: np.ndarray) -> np.ndarray:
            assert rows.shape[1] == stride and rows.flags.c_contiguous
            scores = np.empty(len(rows), np.float32)
            library.matvec_q8_0(rows.ctypes.data, stride, 0, len(rows), k, record.ctypes.data, scores.ctypes.data, 0)
            return scores

        return score

    return scan


def row_record(x: np.ndarray) -> np.ndarray:
    """The Q8_32 row record (layout in table.py) of x: f32 (k,); u8, aligned to 64 bytes."""
    blocks = x.reshape(-1, 32)
    peak = np.abs(blocks).max(1)
    q = np.rint(blocks * np.divide(127, peak, out=np.zeros_like(peak), where=peak > 1e-35)[:, None]).astype(np.int8)
    d = peak / np.float32(127)
    parts = act_row_parts(ACT_Q8_32, x.size)
    room = np.zeros(parts[-1] + 64, np.uint8)
    record = room[-room.ctypes.data % 64 :][: parts[-1]]
    for offset, part in zip(parts, (q, d, d * q.sum(1, dtype=np.int32).astype(np.float32)), strict=False):
        raw = part.view(np.uint8).ravel()
        record[offset : offset + raw.size] = raw
    return record
