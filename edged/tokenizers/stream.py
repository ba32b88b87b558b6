"""Token ids in, text deltas out: whole characters only, and nothing of a stop string.

`push(id) -> str` gives what is certain so far; `finish() -> str` the rest. Bytes that are no UTF-8 become U+FFFD. The
text up to a stop string does not depend on how tokens cut it: strings are matched character by character.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterable


class TextStream:
    """The text of one answer.

    `stopped` becomes true when a stop string is complete; the text before it has then been returned, and nothing more
    comes. Of several stop strings, the one complete first counts.
    """

    def __init__(self, token_bytes: Callable[[int], bytes], stops: Iterable[str] = ()) -> None:
        """token_bytes: what a token adds to the text (b"" for one that is not shown)."""
        self.stopped = False
        self._token_bytes = token_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._stops = [_Stop(stop) for stop in stops if stop]
        self._held = ""

    def push(self, id: int) -> str:
        """Text that became certain with this token."""
        return self._advance(self._decoder.decode(self._token_bytes(id)))

    def finish(self) -> str:
        """The text still held back: the answer ended otherwise than by a stop string."""
        text = self._advance(self._decoder.decode(b"", True))
        held, self._held = self._held, ""
        return text + held

    def _advance(self, text: str) -> str:
        if self.stopped:
            return ""
        if not self._stops:
            return text
        pending = self._held + text
        for end, character in enumerate(text, len(self._held) + 1):
            matched = max(stop.advance(character) for stop in self._stops)
            if matched:
                self.stopped = True
                self._held = ""
                return pending[: end - matched]
        certain = len(pending) - max(stop.state for stop in self._stops)
        self._held = pending[certain:]
        return pending[:certain]


class _Stop:
    """Knuth-Morris-Pratt matcher of one stop string; `state` is how many of its characters the text ends with."""

    def __init__(self, pattern: str) -> None:
        self.state = 0
        self._pattern = pattern
        self._fallback = [0]  # of each state - 1: the longest proper prefix that is also a suffix
        for character in pattern[1:]:
            self._fallback.append(self._next(self._fallback[-1], character))

    def advance(self, character: str) -> int:
        """Length of the pattern if this character completes it, else 0."""
        self.state = self._next(self.state, character)
        return self.state if self.state == len(self._pattern) else 0

    def _next(self, state: int, character: str) -> int:
        while state and self._pattern[state] != character:
            state = self._fallback[state - 1]
        return state + (self._pattern[state] == character)
