"""Heat, voltage and clock from fake /sys trees (I14)."""

from __future__ import annotations

from pathlib import Path

import pytest

from edged.service.board import THROTTLED, Board
from tests.engine.test_threads import put


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("0x0", ()),
        ("4", ("throttled",)),
        ("50005", ("under-voltage", "throttled", "under-voltage has occurred", "has been throttled")),
        ("0x80008", ("soft temperature limit", "the soft temperature limit has been reached")),
    ],
)
def test_i14_the_firmware_word(tmp_path: Path, flags: str, words: tuple[str, ...]) -> None:
    put(tmp_path, {THROTTLED: flags + "\n"})
    state = Board(tmp_path).state()
    assert state.words() == words
    assert state.flags == int(flags, 16)


@pytest.mark.parametrize("text", [None, "", "error=1\n"])
def test_i14_no_word(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        put(tmp_path, {THROTTLED: text})
    assert Board(tmp_path).state() == (None, None, None)
    assert Board(tmp_path).state().words() == ()


def test_i14_the_hottest_zone_and_the_fastest_core(tmp_path: Path) -> None:
    """A zone that is switched off, as on a Jetson, fails when it is read."""
    put(tmp_path, {
        "sys/class/thermal/thermal_zone0/temp": "48312\n", "sys/class/thermal/thermal_zone1/temp": "61500\n",
        "sys/class/thermal/thermal_zone2/temp": "",
        "sys/devices/system/cpu/cpufreq/policy0/scaling_cur_freq": "600000\n",
        "sys/devices/system/cpu/cpufreq/policy0/cpuinfo_max_freq": "1500000\n",
        "sys/devices/system/cpu/cpufreq/policy4/scaling_cur_freq": "900000\n",
        "sys/devices/system/cpu/cpufreq/policy4/cpuinfo_max_freq": "1800000\n",
    })  # fmt: skip
    assert Board(tmp_path).state() == (61.5, None, 0.5)


def test_i14_this_machine_has_a_state() -> None:
    state = Board().state()
    assert state.temperature is None or -40 < state.temperature < 150
