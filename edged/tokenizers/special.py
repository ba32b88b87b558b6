"""Find special tokens in text: the pieces that are matched before anything else.

`SpecialTokens(pieces).split(text) -> [text | id, ...]`, in order. The rule is that of llama.cpp: the longest piece
first over the whole text, each from left to right; what it takes is closed to shorter ones.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Mapping
from heapq import heappop, heappush


class SpecialTokens:
    """A fixed set of pieces and their ids."""

    def __init__(self, ids: Mapping[str, int]) -> None:
        self._ids = {piece: id for piece, id in ids.items() if piece}
        self._sorted = sorted(self._ids)
        self._longest = max(map(len, self._sorted), default=0)
        self._starts = _starts(self._sorted)

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
        queue: list[tuple[int, int, int, str]] = []
        for match in self._starts.finditer(text) if self._starts else ():
            start = match.start()
            self._queue(queue, start, text[start : start + self._longest])
        taken = bytearray(len(text)) if queue else bytearray()
        found = []
        while queue:
            _, _, start, piece = heappop(queue)
            if taken[start]:
                continue
            end = start + len(piece)
            if any(taken[start:end]):
                self._queue(queue, start, piece[:-1])
                continue
            taken[start:end] = b"\1" * len(piece)
            found.append((start, piece))
        return sorted(found)

    def _queue(self, queue: list[tuple[int, int, int, str]], start: int, text: str) -> None:
        """Queue the longest piece that `text`, which stands at `start`, begins with; equal lengths by id."""
        piece = self._longest_prefix(text)
        if piece:
            heappush(queue, (-len(piece), self._ids[piece], start, piece))

    def _longest_prefix(self, text: str) -> str:
        """The longest piece that `text` begins with.

        It sorts before `text` and begins like all pieces in between: so it begins the predecessor of `text` as well,
        or is the predecessor.
        """
        while text:
            at = bisect_right(self._sorted, text)
            piece = self._sorted[at - 1] if at else ""
            if text.startswith(piece):
                return piece
            text = text[: next(i for i, pair in enumerate(zip(piece, text, strict=False)) if pair[0] != pair[1])]
        return ""


def _starts(pieces: list[str]) -> re.Pattern[str] | None:
    """Where a piece may start: its first character, followed by its second if it has one."""
    seconds: dict[str, set[str]] = {}
    for beginning in {piece[:2] for piece in pieces}:
        seconds.setdefault(beginning[0], set()).add(beginning[1:])
    options = []
    for first, following in seconds.items():
        ahead = "" if "" in following else f"(?=[{re.escape(''.join(sorted(following)))}])"
        options.append(re.escape(first) + ahead)
    return re.compile("|".join(options)) if options else None
