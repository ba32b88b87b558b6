"""Scores of stored vectors against a query: the product of a q8_0 matrix and a row, which is a search by brute force.

No kernel of its own: `matvec_q8_0` streams 8-bit rows as fast as memory gives them, on every level.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from edged.kernels.activations import row_records
from edged.kernels.table import TYPE_BY_NAME

if TYPE_CHECKING:
    from edged.kernels.load import Library

Q8_0 = TYPE_BY_NAME["q8_0"]


def scanner(library: Library) -> Callable[[np.ndarray], Callable[[np.ndarray], np.ndarray]]:
    """`scan(query)(rows) -> scores` by the kernels of a library.

    rows: u8 (n, k / 32 * 34), contiguous q8_0 blocks; query: f32 (k,), quantised like any activation; scores: f32 (n,).
    """

    def scan(query: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
        k, stride, record = query.size, Q8_0.row_bytes(query.size), row_records(query[None], Q8_0.act)

        def score(rows: np.ndarray) -> np.ndarray:
            assert rows.shape[1] == stride and rows.flags.c_contiguous
            scores = np.empty(len(rows), np.float32)
            library.matvec_q8_0(rows.ctypes.data, stride, 0, len(rows), k, record.ctypes.data, scores.ctypes.data, 0)
            return scores

        return score

    return scan
