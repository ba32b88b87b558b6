"""Which tokens occur how often among the last n: what penalties look at. Constant time per token."""

from __future__ import annotations

from collections import deque

import numpy as np


class Window:
    """ids, counts: i32 (size,), of which the first n_seen are valid; each id once."""

    def __init__(self, length: int) -> None:
        """length: tokens to look back at."""
        self.ids = np.zeros(length, np.int32)
        self.counts = np.zeros(length, np.int32)
        self.n_seen = 0
        self._length = length
        self._tokens: deque[int] = deque()
        self._places: dict[int, int] = {}  # token -> index into ids

    def add(self, token: int) -> None:
        """The next token; the one that falls out of the window is forgotten."""
        if len(self._tokens) == self._length:
            self._forget(self._tokens.popleft())
        self._tokens.append(token)
        place = self._places.get(token)
        if place is None:
            place = self._places[token] = self.n_seen
            self.ids[place], self.counts[place] = token, 0
            self.n_seen += 1
        self.counts[place] += 1

    def _forget(self, token: int) -> None:
        place = self._places[token]
        self.counts[place] -= 1
        if not self.counts[place]:
            del self._places[token]
            self.n_seen -= 1
            if place != self.n_seen:  # the last one takes its place
                last = int(self.ids[self.n_seen])
                self.ids[place], self.counts[place] = last, self.counts[self.n_seen]
                self._places[last] = place
