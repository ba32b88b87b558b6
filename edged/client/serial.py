"""Asks a device over a serial line in frame mode, and waits for the answer.

    port = serial.Serial("/dev/ttyUSB0", 9600, timeout=0.02)       # pyserial, or anything with its four names below
    client = SerialClient(port)
    client.ask("ASK why does the pump stop?").text
    for piece in client.stream("DOC how is E-0x1F cleared?"): ...

A question is answered once, however often the line damages what goes over it, or LinkFailed is raised. A device that
was started anew before it took the question is asked again.
"""

from __future__ import annotations

import codecs
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from edged.protocol.frame_host import Ended, HostEvent, LinkHost, State, Text


class Port(Protocol):
    """What is used of pyserial's Serial. `read` returns at the latest after the port's own timeout: 20 ms is good."""

    baudrate: int

    @property
    def in_waiting(self) -> int: ...

    def read(self, size: int = 1, /) -> bytes: ...

    def write(self, data: bytes, /) -> int | None: ...


@dataclass(frozen=True)
class Answer:
    """reason: stop, length (cut at its limit), deadline (cut in time) or cancelled."""

    text: str
    reason: str
    prompt_tokens: int
    answer_tokens: int


class SerialClient:
    """One device on one port. check: crc32 or crc16, as the device's port is set; encoding: its charset.

    reply_time: seconds to wait before a frame is sent again; None: by the speed. patience: seconds without any sign of
    the device, then LinkFailed is raised.
    """

    def __init__(self, port: Port, *, check: str = "crc32", encoding: str = "utf-8", reply_time: float | None = None,
                 patience: float = 30.0, clock: Callable[[], float] = time.monotonic) -> None:
        two_frames = 2 * 64 * 10 / port.baudrate  # the longest there, the longest back
        self.ended: Ended | None = None
        """How the last answer ended."""
        self._port = port
        self._clock = clock
        self._encoding = encoding
        self._host = LinkHost(os.urandom(4), check=check, patience=patience,
                              reply_time=0.3 + two_frames if reply_time is None else reply_time)  # fmt: skip

    @property
    def repeated(self) -> int:
        """Frames that were sent again."""
        return self._host.repeated

    def ask(self, request: str) -> Answer:
        """Ask and wait for the whole answer. Raises LinkFailed."""
        text = "".join(self.stream(request))
        assert self.ended
        return Answer(text, self.ended.reason, self.ended.prompt_tokens, self.ended.answer_tokens)

    def stream(self, request: str) -> Iterator[str]:
        """Ask; the answer in pieces as they come, then `ended` tells how it ended. Raises LinkFailed."""
        decoder = codecs.getincrementaldecoder(self._encoding)("replace")
        self.ended = None
        self._host.ask(request.encode("utf-8"))
        while self._host.working:
            for event in self._exchange():
                if isinstance(event, Text):
                    yield decoder.decode(event.data)
                elif isinstance(event, Ended):
                    self.ended = event
        yield decoder.decode(b"", final=True)

    def cancel(self) -> None:
        """Called while `stream` is consumed: the answer ends with the reason cancelled."""
        self._host.cancel()

    def state(self) -> State:
        """What the device does; not while `stream` is consumed. Raises LinkFailed."""
        self._host.status()
        while True:
            for event in self._exchange():
                if isinstance(event, State):
                    return event

    def _exchange(self) -> list[HostEvent]:
        """Write what is due, read what came."""
        due = self._host.due(self._clock())
        if due:
            self._port.write(due)
        data = self._port.read(max(1, self._port.in_waiting))
        return self._host.feed(data, self._clock())
