"""What the board says of itself: heat, voltage, clock. For /health, /metrics and `edged doctor`.

    state = Board().state()     temperature in degrees Celsius, firmware flags, clock; None where nothing tells
    state.words()               ("under-voltage", ...), empty when all is well

Source: Linux, driver-api/thermal/sysfs-api.rst, admin-guide/pm/cpufreq.rst; Raspberry Pi, `vcgencmd get_throttled`,
whose word the firmware driver shows in sysfs.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

THROTTLED = "sys/devices/platform/soc/soc:firmware/get_throttled"
BITS = (
    (0, "under-voltage"), (1, "clock capped"), (2, "throttled"), (3, "soft temperature limit"),
    (16, "under-voltage has occurred"), (17, "the clock has been capped"), (18, "has been throttled"),
    (19, "the soft temperature limit has been reached"),
)  # fmt: skip
NOW = 0xF  # the bits that hold at this moment; the others hold since the start


class State(NamedTuple):
    """At one time. `flags`: the firmware's word; `clock`: share of the highest, 0 .. 1; None where nothing tells."""

    temperature: float | None
    flags: int | None
    clock: float | None

    def words(self) -> tuple[str, ...]:
        """What is wrong, or has been since the start; empty when all is well or unknown."""
        return tuple(word for bit, word in BITS if (self.flags or 0) >> bit & 1)


class Board:
    """The sensors below `root` (for tests; "/" is this machine's)."""

    def __init__(self, root: str | Path = "/") -> None:
        root = Path(root)
        # found once: sensors do not come and go, and reading them has to cost little
        self._zones = sorted(root.glob("sys/class/thermal/thermal_zone*/temp"))
        self._flags = root / THROTTLED
        self._clocks = [
            (path, path.with_name("cpuinfo_max_freq"))
            for path in sorted(root.glob("sys/devices/system/cpu/cpufreq/policy*/scaling_cur_freq"))
        ]

    def state(self) -> State:
        """As it is now. A sensor that cannot be read is None."""
        heat = [value / 1000 for zone in self._zones if (value := _number(zone)) is not None]
        clocks = [now / most for at, top in self._clocks
                  if (now := _number(at)) is not None and (most := _number(top))]  # fmt: skip
        return State(max(heat, default=None), _number(self._flags, 16), max(clocks, default=None))


def _number(path: Path, base: int = 10) -> int | None:
    try:
        return int(path.read_text("ascii").strip(), base)
    except (OSError, ValueError):
        return None
