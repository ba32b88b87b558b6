"""Frames: every case whole, byte by byte, and with the next frame behind it."""

from __future__ import annotations

import random
import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edged.protocol.frame import BadFrame, Frame, FrameDecoder, FrameEvent, _stuff, _unstuff, encode

NEXT = Frame(2, 0xFFFF, b"next")


def raw(body: bytes) -> bytes:
    return b"\0" + _stuff(body + struct.pack("<I", zlib.crc32(body))) + b"\0"


CASES: dict[str, tuple[bytes, list[FrameEvent]]] = {
    "empty": (encode(Frame(1, 0)), [Frame(1, 0)]),
    "zeros": (encode(Frame(0, 0, bytes(255))), [Frame(0, 0, bytes(255))]),
    "no zeros": (encode(Frame(1, 9, b"\xff" * 255, 1)), [Frame(1, 9, b"\xff" * 255, 1)]),
    "idle line": (bytes(9), []),
    "noise": (b"\xff\xfe\x80\x00", [BadFrame("cobs")]),
    "short": (raw(b"\1"), [BadFrame("short")]),
    "crc": (b"\0" + _stuff(b"\1\1\0\0\1\0" + b"\1\2\3\4") + b"\0", [BadFrame("crc")]),
    "version": (raw(b"\2\1\0\0\1\0"), [BadFrame("version")]),
    "length": (raw(b"\1\1\0\xff\1\0"), [BadFrame("length")]),
    "long": (b"\1" * 1000 + b"\0", [BadFrame("long")]),
}


@pytest.mark.parametrize("size", [1, 7, 10_000])
@pytest.mark.parametrize("name", CASES)
def test_cases(name: str, size: int) -> None:
    data, expected = CASES[name]
    data += encode(NEXT)
    decoder = FrameDecoder()
    assert [e for at in range(0, len(data), size) for e in decoder.feed(data[at : at + size])] == [*expected, NEXT]


def test_crc16() -> None:
    """The short check is two bytes less, and neither side takes the other's."""
    frame = Frame(3, 7, b"why?")
    short = encode(frame, "crc16")
    assert len(short) == len(encode(frame)) - 2
    assert FrameDecoder("crc16").feed(short) == [frame]
    assert FrameDecoder("crc16").feed(encode(frame)) == FrameDecoder().feed(short) == [BadFrame("crc")]


def test_too_much_to_encode() -> None:
    for frame in (Frame(1, 1, bytes(256)), Frame(256, 1), Frame(1, 65536)):
        with pytest.raises(struct.error):
            encode(frame)


@given(st.binary(max_size=600))
def test_stuffing(data: bytes) -> None:
    """No zero inside, at most one byte in 254 more, and back."""
    stuffed = _stuff(data)
    assert 0 not in stuffed and len(stuffed) <= len(data) + len(data) // 254 + 1
    assert _unstuff(stuffed) == data


@pytest.mark.parametrize("length", [0, 1, 253, 254, 255, 508, 509])
@pytest.mark.parametrize("end", [b"", b"\0", b"\0\0a"])
def test_stuffing_of_long_runs(length: int, end: bytes) -> None:
    data = b"x" * length + end
    assert _unstuff(_stuff(data)) == data


@given(st.lists(st.binary(max_size=700), max_size=6))
def test_any_bytes_leave_a_bounded_buffer_and_a_decoder_that_decodes(pieces: list[bytes]) -> None:
    decoder = FrameDecoder()
    for piece in pieces:
        decoder.feed(piece)
        assert len(decoder._stuffed) <= 267
    assert decoder.feed(encode(NEXT))[-1] == NEXT


def test_H06_damaged_frames_are_refused_and_the_next_is_decoded() -> None:
    """1000 frames at a bit-error rate of 1e-3, with lost and added bytes: nothing wrong passes."""
    rng = random.Random(6)
    decoder, passed = FrameDecoder(), 0
    for number in range(1000):
        sent = Frame(1, number, rng.randbytes(40))
        line = bytearray(encode(sent))
        for bit in range(8 * len(line)):
            if rng.random() < 1e-3:
                line[bit // 8] ^= 1 << bit % 8
        if rng.random() < 0.05:
            del line[rng.randrange(len(line))]
        if rng.random() < 0.05:
            line.insert(rng.randrange(len(line)), rng.randrange(256))
        got = [event for event in decoder.feed(bytes(line)) if isinstance(event, Frame)]
        assert got in ([], [sent])
        passed += len(got)
    assert 400 < passed < 800
