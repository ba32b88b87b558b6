"""Fuzzes the protocols of the serial line, each case made from its number alone.

Any bytes in any pieces: the same events as in one piece, no exception, a bounded buffer, and the request behind them
is served.

    python -m tests.fuzz.serial line|frame|modbus --count 1000000 [--first N]
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable

from edged.protocol.crc import crc16
from edged.protocol.frame import Frame, FrameDecoder, encode
from edged.protocol.line import LineFault, LineFormat, LineProtocol, LineRequest
from edged.protocol.modbus import ModbusSlave, Read


def sealed(body: bytes) -> bytes:
    return body + crc16(body).to_bytes(2, "little")


LINES = [b"ASK why*3\r", b"VER\n", b"PAGE 2\r\n", b"CODE E-0x1F*%04X\r" % crc16(b"CODE E-0x1F"), b"NEXT\0\r", b"\r"]
FRAMES = [encode(Frame(1, 2, payload)) for payload in (b"", b"why?", bytes(9), b"x" * 254)]
MODBUS = [
    sealed(b"\1\3\0\0\0\2"),
    sealed(b"\2\3\4\0\1\0\2"),
    sealed(b"\1\x10\0\0\0\2\4abcd"),
    sealed(b"\0\6\0\1\0\2"),
    sealed(b"\1\x2b\x0e\1\0"),
    sealed(b"\1\x10\0\0\0\x7b\xf6" + bytes(246)),
]


def case(number: int, seeds: list[bytes]) -> list[bytes]:
    """Some seeds, damaged by flips, lost, added and repeated bytes, in pieces."""
    rng = random.Random(number)
    data = bytearray(b"".join(rng.choices(seeds, k=rng.randrange(1, 5))))
    for _ in range(rng.choice((0, 1, 1, 2, 8))):
        at = rng.randrange(len(data))
        kind = rng.randrange(4)
        if kind == 0:
            data[at] ^= 1 << rng.randrange(8)
        elif kind == 1 and len(data) > 1:
            del data[at : at + rng.randrange(1, 9)]
            data = data or bytearray(1)
        elif kind == 2:
            data[at:at] = rng.randbytes(rng.randrange(9))
        else:
            data[at:at] = bytes([rng.choice(data)]) * rng.choice((3, 700))
    cuts = sorted(rng.randrange(len(data) + 1) for _ in range(rng.randrange(6)))
    return [bytes(data[a:b]) for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]


def check_line(number: int) -> int:
    """How many requests came."""
    rng = random.Random(number)
    form = LineFormat(charset=rng.choice(("ascii", "utf-8", "cp437")), request_sum=rng.choice(("none", "crc16")),
                      longest=300)  # fmt: skip
    pieces = case(number, LINES)
    whole, line = LineProtocol(form), LineProtocol(form)
    events = whole.feed(b"".join(pieces))
    parts = []
    for piece in pieces:
        parts += line.feed(piece)
        assert len(line._line) <= form.longest
    assert parts == events and all(isinstance(event, (LineRequest, LineFault)) for event in events)
    assert line.feed(b"\rHELP*%04X\r" % crc16(b"HELP") if form.request_sum == "crc16" else b"\rHELP\r")[-1:] == [
        LineRequest("HELP")
    ]
    return sum(isinstance(event, LineRequest) for event in events)


def check_frame(number: int) -> int:
    """How many frames came."""
    pieces = case(number, FRAMES)
    decoder = FrameDecoder()
    events = FrameDecoder().feed(b"".join(pieces))
    parts = []
    for piece in pieces:
        parts += decoder.feed(piece)
        assert len(decoder._stuffed) <= 267
    assert parts == events
    assert decoder.feed(FRAMES[0])[-1:] == [Frame(1, 2)]
    return sum(isinstance(event, Frame) for event in events)


def check_modbus(number: int) -> int:
    """How many requests came. What unfinished heads hide comes at the silence; after a gap nothing hides anything."""
    pieces = case(number, MODBUS)
    whole, slave = ModbusSlave(1), ModbusSlave(1)
    events = whole.feed(b"".join(pieces))
    parts = []
    for piece in pieces:
        parts += slave.feed(piece)
        assert len(slave._buffer) <= 512
    assert parts == events
    slave.silence()
    assert slave.feed(MODBUS[0], 1.0) == [Read(1, 3, 0, 2)]
    return len(events)


CHECKS: dict[str, Callable[[int], int]] = {"line": check_line, "frame": check_frame, "modbus": check_modbus}


def run(protocol: str, first: int, count: int) -> int:
    """How many of the cases held at least one request. Raises AssertionError with the number of a case that fails."""
    served = 0
    for number in range(first, first + count):
        try:
            served += bool(CHECKS[protocol](number))
        except Exception as error:
            raise AssertionError(f"{protocol}, case {number}: {error!r}") from error
    return served


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("protocol", choices=CHECKS)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=10_000)
    arguments = parser.parse_args()
    print(run(arguments.protocol, arguments.first, arguments.count), "cases with a request")
