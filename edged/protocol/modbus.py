"""Modbus RTU on the slave's side, without any I/O or clock.

`feed(bytes, now)` returns the requests to this unit that those bytes complete; call `silence()` when nothing has come
for 3.5 characters (on USB adapters: longer than their latency). The reply methods return the bytes to write.

    feed(01 03 00 00 00, 0.0) -> []
    feed(02 C4 0B, 0.01)      -> [Read(unit=1, function=3, address=0, count=2)]
    values(request, [7, 8])

    request 03 04   unit 1 | function 1 | address 2 | count 2 | crc 2, low byte first
    request 06      unit 1 | function 1 | address 2 | value 2 | crc 2
    request 16      unit 1 | function 1 | address 2 | count 2 | bytes 1 | values 2 each | crc 2

The standard ends a frame by silence, which no USB adapter hands on faithfully. Here a frame ends where its own length
says, if its CRC is right. What is whole but for other units, requests and replies alike, is skipped as a whole, so
that their values are not taken for a frame. At a damaged frame the search goes on one byte later; a head whose end is
missing is waited for until the silence, and forgotten after GAP seconds. At most 512 bytes are kept.

Sources: Modbus over Serial Line V1.02; Modbus Application Protocol V1.1b3.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from edged.protocol.crc import crc16, crc16_starts

LONGEST = 256
"""Bytes of a frame (Modbus over Serial Line V1.02, 2.5.1)."""

GAP = 0.2
"""Seconds after which what comes continues nothing. No adapter pauses for so long inside a frame, no master asks again
sooner."""

MOST_READ, MOST_WRITTEN = 125, 123
"""Registers of one request (Application Protocol V1.1b3, 6.3 and 6.12)."""

ILLEGAL_FUNCTION, ILLEGAL_ADDRESS, ILLEGAL_VALUE, DEVICE_FAILURE, ACKNOWLEDGE, DEVICE_BUSY = 1, 2, 3, 4, 5, 6
"""Exception codes (Application Protocol V1.1b3, 7). 5: taken, ask again for the result; 6: not taken, try again."""


@dataclass(frozen=True)
class Read:
    """Function 03 or 04: `count` registers from `address` on; 1 to 125."""

    unit: int
    function: int
    address: int
    count: int


@dataclass(frozen=True)
class Write:
    """Function 06 or 16: `values` to the registers from `address` on. Unit 0 is for all: it gets no reply."""

    unit: int
    function: int
    address: int
    values: tuple[int, ...]


@dataclass(frozen=True)
class Refused:
    """A whole request that the standard does not allow: answer `exception(request, code)`."""

    unit: int
    function: int
    code: int


Request = Read | Write | Refused


class ModbusSlave:
    """One unit on the line. `noise` counts bytes that belonged to no frame."""

    def __init__(self, unit: int) -> None:
        if not 1 <= unit <= 247:
            raise ValueError(f"unit {unit} is not between 1 and 247")
        self.unit = unit
        self.noise = 0
        self._buffer = bytearray()
        self._heard = 0.0
        # where a frame may begin: a unit and a function whose lengths are known, or any function of this unit
        own = re.escape(bytes([unit]))
        self._heads = re.compile(
            rb"[\x00-\xf7](?:[\x01-\x06\x0f\x10\x81-\x90]|\Z)|" + own + rb"(?:[\x00-\x7f]|\Z)", re.DOTALL
        )

    def feed(self, data: bytes, now: float = 0.0) -> list[Request]:
        """Take bytes that came at `now` (seconds of any steady clock); return the requests to this unit, or to all
        (unit 0), that they complete."""
        if now - self._heard > GAP:
            self.noise += len(self._buffer)
            self._buffer.clear()
        self._heard = now
        requests: list[Request] = []
        for at in range(0, len(data), LONGEST):
            self._buffer += data[at : at + LONGEST]
            requests += self._scan()
        return requests

    def silence(self) -> list[Request]:
        """The line is quiet: an unfinished head hides no whole request any longer.

        The head is kept where nothing whole follows it, for adapters that pause inside a frame.
        """
        return self._scan(quiet=True) or self._unknown()

    def values(self, request: Read, values: Sequence[int]) -> bytes:
        """The reply to a read: `request.count` values of 16 bits."""
        assert len(values) == request.count
        return self._seal(struct.pack(f">BBB{request.count}H", self.unit, request.function, 2 * request.count, *values))

    def written(self, request: Write) -> bytes:
        """The reply to a write; nothing for unit 0."""
        last = request.values[0] if request.function == 6 else len(request.values)
        return self._answer(request.unit, struct.pack(">BBHH", self.unit, request.function, request.address, last))

    def exception(self, request: Request, code: int) -> bytes:
        """A refusal; nothing for unit 0."""
        return self._answer(request.unit, bytes([self.unit, request.function | 0x80, code]))

    def _answer(self, unit: int, body: bytes) -> bytes:
        return self._seal(body) if unit else b""

    def _seal(self, body: bytes) -> bytes:
        return body + crc16(body).to_bytes(2, "little")

    def _scan(self, quiet: bool = False) -> list[Request]:
        """Take whole frames in one pass. Unless it is quiet, stop at a head that may still become whole."""
        requests: list[Request] = []
        data = bytes(self._buffer)
        head = None  # the first since the last frame that may still become whole
        end = at = 0
        while found := self._heads.search(data, at):
            at = found.start()
            whole, grows = self._weigh(data, at)
            if whole:
                self.noise += at - end
                # a request has 8 bytes or is a 16; other frames of this unit are replies: its own echo
                if data[at] in (0, self.unit) and whole == _request_length(data[at : at + 7]):
                    requests.append(_parse(data[at : at + whole]))
                at = end = at + whole
                head = None
                continue
            if grows and head is None:
                head = at
                if not quiet:
                    break
            at += 1
        kept = len(data) if head is None else head
        self.noise += kept - end
        del self._buffer[:kept]
        return requests

    def _weigh(self, data: bytes, at: int) -> tuple[int, bool]:
        """The length of the frame with a right CRC that begins at `at`, or 0 and whether more bytes may make it one."""
        grows = False
        for length in _lengths(data[at : at + 7], self.unit):
            if at + length > len(data):
                grows |= length <= LONGEST
            elif length >= 4 and not crc16(data[at : at + length]):
                return length, False
        return 0, grows

    def _unknown(self) -> list[Request]:
        """A frame of a function whose length is not known here: the rest of the buffer, if its CRC is right."""
        for start in crc16_starts(self._buffer):
            if self._buffer[start] == self.unit and start + 4 <= len(self._buffer):
                function = self._buffer[start + 1]
                self.noise += start
                self._buffer.clear()
                return [Refused(self.unit, function & 0x7F, ILLEGAL_FUNCTION)]
        return []


def _request_length(head: bytes) -> int:
    """The length of a master's frame, which needs 7 bytes for functions 15 and 16; 0 for other functions."""
    if head[1] in (15, 16):
        return 9 + head[6] if len(head) > 6 else 9
    return 8 if 1 <= head[1] <= 6 else 0


def _lengths(head: bytes, unit: int) -> list[int]:
    """The lengths that a frame may have that begins so: a request, a reply, an exception.

    A write to `unit` itself has one: its first 8 bytes may by chance look like a reply.
    """
    if len(head) < 2:
        return [LONGEST]
    function = head[1]
    if 1 <= function <= 4:
        return [8, 5 + head[2] if len(head) > 2 else 5]
    if function in (15, 16):
        return [_request_length(head)] if head[0] in (0, unit) else [8, _request_length(head)]
    if function in (5, 6):
        return [8]
    if 0x81 <= function <= 0x90:
        return [5]
    return [LONGEST] if head[0] == unit and function < 0x80 else []  # what it is shows at the silence


def _parse(frame: bytes) -> Request:
    """A request with a right CRC."""
    unit, function, address, number = struct.unpack_from(">BBHH", frame)
    if function in (3, 4):
        allowed = 1 <= number <= MOST_READ and address + number <= 0x10000 and unit
        return Read(unit, function, address, number) if allowed else Refused(unit, function, ILLEGAL_VALUE)
    if function == 6:
        return Write(unit, function, address, (number,))
    if function == 16:
        if not (1 <= number <= MOST_WRITTEN and frame[6] == 2 * number and address + number <= 0x10000):
            return Refused(unit, function, ILLEGAL_VALUE)
        return Write(unit, function, address, struct.unpack_from(f">{number}H", frame, 7))
    return Refused(unit, function, ILLEGAL_FUNCTION)
