"""The rows of one step, as the native interpreter reads them: token, position, slot, and the rope tables.

A step has decode rows (generated tokens, through the matvec kernels) and prompt rows (through the tile kernels); which
of the two a token takes depends on nothing but what it is, so its numbers never depend on the company it is in.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from edged.engine.plan import Sizes
from edged.kernels.table import STATE
from edged.models.blocks import Rope

COUNTS = ("n_decode", "n_prompt", "n_logits")
assert STATE.names is not None and STATE.names[: len(COUNTS)] == COUNTS


class Rows(NamedTuple):
    """Consecutive tokens of one sequence from position `start` on. The logits of the last n_logits are wanted; the last
    n_draft are guesses."""

    tokens: Sequence[int]
    start: int
    slot: int
    n_logits: int
    n_draft: int = 0


def frequencies(rope: Rope, factors: np.ndarray | None) -> np.ndarray:
    """Radians per position of each pair: f64 (dim / 2,)."""
    pairs = np.arange(0, rope.dim, 2, dtype=np.float64)
    radians = rope.scale * rope.base ** (-pairs / rope.dim)
    return radians if factors is None else radians / factors.astype(np.float64)


class Batch:
    """`state` is the STATE record of the step last filled in.

    rope_tables: as in Plan; radians: the frequencies of each.
    """

    def __init__(self, sizes: Sizes, rope_tables: Sequence[np.ndarray], radians: Sequence[np.ndarray]) -> None:
        rows = sizes.max_decode + sizes.max_prompt
        self._sizes = sizes
        self._tokens, self._pos, self._slots, self._logit_rows = (np.zeros(rows, np.int32) for _ in range(4))
        self._ropes = list(zip(rope_tables, radians, strict=True))
        self._positions = np.arange(sizes.n_ctx, dtype=np.int32)
        self.state = np.zeros(1, STATE)
        self.state["max_decode"], self.state["max_prompt"] = sizes.max_decode, sizes.max_prompt
        self._n_rows = self.state.view(np.int64)[: len(COUNTS)]  # writing through a view of it costs a tenth
        for name, array in (("tokens", self._tokens), ("pos", self._pos), ("seq", self._slots),
                            ("logit_rows", self._logit_rows)):  # fmt: skip
            self.state[name] = array.__array_interface__["data"][0]

    def fill(self, decode: Sequence[Rows], prompt: Sequence[Rows]) -> None:
        """Set the state up for these rows. Logits come in this order: decode rows first."""
        n_decode, n_logits = self._put(decode, 0, 0)
        first = self._sizes.max_decode
        n_prompt, n_logits = self._put(prompt, first, n_logits)
        self._n_rows[:] = n_decode, n_prompt, n_logits
        for start, n in ((0, n_decode), (first, n_prompt)):
            if n:
                self._rotate(slice(start, start + n))

    def _put(self, runs: Sequence[Rows], first: int, n_logits: int) -> tuple[int, int]:
        """Write runs from row `first` on; return their rows and the logits so far."""
        row = first
        for tokens, start, slot, wanted, _ in runs:
            end = row + len(tokens)
            self._tokens[row:end] = tokens
            self._pos[row:end] = self._positions[start : start + len(tokens)]
            self._slots[row:end] = slot
            if wanted:
                self._logit_rows[n_logits : n_logits + wanted] = range(end - wanted, end)
                n_logits += wanted
            row = end
        return row - first, n_logits

    def _rotate(self, rows: slice) -> None:
        position = self._pos[rows, None]
        for table, radians in self._ropes:
            angles = position * radians
            np.cos(angles, out=table[rows, :, 0], casting="same_kind")
            np.sin(angles, out=table[rows, :, 1], casting="same_kind")
