"""Watches the board and the process, and warns once of what slows answers down.

    care = Care(); care.look(engine.stats()) at every tick; care.figures(); care.warnings()
"""

from __future__ import annotations

import logging
import os
import resource

from edged.service.board import Board, State

FAULTS = 64
"""Pages read from the disk for one token, from which on weights do not stay in memory. Each read brings several."""

TOKENS = 16
"""Tokens that such a judgement takes."""

log = logging.getLogger(__name__)


class Care:
    """One daemon's. Costs a few file reads a look."""

    def __init__(self, board: Board | None = None) -> None:
        self._board = board or Board()
        self._state = self._board.state()
        self._words: tuple[str, ...] = ()
        self._faults, self._tokens = _major_faults(), 0.0
        self._per_token = 0.0
        self._rereading = False

    def look(self, stats: dict[str, float]) -> None:
        """`stats` of the engine now."""
        self._state = self._board.state()
        words = self._state.words()
        if words != self._words:
            self._words = words
            level = logging.WARNING if words else logging.INFO
            log.log(level, "the board: %s%s", ", ".join(words) or "no longer throttled", _heat(self._state))
        tokens = stats.get("tokens_total", 0.0) - self._tokens
        if tokens < TOKENS:
            return
        faults = _major_faults()
        self._per_token = (faults - self._faults) / tokens
        self._faults, self._tokens = faults, self._tokens + tokens
        rereading = self._per_token >= FAULTS
        if rereading and not self._rereading:
            log.warning("%.0f pages are read from the disk for every token: the weights do not stay in memory; "
                        "free some, or take a smaller model", self._per_token)  # fmt: skip
        self._rereading = rereading

    def warnings(self) -> tuple[str, ...]:
        """What slows answers down now, or has since the board was started."""
        disk = ("the weights are read from the disk again and again",) if self._rereading else ()
        return (*self._words, *disk)

    def figures(self) -> dict[str, float]:
        """For /metrics; what the board does not tell is left out."""
        state = self._state
        figures = {
            "resident_bytes": float(_resident()), "major_faults_total": float(_major_faults()),
            "major_faults_per_token": self._per_token,
        }  # fmt: skip
        if state.temperature is not None:
            figures["temperature_celsius"] = state.temperature
        if state.flags is not None:
            figures["throttle_flags"] = float(state.flags)
        if state.clock is not None:
            figures["clock_ratio"] = state.clock
        return figures


def _heat(state: State) -> str:
    return "" if state.temperature is None else f" ({state.temperature:.0f} degrees Celsius)"


def _major_faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_majflt


def _resident() -> int:
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
