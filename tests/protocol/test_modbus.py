"""Modbus RTU: every request whole, byte by byte, behind noise and behind other units' traffic."""

from __future__ import annotations

import random
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edged.protocol import modbus
from edged.protocol.crc import crc16
from edged.protocol.modbus import (
    DEVICE_BUSY,
    ILLEGAL_FUNCTION,
    ILLEGAL_VALUE,
    ModbusSlave,
    Read,
    Refused,
    Request,
    Write,
)


def sealed(*body: int) -> bytes:
    return bytes(body) + crc16(bytes(body)).to_bytes(2, "little")


def write(unit: int, address: int, *values: int) -> bytes:
    head = struct.pack(">BBHHB", unit, 16, address, len(values), 2 * len(values))
    return sealed(*head, *struct.pack(f">{len(values)}H", *values))


ASK = sealed(1, 3, 0, 16, 0, 2)
ASKED = Read(1, 3, 16, 2)

CASES: dict[str, tuple[bytes, list[Request]]] = {
    "holding registers": (ASK, [ASKED]),
    "input registers": (sealed(1, 4, 0, 0, 0, 125), [Read(1, 4, 0, 125)]),
    "one value": (sealed(1, 6, 0, 5, 0x12, 0x34), [Write(1, 6, 5, (0x1234,))]),
    "values": (write(1, 100, 1, 0xFFFF), [Write(1, 16, 100, (1, 0xFFFF))]),
    "most values": (write(1, 0, *range(123)), [Write(1, 16, 0, tuple(range(123)))]),
    "to all": (write(0, 100, 7), [Write(0, 16, 100, (7,))]),
    "no registers": (sealed(1, 3, 0, 0, 0, 0), [Refused(1, 3, ILLEGAL_VALUE)]),
    "too many registers": (sealed(1, 3, 0, 0, 0, 126), [Refused(1, 3, ILLEGAL_VALUE)]),
    "past the last register": (sealed(1, 3, 0xFF, 0xFF, 0, 2), [Refused(1, 3, ILLEGAL_VALUE)]),
    "count and bytes differ": (sealed(1, 16, 0, 0, 0, 2, 2, 0, 1), [Refused(1, 16, ILLEGAL_VALUE)]),
    "coils": (sealed(1, 1, 0, 0, 0, 1), [Refused(1, 1, ILLEGAL_FUNCTION)]),
    "another's request": (sealed(2, 3, 0, 16, 0, 2), []),
    "another's reply": (sealed(2, 3, 4, 0, 1, 0, 2), []),
    "another's reply that holds our request": (sealed(2, 3, len(ASK), *ASK), []),
    "another's write that holds our request": (sealed(2, 16, 0, 0, 0, 4, len(ASK), *ASK), []),
    "another's refusal": (sealed(2, 0x83, 2), []),
    "a write that holds a request": (
        sealed(1, 16, 0, 0, 0, 4, len(ASK), *ASK), [Write(1, 16, 0, struct.unpack(">4H", ASK))]
    ),
}  # fmt: skip


@pytest.mark.parametrize("size", [1, 3, 10_000])
@pytest.mark.parametrize("name", CASES)
def test_cases(name: str, size: int) -> None:
    """The same requests however the bytes come, and the next one behind them; no silence is needed."""
    data, expected = CASES[name]
    data += ASK
    slave = ModbusSlave(1)
    requests = [request for at in range(0, len(data), size) for request in slave.feed(data[at : at + size])]
    assert requests == [*expected, ASKED]
    assert slave.noise == 0
    assert slave.silence() == []


def test_an_unknown_function_is_refused_at_the_silence() -> None:
    slave = ModbusSlave(1)
    assert slave.feed(sealed(1, 0x2B, 0x0E, 1, 0)) == []
    assert slave.silence() == [Refused(1, 0x2B, ILLEGAL_FUNCTION)]
    assert slave.feed(ASK) == [ASKED]


def test_replies() -> None:
    slave = ModbusSlave(1)
    assert slave.values(ASKED, [7, 0x1234]) == sealed(1, 3, 4, 0, 7, 0x12, 0x34)
    assert slave.written(Write(1, 6, 5, (9,))) == sealed(1, 6, 0, 5, 0, 9)
    assert slave.written(Write(1, 16, 5, (9, 8))) == sealed(1, 16, 0, 5, 0, 2)
    assert slave.exception(ASKED, DEVICE_BUSY) == sealed(1, 0x83, 6)
    assert slave.written(Write(0, 16, 5, (9, 8))) == slave.exception(Refused(0, 3, 3), 3) == b""
    for unit in (0, 248):
        with pytest.raises(ValueError, match="247"):
            ModbusSlave(unit)


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize("kept", range(1, 21))
def test_H06_a_torn_write_does_not_hide_the_request_behind_it(kept: int, at_once: bool) -> None:
    torn = write(1, 0, *range(6))[:kept]
    slave = ModbusSlave(1)
    if at_once:
        found = slave.feed(torn + ASK)
    else:
        found = slave.feed(torn) + slave.silence() + slave.feed(ASK)
    assert found + slave.silence() == [ASKED]


def test_H06_a_request_behind_noise_is_answered_once() -> None:
    rng = random.Random(6)
    for length in range(65):
        slave = ModbusSlave(1)
        found = slave.feed(rng.randbytes(length) + ASK) + slave.silence()
        found += slave.feed(rng.randbytes(length)) + slave.silence()
        assert found == [ASKED], length


def test_H06_no_flipped_bit_is_served() -> None:
    good = write(1, 100, 1, 2)
    for bit in range(8 * len(good)):
        bad = bytearray(good)
        bad[bit // 8] ^= 1 << bit % 8
        slave = ModbusSlave(1)
        assert slave.feed(bytes(bad)) + slave.silence() == [], bit


def test_H06_what_a_byte_of_noise_costs_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each byte begins at most two frames in a pass, and there is one pass when bytes come and one at the silence."""
    calls = []
    monkeypatch.setattr(modbus, "crc16", lambda data: calls.append(len(data)) or crc16(data))
    for noise in (b"\1\3\xfa" * 80, b"\1" * 240, b"\1\x10\0\0\0\x7b\xf6" * 34, (ASK + b"\1\3\xfa") * 21):
        slave = ModbusSlave(1)
        calls.clear()
        slave.feed(noise)
        slave.silence()
        assert 0 < len(calls) <= 2 * 2 * len(noise) and max(calls) <= 256


@given(st.lists(st.binary(max_size=400), max_size=6))
def test_any_bytes_leave_a_bounded_buffer_and_a_slave_that_answers(pieces: list[bytes]) -> None:
    slave = ModbusSlave(1)
    for piece in pieces:
        slave.feed(piece)
        assert len(slave._buffer) <= 512
    slave.silence()
    assert slave.feed(ASK, 1.0) == [ASKED]


def test_a_head_is_continued_within_the_gap_and_forgotten_after_it() -> None:
    slave = ModbusSlave(1)
    assert slave.feed(ASK[:5], 9.0) == slave.silence() == []
    assert slave.feed(ASK[5:], 9.2) == [ASKED]
    assert slave.feed(ASK[:5], 9.2) == []
    assert slave.feed(ASK, 9.5) == [ASKED]
    assert slave.noise == 5
