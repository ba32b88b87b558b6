"""Binary frames for hosts with a program of their own, without any I/O.

`feed(bytes)` returns the events that those bytes complete; `encode(Frame)` returns the bytes to write.

    frame = 00 | COBS(body) | 00

    body    0 version 1 | 1 kind | 2 flags | 3 length of payload | 4 sequence 2 | 6 payload | check 4 or 2
                                                                     (numbers little-endian, check over all before it)

The check is CRC-32; CRC-16 (that of Modbus) is for hosts that cannot compute it, and lets one in 65 536 of the frames
pass whose damage it is not sure to find.

COBS leaves no zero byte inside a frame, so a zero always ends it and damage never costs more than the frames it hits.
The zero ahead of a frame parts it from noise. The payload has at most 255 bytes; `frame_link` says how longer messages
go in fragments. At most 267 bytes are kept.

Sources: S. Cheshire, M. Baker, "Consistent Overhead Byte Stuffing", IEEE/ACM Transactions on Networking 7(2), 1999;
CRC-32 of ISO 3309, which zlib computes.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass

from edged.protocol.crc import crc16

VERSION = 1

CHECKS: dict[str, tuple[int, Callable[[bytes], int]]] = {"crc32": (4, zlib.crc32), "crc16": (2, crc16)}
"""Name of a check -> bytes, function."""

_HEAD = struct.Struct("<BBBBH")
_LONGEST = _HEAD.size + 255 + 4
_LONGEST_STUFFED = _LONGEST + _LONGEST // 254 + 1


@dataclass(frozen=True)
class Frame:
    """kind: 0 to 255, its meaning is the caller's. sequence: 0 to 65535. payload: at most 255 bytes."""

    kind: int
    sequence: int
    payload: bytes = b""
    flags: int = 0


@dataclass(frozen=True)
class BadFrame:
    """Bytes between two zeros that are no frame. Codes: long, cobs, short, crc, version, length."""

    code: str


FrameEvent = Frame | BadFrame


def encode(frame: Frame, check: str = "crc32") -> bytes:
    """The bytes of a frame, in one piece; struct.error where a number is out of its range."""
    size, function = CHECKS[check]
    body = _HEAD.pack(VERSION, frame.kind, frame.flags, len(frame.payload), frame.sequence) + frame.payload
    return b"\0" + _stuff(body + function(body).to_bytes(size, "little")) + b"\0"


class FrameDecoder:
    """Bytes to frames."""

    def __init__(self, check: str = "crc32") -> None:
        self._check = CHECKS[check]
        self._stuffed = bytearray()
        self._skipping = False

    def feed(self, data: bytes) -> list[FrameEvent]:
        """Take bytes; return the frames they complete, and a BadFrame for what is none."""
        events: list[FrameEvent] = []
        *ended, rest = data.split(b"\0")
        for piece in ended:
            events += self._take(piece)
            if self._stuffed:
                events.append(_decode(bytes(self._stuffed), *self._check))
            self._stuffed.clear()
            self._skipping = False
        return events + self._take(rest)

    def _take(self, piece: bytes) -> list[FrameEvent]:
        """Keep a piece of a frame; told once if the frame becomes too long."""
        if self._skipping:
            return []
        if len(self._stuffed) + len(piece) <= _LONGEST_STUFFED:
            self._stuffed += piece
            return []
        self._stuffed.clear()
        self._skipping = True
        return [BadFrame("long")]


def _decode(stuffed: bytes, size: int, function: Callable[[bytes], int]) -> FrameEvent:
    """What came between two zeros."""
    whole = _unstuff(stuffed)
    if whole is None:
        return BadFrame("cobs")
    body = whole[:-size]
    if len(body) < _HEAD.size:
        return BadFrame("short")
    if function(body) != int.from_bytes(whole[-size:], "little"):
        return BadFrame("crc")
    version, kind, flags, length, sequence = _HEAD.unpack_from(body)
    if version != VERSION:
        return BadFrame("version")
    if length != len(body) - _HEAD.size:
        return BadFrame("length")
    return Frame(kind, sequence, body[_HEAD.size :], flags)


def _stuff(data: bytes) -> bytes:
    """COBS: each run of up to 254 bytes that are not zero behind its length + 1; a zero follows runs below 255."""
    out = bytearray()
    for run in data.split(b"\0"):
        while len(run) >= 254:
            out += b"\xff" + run[:254]
            run = run[254:]
        out += bytes([len(run) + 1]) + run
    return bytes(out)


def _unstuff(data: bytes) -> bytes | None:
    """The data of `_stuff`, None if its lengths do not add up; `data` holds no zero."""
    out = bytearray()
    at = 0
    while at < len(data):
        code = data[at]
        run = data[at + 1 : at + code]
        if len(run) != code - 1:
            return None
        at += code
        out += run
        if code < 255 and at < len(data):
            out.append(0)
    return bytes(out)
