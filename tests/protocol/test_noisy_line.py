"""Whole conversations over a line that damages them.

Figures of the long loops, damage as in `wire`, answers of 0 to 150 bytes; wrong: accepted though never sent so:

    mode, check      error rate   messages   answered once   sent again   wrong
    frame, CRC-32          1e-3     10 000          10 000       50 222       0
    frame, CRC-32          1e-4     10 000          10 000        3 554       0
    frame, CRC-16          1e-3    100 000         100 000      460 452       0
    frame, CRC-16          1e-4    100 000         100 000       32 954       0
    line, CRC-16           1e-3     10 000               -       46 166       0
    line, CRC-16           1e-4     10 000               -        1 796       0

Line mode has no sequence number in its requests: a question whose reply is lost is asked, and answered, again.
"""

from __future__ import annotations

import random
import re

import pytest

from edged.client.serial import SerialClient
from edged.errors import LinkFailed
from edged.protocol.crc import crc16
from edged.protocol.line import LineFormat, LineProtocol, LineRequest
from tests.protocol.wire import NoisyPort, Wire

WORDS = ["the", "pump", "stops", "when", "a", "door", "opens", "and", "pressure", "falls", "below", "its", "limit"]


def answer(request: bytes) -> bytes:
    """A text of 0 to 150 bytes that only this request gets."""
    rng = random.Random(request)
    return " ".join(rng.choices(WORDS, k=30)).encode()[: rng.randrange(150)]


def converse(check: str, rate: float, count: int) -> dict[str, float]:
    """Ask `count` questions over frames -> what became of them."""
    rng = random.Random(count)
    port = NoisyPort(Wire(rng, rate), answer, check)
    client = SerialClient(port, check=check, clock=lambda: port.now)
    right = lost = 0
    for number in range(count):
        request = f"ASK {number} {' '.join(rng.choices(WORDS, k=16))}"
        port.asked.clear()
        try:
            text = client.ask(request).text
        except LinkFailed:
            lost += 1
            continue
        right += text.encode() == answer(request.encode()) and port.asked == [request.encode()]
    return {"right": right, "lost": lost, "frames": port.frames, "wrong frames": port.wrong,
            "repeated": client.repeated, "seconds": port.now / count}  # fmt: skip


@pytest.mark.parametrize("rate", [1e-3, 1e-4])
def test_frames_with_crc32_lose_nothing_and_repeat_nothing(rate: float) -> None:
    found = converse("crc32", rate, 200)
    assert found["right"] == 200 and found["wrong frames"] == 0
    assert found["repeated"] > (500 if rate == 1e-3 else 50)


@pytest.mark.soak
@pytest.mark.parametrize("rate", [1e-3, 1e-4])
def test_ten_thousand_messages_in_frames_with_crc32(rate: float) -> None:
    found = converse("crc32", rate, 10_000)
    assert found["right"] == 10_000 and found["wrong frames"] == 0


@pytest.mark.soak
@pytest.mark.parametrize("rate", [1e-3, 1e-4])
def test_a_hundred_thousand_messages_in_frames_with_crc16(rate: float) -> None:
    found = converse("crc16", rate, 100_000)
    assert 100_000 - found["right"] <= 2


def type_lines(rate: float, count: int) -> dict[str, float]:
    """Ask `count` questions in line mode with CRC-16 both ways, each until a reply comes -> what became of them."""
    rng = random.Random(count)
    wire = Wire(rng, rate)
    line = LineProtocol(LineFormat(request_sum="crc16", width=0))
    tries = wrong_requests = wrong_replies = 0
    for number in range(count):
        request = f"ASK {number} {' '.join(rng.choices(WORDS, k=8))}"
        data = request.encode()
        reply = None
        while reply is None:
            tries += 1
            arrived = b""
            for event in line.feed(wire.carry(b"\r%s*%04X\r" % (data, crc16(data)))):
                if isinstance(event, LineRequest):
                    wrong_requests += f"{event.verb} {event.argument}" != request
                    arrived += wire.carry(line.ok(number % 10_000, 1, 1, answer(data)))
            for body, told in re.findall(rb"(OK [^\r\n]*)\*([0-9A-F]{4})\r", arrived):
                if crc16(body) == int(told, 16):
                    reply = body
        wrong_replies += reply != b"OK %d 1/1 %s" % (number % 10_000, answer(data))
    return {"tries": tries, "wrong requests": wrong_requests, "wrong replies": wrong_replies}


def test_line_mode_with_crc16() -> None:
    found = type_lines(1e-3, 200)
    assert found["tries"] > 400 and found["wrong requests"] == found["wrong replies"] == 0


@pytest.mark.soak
@pytest.mark.parametrize("rate", [1e-3, 1e-4])
def test_ten_thousand_messages_in_line_mode(rate: float) -> None:
    found = type_lines(rate, 10_000)
    assert found["wrong requests"] + found["wrong replies"] <= 2
