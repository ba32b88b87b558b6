"""Questions and answers in frames: the device's half of the link, without any I/O or clock. `frame_host` is the other.

The host speaks and the device answers: every frame of the host gets one frame back, at once, with the same kind of
check and the same sequence number. So no two ever send at the same time, which suits half-duplex lines, and the window
is one. What gets lost is told by time: the host sends the same frame again, and the device, which kept its last answer,
sends that again and does nothing twice.

    host                                     device
    01 HELLO    nonce 4                      81 WELCOME  nonce 4 | longest request 2
    02 REQUEST  a part of the request        82 TAKEN    bytes of the request so far 2
    03 NEXT                                  83 TEXT     a part of the answer
                                             84 BUSY     percent of the prompt 1
                                             85 DONE     reason 1 | bytes of text 4 | prompt tokens 2 | answer tokens 2
    04 CANCEL                                85 DONE
    05 STATUS                                86 STATE    state 1 | percent 1 | bytes not yet fetched 2
                                             87 ERROR    code 1 | text, ASCII
                                                                                          (numbers little-endian)

A request is what one types in line mode, in UTF-8: `ASK why does it stop?`. It goes in fragments: the first carries the
flag FIRST, all but the last carry MORE. With the last the answer is begun. NEXT says that what came before has arrived
and asks for more; TEXT comes as soon as there is some, a character may be cut. After DONE there is nothing more.

HELLO begins a session: what was asked before is dropped. Its sequence number is any, each further frame has the next
one, modulo 65 536; the nonce tells its WELCOME from an older one. A frame out of sequence gets ERROR session, which
means that one of the two was started anew: say HELLO. A new request ends the one before.

A frame has at most 64 bytes on the line, zeros included, of which 51 are payload, unless the device is set otherwise.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from edged.protocol.frame import BadFrame, Frame, FrameDecoder, encode

HELLO, REQUEST, NEXT, CANCEL, STATUS = range(0x01, 0x06)
WELCOME, TAKEN, TEXT, BUSY, DONE, STATE, ERROR = range(0x81, 0x88)

FIRST, MORE = 0x01, 0x02
"""Flags of REQUEST: the first part; not the last part."""

REASONS = ("stop", "length", "deadline", "cancelled")
"""Why an answer ended, by number: by itself; at its limit of tokens or bytes; of time; by CANCEL or a lost host."""

STATES = ("idle", "computing", "answered")
"""By number: nothing was asked; more text will come; the rest of the text waits."""

CODES = ("", "session", "order", "nothing", "long", "kind", "failed")
"""By number: say HELLO; a request without its first part; no answer to fetch; a request that is too long; a kind that
is unknown; the answer failed, see the text."""

FRAGMENT = 51
"""Bytes of payload: 64 on the line with 2 zeros, 1 of COBS, 6 of head, 4 of CRC."""


@dataclass(frozen=True)
class Write:
    """Bytes to write now, in one piece."""

    data: bytes


@dataclass(frozen=True)
class Asked:
    """A whole request: call `text`, `progress` and `end` or `fail` as its answer comes."""

    request: bytes


@dataclass(frozen=True)
class Cancelled:
    """Nobody waits for the answer under way any longer."""


DeviceEvent = Write | Asked | Cancelled


class LinkDevice:
    """The device's half. `bad` counts what came and was no frame.

    fragment: bytes of payload, at least 16. longest: bytes of a request. patience: seconds for which the host may leave
    an answer alone before it counts as gone.
    """

    def __init__(self, *, check: str = "crc32", fragment: int = FRAGMENT, longest: int = 4096,
                 patience: float = 60.0) -> None:
        self.bad = 0
        self._check = check
        self._fragment = fragment
        self._longest = longest
        self._patience = patience
        self._decoder = FrameDecoder(check)
        self._last: Frame | None = None
        """The host's last frame, None before HELLO; `_reply` is what it got."""
        self._reply = b""
        self._request: bytearray | None = None
        self._answer: _Answer | None = None
        self._heard = 0.0

    def feed(self, data: bytes, now: float) -> list[DeviceEvent]:
        """Take bytes that came at `now` (seconds of any steady clock); return what is to be done, in order."""
        events: list[DeviceEvent] = []
        for frame in self._decoder.feed(data):
            if isinstance(frame, BadFrame):
                self.bad += 1
            elif frame.kind < 0x80:  # else its own, on a line that hands it back
                self._heard = now
                events += self._receive(frame)
        return events

    def expire(self, now: float) -> list[DeviceEvent]:
        """The host may have gone: its answer is dropped after `patience`."""
        return self._drop() if self._answer and now - self._heard > self._patience else []

    # the answer, as it comes

    def progress(self, percent: int) -> None:
        """Of the prompt, 0 to 100."""
        if self._answer:
            self._answer.percent = percent

    def text(self, data: bytes) -> None:
        """More of the answer."""
        if self._answer:
            self._answer.waiting += data

    def end(self, reason: str, prompt_tokens: int = 0, answer_tokens: int = 0) -> None:
        """The answer is whole; a `reason` of REASONS."""
        if self._answer:
            self._answer.end = REASONS.index(reason)
            self._answer.tokens = min(prompt_tokens, 0xFFFF), min(answer_tokens, 0xFFFF)

    def fail(self, text: str) -> None:
        """There will be no more of this answer, and this is why."""
        if self._answer:
            self._answer.failure = text

    # the host's frames

    def _receive(self, frame: Frame) -> list[DeviceEvent]:
        if frame == self._last:
            return [Write(self._reply)]
        events: list[DeviceEvent] = []
        if frame.kind == HELLO:
            events, self._request = self._drop(), None
            kind, payload = WELCOME, frame.payload[:4] + struct.pack("<H", self._longest)
        elif self._last is None or frame.sequence != (self._last.sequence + 1) % 0x10000:
            return [Write(self._encode(ERROR, frame.sequence, _error("session")))]
        elif frame.kind == REQUEST:
            events, kind, payload = self._take(frame)
        elif frame.kind == NEXT:
            kind, payload = self._more()
        elif frame.kind == CANCEL:
            done = self._answer.done("cancelled") if self._answer else _Answer().done("cancelled")
            events, kind, payload = self._drop(), DONE, done
        elif frame.kind == STATUS:
            kind, payload = STATE, self._answer.state() if self._answer else bytes(4)
        else:
            kind, payload = ERROR, _error("kind")
        self._last, self._reply = frame, self._encode(kind, frame.sequence, payload)
        return [*events, Write(self._reply)]

    def _take(self, frame: Frame) -> tuple[list[DeviceEvent], int, bytes]:
        """A part of a request -> events, kind and payload of the reply."""
        events: list[DeviceEvent] = []
        if frame.flags & FIRST:
            events, self._request = self._drop(), bytearray()
        if self._request is None:
            return events, ERROR, _error("order")
        self._request += frame.payload
        size = len(self._request)
        if size > self._longest:
            self._request = None
            return events, ERROR, _error("long")
        if not frame.flags & MORE:
            events.append(Asked(bytes(self._request)))
            self._request, self._answer = None, _Answer()
        return events, TAKEN, struct.pack("<H", size)

    def _more(self) -> tuple[int, bytes]:
        """What NEXT gets: kind and payload."""
        answer = self._answer
        if answer is None:
            return ERROR, _error("nothing")
        part = bytes(answer.waiting[: self._fragment])
        if part:
            del answer.waiting[: len(part)]
            answer.sent += len(part)
            return TEXT, part
        if answer.failure is not None:
            self._answer = None
            return ERROR, _error("failed", answer.failure)[: self._fragment]
        if answer.end is not None:
            self._answer = None
            return DONE, answer.done(REASONS[answer.end])
        return BUSY, bytes([answer.percent])

    def _drop(self) -> list[DeviceEvent]:
        """Forget the answer; someone has to be told if it is still being made."""
        answer, self._answer = self._answer, None
        return [Cancelled()] if answer and not answer.over else []

    def _encode(self, kind: int, sequence: int, payload: bytes) -> bytes:
        return encode(Frame(kind, sequence, payload), self._check)


class _Answer:
    """One answer between the engine and the host."""

    def __init__(self) -> None:
        self.waiting = bytearray()
        self.sent = 0
        self.percent = 0
        self.tokens = (0, 0)
        self.end: int | None = None
        self.failure: str | None = None

    @property
    def over(self) -> bool:
        return self.end is not None or self.failure is not None

    def done(self, reason: str) -> bytes:
        return struct.pack("<BIHH", REASONS.index(reason), self.sent, *self.tokens)

    def state(self) -> bytes:
        state = "answered" if self.over else "computing"
        return struct.pack("<BBH", STATES.index(state), self.percent, min(len(self.waiting), 0xFFFF))


def _error(code: str, text: str = "") -> bytes:
    return bytes([CODES.index(code)]) + text.encode("ascii", "replace")
