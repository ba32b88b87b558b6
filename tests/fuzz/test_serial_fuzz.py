"""A small sample of the serial protocols' fuzzer; `make soak` runs 10^6 cases of each."""

from __future__ import annotations

import os
from concurrent.futures import ProcessPoolExecutor

import pytest

from tests.fuzz import serial


@pytest.mark.parametrize("protocol", serial.CHECKS)
def test_any_bytes_give_events_and_the_next_request_is_served(protocol: str) -> None:
    served = serial.run(protocol, 0, 2000)
    assert 0.2 * 2000 < served < 0.99 * 2000  # damage that always or never hides a request tests nothing


@pytest.mark.soak
@pytest.mark.parametrize("protocol", serial.CHECKS)
def test_any_bytes_a_million_times(protocol: str) -> None:
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        for done in [pool.submit(serial.run, protocol, first, 10_000) for first in range(2000, 1_002_000, 10_000)]:
            done.result()
