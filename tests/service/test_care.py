"""What the daemon warns of (I14), and how it tells."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from edged.service import care as care_module
from edged.service.board import THROTTLED, Board
from edged.service.care import FAULTS, TOKENS, Care
from tests.engine.test_threads import put
from tests.service.running import Running
from tests.stub_engine import StubEngine


def test_i14_one_warning_for_each_change(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    put(tmp_path, {THROTTLED: "0x0\n", "sys/class/thermal/thermal_zone0/temp": "82000\n"})
    care = Care(Board(tmp_path))
    for word, times in (("0x0", 2), ("0x50005", 3), ("0x50000", 2), ("0x0", 1)):
        put(tmp_path, {THROTTLED: word + "\n"})
        for _ in range(times):
            care.look({})
    assert [(record.levelno, record.message) for record in caplog.records] == [
        (logging.WARNING, "the board: under-voltage, throttled, under-voltage has occurred, has been throttled "
                          "(82 degrees Celsius)"),
        (logging.WARNING, "the board: under-voltage has occurred, has been throttled (82 degrees Celsius)"),
        (logging.INFO, "the board: no longer throttled (82 degrees Celsius)"),
    ]  # fmt: skip


def test_weights_that_do_not_stay_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Told once, and again only after it was well in between; too few tokens decide nothing."""
    faults = 1000
    monkeypatch.setattr(care_module, "_major_faults", lambda: faults)
    care = Care(Board(tmp_path))
    tokens = 0.0
    told = []
    looks = ((0, TOKENS), (FAULTS, TOKENS), (FAULTS, 3 * TOKENS), (FAULTS, 1), (0, TOKENS), (FAULTS, TOKENS))
    for per_token, n in looks:
        faults += per_token * n
        tokens += n
        care.look({"tokens_total": tokens})
        told.append((len(caplog.records), bool(care.warnings())))
    assert told == [(0, False), (1, True), (1, True), (1, True), (1, False), (2, True)]
    assert f"{FAULTS} pages are read from the disk for every token" in caplog.records[0].message


def test_figures_of_this_machine_are_among_the_metrics() -> None:
    with Running(StubEngine([72])) as running:
        text = running.get("/metrics").text
    figures = dict(line.split(" ") for line in text.splitlines() if not line.startswith("#"))
    assert 1e6 < float(figures["edged_resident_bytes"]) < 1e12
    assert float(figures["edged_major_faults_total"]) >= 0
    assert "# TYPE edged_major_faults_total counter" in text


def test_i14_warnings_are_part_of_health(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which is 200 all the same: a hot board answers, only later."""
    put(tmp_path, {THROTTLED: "0x4\n"})
    monkeypatch.setattr(care_module, "Board", lambda: Board(tmp_path))
    with Running(StubEngine([72])) as running:
        running.daemon._care.look({})
        response = running.get("/health")
    assert response.status_code == 200
    assert response.json() == {"status": "ok", "reasons": [], "warnings": ["throttled"]}
