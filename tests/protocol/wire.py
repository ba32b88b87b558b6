"""A serial line that damages what goes over it, and a port at the host's end of it with a device at the other.

    wire = Wire(random.Random(1), 1e-3)
    wire.carry(b"...") -> what the receiver makes of it

A byte is ten bits: a start bit 0, eight data bits, low first, a stop bit 1. Any of them flips with the given rate, the
idle line behind a burst included; whole bytes get lost and added at the same rate, as by overruns and bad contacts. The
receiver works as a 16550 does: it looks for the next 0, takes eight bits, and a stop bit that is 0 is a framing error
and the start of the next byte. What it does with the byte differs from driver to driver: each way is tried.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from edged.protocol.frame import Frame, FrameDecoder
from edged.protocol.frame_link import Asked, LinkDevice, Write

IDLE = 20
"""Bits of the idle line behind a burst."""

LEVELS = [[0, *(byte >> bit & 1 for bit in range(8)), 1] for byte in range(256)]


class Wire:
    """rate: of flipped bits, and of lost and of added bytes."""

    def __init__(self, rng: random.Random, rate: float) -> None:
        self._rng = rng
        self._rate = rate

    def carry(self, data: bytes) -> bytes:
        """What arrives of one burst."""
        rng = self._rng
        flips = self._hits(10 * len(data) + IDLE)
        if flips:
            levels = [level for byte in data for level in LEVELS[byte]] + [1] * IDLE
            for at in flips:
                levels[at] ^= 1
            data = self._receive(levels)
        for at in reversed(self._hits(len(data))):
            data = data[:at] + (data[at + 1 :] if rng.random() < 0.5 else rng.randbytes(1) + data[at:])
        return data

    def _hits(self, length: int) -> list[int]:
        """Places of `length`, each taken with the rate."""
        places, at = [], int(self._rng.expovariate(self._rate))
        while at < length:
            places.append(at)
            at += 1 + int(self._rng.expovariate(self._rate))
        return places

    def _receive(self, levels: list[int]) -> bytes:
        out = bytearray()
        at = 0
        while at + 10 <= len(levels):
            if levels[at]:
                at += 1
                continue
            value = sum(levels[at + 1 + bit] << bit for bit in range(8))
            if levels[at + 9]:
                out.append(value)
                at += 10
            else:
                out += self._rng.choice((b"", b"\0", bytes([value])))
                at += 9
        return bytes(out)


class NoisyPort:
    """The host's end of a wire, with the four names of pyserial that the client uses, and a clock of its own.

    `answer(request)` is what the device says. `asked`: the requests it took. `frames`: those that were sent;
    `wrong`: those that arrived and are not what was sent.
    """

    baudrate = 9600

    def __init__(self, wire: Wire, answer: Callable[[bytes], bytes], check: str) -> None:
        self.now = 0.0
        self.asked: list[bytes] = []
        self.frames = self.wrong = 0
        self._wire = wire
        self._answer = answer
        self._check = check
        self._device = LinkDevice(check=check)
        self._waiting = b""
        self._taps = [FrameDecoder(check), FrameDecoder(check)]

    @property
    def in_waiting(self) -> int:
        return len(self._waiting)

    def read(self, size: int = 1) -> bytes:
        data, self._waiting = self._waiting[:size], self._waiting[size:]
        self.now += 10 * len(data) / self.baudrate if data else 0.02
        return data

    def write(self, data: bytes) -> None:
        self.now += 10 * len(data) / self.baudrate
        for event in self._device.feed(self._carry(data, 0), self.now):
            if isinstance(event, Asked):
                self.asked.append(event.request)
                self._device.text(self._answer(event.request))
                self._device.end("stop")
            elif isinstance(event, Write):
                self._waiting += self._carry(event.data, 1)

    def _carry(self, data: bytes, way: int) -> bytes:
        sent = FrameDecoder(self._check).feed(data)
        arrived = self._wire.carry(data)
        frames = [event for event in self._taps[way].feed(arrived) if isinstance(event, Frame)]
        self.frames += len(sent)
        self.wrong += sum(frame not in sent for frame in frames)
        return arrived
