"""Find special tokens in text: the pieces that are matched before anything else.

`SpecialTokens(pieces).split(text) -> [text | id, ...]`, in order. The rule is that of llama.cpp: the longest piece first
over the whole text, each from left to right; what it takes is closed to shorter ones.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Mapping
from heapq import heapify, heappop, heappush


class SpecialTokens:
    """A fixed set of pieces and their ids."""

    def __init__(self, ids: Mapping[str, int]) -> None:
        self._ids = {piece: id for piece, id in ids.items() if piece}
        self._sorted = sorted(self._ids)
        # the longest other piece that a piece starts with: where to go on when the piece itself does not match
        self._shorter: dict[str, str] = {}
        chain: list[str] = []
        for piece in self._sorted:
            while chain and not piece.startswith(chain[-1]):
                chain.pop()
            self._shorter[piece] = chain[-1] if chain else ""
            chain.append(piece)
        first = "".join(sorted({piece[0] for piece in self._sorted}))
        self._first = re.compile(f"[{re.escape(first)}]") if first else None
        self._longest = max(map(len, self._sorted), default=0)

    def split(self, text: str) -> list[str | int]:
        """Text and special ids in order; no empty text."""
        parts: list[str | int] = []
        end = 0
        for start, piece in self._matches(text):
            if start > end:
                parts.append(text[end:start])
            parts.append(self._ids[piece])
            end = start + len(piece)
        if end < len(text):
            parts.append(text[end:])
        return parts

    def _matches(self, text: str) -> list[tuple[int, str]]:
        """Where special tokens stand, ascending."""
        if self._first is None:
            return []
        queue = []
        for match in self._first.finditer(text):
            piece = self._longest_at(text, match.start())
            if piece:
                queue.append((-len(piece), self._ids[piece], match.start(), piece))
        heapify(queue)
        taken = bytearray(len(text)) if queue else b""
        found = []
        while queue:
            _, _, start, piece = heappop(queue)
            if taken[start]:
                continue
            if any(taken[start : start + len(piece)]):
                piece = self._shorter[piece]
                if piece:
                    heappush(queue, (-len(piece), self._ids[piece], start, piece))
                continue
            taken[start : start + len(piece)] = b"\1" * len(piece)
            found.append((start, piece))
        return sorted(found)

    def _longest_at(self, text: str, start: int) -> str:
        """The longest piece that text[start:] starts with: its predecessor in sorted order, or a prefix of that."""
        at = bisect_right(self._sorted, text[start : start + self._longest])
        piece = self._sorted[at - 1] if at else ""
        while piece and not text.startswith(piece, start):
            piece = self._shorter[piece]
        return piece
