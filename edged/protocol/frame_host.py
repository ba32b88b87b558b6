"""Questions and answers in frames: the host's half of the link, without any I/O or clock; `frame_link` draws it.

    host = LinkHost(nonce)
    host.ask(b"ASK why does it stop?")
    while host.working:
        port.write(host.due(now))                  # raises LinkFailed when the device has been silent for too long
        for event in host.feed(port.read(...), now): Text | Progress | Ended
"""

from __future__ import annotations

import struct
from collections import deque
from dataclasses import dataclass

from edged.errors import LinkFailed
from edged.protocol import frame_link as link
from edged.protocol.frame import BadFrame, Frame, FrameDecoder, encode


@dataclass(frozen=True)
class Text:
    """More of the answer."""

    data: bytes


@dataclass(frozen=True)
class Progress:
    """There is no new text; `percent` of the prompt is done."""

    percent: int


@dataclass(frozen=True)
class Ended:
    """The answer is whole. reason: one of `frame_link.REASONS`; size: bytes of its text."""

    reason: str
    size: int
    prompt_tokens: int
    answer_tokens: int


@dataclass(frozen=True)
class State:
    """The device's state, one of `frame_link.STATES`, percent of the prompt, bytes of text that wait."""

    state: str
    percent: int
    waiting: int


HostEvent = Text | Progress | Ended | State

ANSWERS = {
    link.HELLO: {link.WELCOME: 6},
    link.REQUEST: {link.TAKEN: 2},
    link.NEXT: {link.TEXT: 0, link.BUSY: 1, link.DONE: 9},
    link.CANCEL: {link.DONE: 9},
    link.STATUS: {link.STATE: 4},
}
"""Kind of the host -> kinds that may answer it, with their least bytes; ERROR may answer all."""


class LinkHost:
    """The host's half: one request at a time, each frame repeated until its answer comes.

    nonce: 4 bytes that differ from one start to the next. reply_time: seconds from writing a frame to its answer, with
    the time both take on the line. pause: seconds to the next question whether there is text. patience: seconds without
    any answer. `repeated` counts frames that were sent again.
    """

    def __init__(self, nonce: bytes, *, check: str = "crc32", fragment: int = link.FRAGMENT, reply_time: float = 0.5,
                 pause: float = 0.1, patience: float = 30.0) -> None:
        self.repeated = 0
        self._nonce = nonce
        self._check = check
        self._fragment = fragment
        self._reply_time, self._pause, self._patience = reply_time, pause, patience
        self._decoder = FrameDecoder(check)
        self._session = False
        self._sequence = 0
        self._request: list[Frame] = []
        """What is sent again if the device was started anew; empty once the request is taken."""
        self._queue: deque[Frame] = deque()
        self._asking = False
        self._size = 0
        self._sent: Frame | None = None
        self._bytes = b""
        self._next = self._give_up = float("-inf")

    @property
    def working(self) -> bool:
        """Whether an answer is awaited."""
        return self._asking or bool(self._queue) or self._sent is not None

    def ask(self, request: bytes) -> None:
        """Begin a request; what was asked before is given up."""
        size = self._fragment
        parts = [request[at : at + size] for at in range(0, len(request), size)] or [b""]
        flags = [link.MORE] * (len(parts) - 1) + [0]
        flags[0] |= link.FIRST
        self._request = [_frame(link.REQUEST, part, flag) for part, flag in zip(parts, flags, strict=True)]
        if self._asking or self._sent:
            self._session, self._sent = False, None  # HELLO makes the device forget the other one
        self._size = 0
        self._queue = deque(self._request if self._session else [_frame(link.HELLO, self._nonce), *self._request])
        self._asking = True

    def cancel(self) -> None:
        """Ask for the end of the answer; `Ended` comes with the reason cancelled."""
        self._queue.append(_frame(link.CANCEL))

    def status(self) -> None:
        """Ask for the device's state; `State` comes."""
        if not self._session and not self._queue:
            self._queue.append(_frame(link.HELLO, self._nonce))
        self._queue.append(_frame(link.STATUS))

    def due(self, now: float) -> bytes:
        """What is to be written now, nothing before `wake`. Raises LinkFailed if the device stays silent."""
        if now < self._next or not self.working:
            return b""
        if self._sent is None:
            frame = self._queue.popleft() if self._queue else _frame(link.NEXT)
            self._sequence = 0 if frame.kind == link.HELLO else (self._sequence + 1) % 0x10000
            self._sent = Frame(frame.kind, self._sequence, frame.payload, frame.flags)
            self._bytes = encode(self._sent, self._check)
            self._give_up = now + self._patience
        elif now >= self._give_up:
            self._forget()
            raise LinkFailed(f"no answer within {self._patience:g} seconds",
                             hint="check wiring, speed and the mode of the port")
        else:
            self.repeated += 1
        self._next = now + self._reply_time
        return self._bytes

    @property
    def wake(self) -> float:
        """When `due` has something, on the clock of its `now`."""
        return self._next if self.working else float("inf")

    def feed(self, data: bytes, now: float) -> list[HostEvent]:
        """Take bytes that came at `now`. Raises LinkFailed with the device's code if it refuses."""
        events: list[HostEvent] = []
        for frame in self._decoder.feed(data):
            sent = self._sent
            if sent is None or isinstance(frame, BadFrame) or not self._answers(frame, sent):
                continue  # damage, an echo, or the second answer to a repeated frame
            self._sent, self._next = None, now
            if frame.kind == link.ERROR:
                self._refused(sent, frame.payload)
            else:
                events += self._answered(sent, frame, now)
        return events

    def _answers(self, frame: Frame, sent: Frame) -> bool:
        if frame.sequence != sent.sequence:
            return False
        if sent.kind == link.HELLO and frame.payload[:4] != self._nonce:
            return False
        return len(frame.payload) >= {**ANSWERS[sent.kind], link.ERROR: 1}.get(frame.kind, 256)

    def _answered(self, sent: Frame, frame: Frame, now: float) -> list[HostEvent]:
        kind, payload = frame.kind, frame.payload
        if kind == link.WELCOME:
            self._session = True
        elif kind == link.TAKEN:
            if not sent.flags & link.MORE:
                self._request = []
        elif kind == link.TEXT:
            self._size += len(payload)
            return [Text(payload)]
        elif kind == link.BUSY:
            self._next = now + self._pause
            return [Progress(payload[0])]
        elif kind == link.STATE:
            state, percent, waiting = struct.unpack_from("<BBH", payload)
            return [State(link.STATES[state] if state < len(link.STATES) else str(state), percent, waiting)]
        else:
            return [self._done(payload)]
        return []

    def _done(self, payload: bytes) -> Ended:
        reason, size, *tokens = struct.unpack_from("<BIHH", payload)
        self._queue.clear()  # a CANCEL that came too late
        self._asking = False
        if size != self._size:
            self._forget()
            raise LinkFailed(f"the answer has {size} bytes, {self._size} came", code="bad_reply")
        return Ended(link.REASONS[reason] if reason < len(link.REASONS) else str(reason), size, *tokens)

    def _refused(self, sent: Frame, payload: bytes) -> None:
        """ERROR in answer to `sent`. Where the device was started anew, what it has not begun is asked again."""
        code = link.CODES[payload[0]] if payload[0] < len(link.CODES) else str(payload[0])
        again = self._request or ([sent] if sent.kind == link.STATUS else [])
        if code == "session" and again and sent.kind != link.HELLO:
            self._session = False
            self._queue = deque([_frame(link.HELLO, self._nonce), *again])
            return
        self._forget()
        text = payload[1:].decode("ascii", "replace")
        raise LinkFailed(text or f"the device answered with the error {code!r}", code=code)

    def _forget(self) -> None:
        self._queue.clear()
        self._request = []
        self._sent = None
        self._asking = self._session = False


def _frame(kind: int, payload: bytes = b"", flags: int = 0) -> Frame:
    """A frame without its sequence number."""
    return Frame(kind, 0, payload, flags)
