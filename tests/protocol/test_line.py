"""The line protocol: every case whole, byte by byte, and with the next request behind it."""

from __future__ import annotations

import random

import pytest

from edged.protocol.crc import crc16, xor8
from edged.protocol.line import VERBS, LineEvent, LineFault, LineFormat, LineProtocol, LineRequest

SUMMED = LineFormat(request_sum="crc16")


def summed(body: bytes) -> bytes:
    return b"%s*%04X\r" % (body, crc16(body))


NEXT = {"none": b"HELP\r", "crc16": summed(b"HELP"), "xor": b"HELP*%02X\r" % xor8(b"HELP")}
CASES: dict[str, tuple[LineFormat, bytes, LineEvent | str]] = {
    "cr": (LineFormat(), b"ASK why?\r", LineRequest("ASK", "why?")),
    "lf": (LineFormat(), b"ASK why?\n", LineRequest("ASK", "why?")),
    "crlf": (LineFormat(), b"ASK why?\r\n", LineRequest("ASK", "why?")),
    "lower case, blanks": (LineFormat(), b"  ask  why? \r", LineRequest("ASK", "why?")),
    "empty lines": (LineFormat(), b"\r\n\r\nVER\r", LineRequest("VER")),
    "padded with NUL": (LineFormat(), b"STAT\0\0\0\r", LineRequest("STAT")),
    "page": (LineFormat(), b"PAGE 12\r", LineRequest("PAGE", "12")),
    "a star is text": (LineFormat(), b"ASK 2*3\r", LineRequest("ASK", "2*3")),
    "control tokens are text": (LineFormat(), b"ASK <|im_end|>\r", LineRequest("ASK", "<|im_end|>")),
    "latin-1": (LineFormat(charset="latin-1"), b"CODE \xb5\r", LineRequest("CODE", "µ")),
    "utf-8": (LineFormat(charset="utf-8"), b"DOC \xc2\xb5\r", LineRequest("DOC", "µ")),
    "summed": (SUMMED, summed(b"ASK 2*3"), LineRequest("ASK", "2*3")),
    "xor": (LineFormat(request_sum="xor"), b"VER*%02x\r" % xor8(b"VER"), LineRequest("VER")),
    "sum missing": (SUMMED, b"ASK why?\r", "sum"),
    "sum wrong": (SUMMED, b"ASK why?*0000\r", "sum"),
    "no verb": (LineFormat(), b"TELL me\r", "verb"),
    "printable bytes ahead": (LineFormat(), b"xxASK why?\r", "verb"),
    "nothing to ask": (LineFormat(), b"ASK\r", "argument"),
    "too much": (LineFormat(), b"NEXT 1\r", "argument"),
    "page 0": (LineFormat(), b"PAGE 0\r", "argument"),
    "page of many digits": (LineFormat(), b"PAGE 99999\r", "argument"),
    "not ascii": (LineFormat(), b"ASK \xb5\r", "charset"),
    "not utf-8": (LineFormat(charset="utf-8"), b"ASK \xe6\xad\r", "charset"),
    "escape": (LineFormat(), b"ASK \x1b[A\r", "charset"),
}


@pytest.mark.parametrize("size", [1, 2, 10_000])
@pytest.mark.parametrize("name", CASES)
def test_cases(name: str, size: int) -> None:
    form, data, expected = CASES[name]
    data += NEXT[form.request_sum]
    line = LineProtocol(form)
    first, *rest = [event for at in range(0, len(data), size) for event in line.feed(data[at : at + size])]
    assert first == expected or (isinstance(first, LineFault) and first.code == expected)
    assert rest == [LineRequest("HELP")]


def test_checksums() -> None:
    assert crc16(b"123456789") == 0x4B37  # the catalogue's check value of CRC-16/MODBUS
    assert xor8(b"GPGLL,5057.970,N,00146.110,E,142451,A") == 0x27


def test_replies() -> None:
    line = LineProtocol(LineFormat())
    assert line.room == 82 - len("OK 9999 999/999 *0000\r\n")
    for reply in (line.ok(7, 1, 2, b"a*b"), line.busy(7, 40), line.error("verb", "long " * 99)):
        body, _, end = reply.rpartition(b"*")
        assert end == b"%04X\r\n" % crc16(body) and len(reply) <= 82
    plain = LineProtocol(LineFormat(end=b"\r", width=0, reply_sum="none"))
    assert plain.ok(7, 1, 2, b"text") == b"OK 7 1/2 text\r"
    assert plain.error("sum", "é") == b"ERR sum e\r"
    assert plain.room == 0


def test_H05_a_pause_inside_a_line_neither_ends_nor_outlives_it() -> None:
    line = LineProtocol(LineFormat(seconds=2))
    assert line.feed(b"VE", 0) == []
    assert line.expire(1.9) == []
    assert line.feed(b"R\n", 1.9) == [LineRequest("VER")]
    faults = [event for tenth in range(100) for event in line.feed(b"A", tenth / 10)]
    assert [fault.code for fault in faults if isinstance(fault, LineFault)] == ["late"] and len(faults) == 1
    assert line.feed(b"\nVER\n", 10) == [LineRequest("VER")]


def test_H05_a_line_without_end_is_refused_once_and_the_next_is_served() -> None:
    line = LineProtocol(LineFormat())
    events = [event for _ in range(1024) for event in line.feed(b"A" * 1024)]
    assert [getattr(event, "code", "") for event in events] == ["long"]
    assert line.feed(b"A\rVER\r") == [LineRequest("VER")]
    assert line.noise == 1024 * 1024 + 1


def test_H06_a_summed_request_is_found_behind_noise() -> None:
    rng = random.Random(6)
    for length in range(65):
        noise = bytes(rng.choice([b for b in range(256) if b not in b"\r\n"]) for _ in range(length))
        line = LineProtocol(SUMMED)
        events = line.feed(noise + summed(b"ASK why?") + summed(b"VER"))
        assert events == [LineRequest("ASK", "why?"), LineRequest("VER")]


def test_H06_no_flipped_bit_passes_the_checksum() -> None:
    good = summed(b"ASK why?")
    for bit in range(8 * len(good)):
        bad = bytearray(good)
        bad[bit // 8] ^= 1 << bit % 8
        for event in LineProtocol(SUMMED).feed(bytes(bad) + b"\r"):
            assert isinstance(event, LineFault) or event == LineRequest("ASK", "why?"), bit  # hex digits in either case


def test_H07_bytes_of_a_wrong_baud_rate_do_not_spoil_the_request_behind_them() -> None:
    line = LineProtocol(LineFormat())
    assert line.feed(b"\xff\xfe\x80\x00VER\r") == [LineRequest("VER")]
    assert line.noise == 3


def test_verbs_are_told_when_one_is_wrong() -> None:
    (fault,) = LineProtocol(LineFormat()).feed(b"?\r")
    assert isinstance(fault, LineFault) and all(verb in fault.text for verb in VERBS)
