"""Requests and replies that a person can type and a ladder program can parse: one ASCII line each, without any I/O.

`feed(bytes, now)` returns the events that those bytes complete; the reply methods return the bytes to write, each reply
in one piece, because some receivers take 12 bit times of silence for the end of a message (S7 CM PtP, default).

    feed(b"ASK why does it st") -> []
    feed(b"op?\\r")              -> [LineRequest("ASK", "why does it stop?")]
    ok(7, 1, 2, b"The pump is") -> b"OK 7 1/2 The pump is*5D2C\\r\\n"     (values of the checksum are examples)

    request   VERB [argument] [*sum] (CR | LF | CR LF)
    reply     OK seq page/pages text[*sum] end  |  BUSY seq percent[*sum] end  |  ERR code text[*sum] end

`sum` covers all bytes before the `*`: four upper-case hex digits of CRC-16 or two of the NMEA xor. NUL bytes, with
which PLCs fill their strings, are left out. Noise ahead of a verb is skipped. At most `longest` bytes are kept.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from edged.protocol.crc import crc16, xor8
from edged.protocol.pages import encode

VERBS = {
    "ASK": "text", "DOC": "text", "CODE": "text", "PAGE": "number",
    "NEXT": "", "PREV": "", "STAT": "", "CANCEL": "", "VER": "", "HELP": "",
}  # fmt: skip
"""Verb -> what follows it: `text`, a `number` of at least 1, or nothing."""

CHECKSUMS: dict[str, tuple[int, Callable[[bytes], int]]] = {"none": (0, len), "crc16": (4, crc16), "xor": (2, xor8)}
"""Name -> hex digits, function."""

NOISE = 64
"""Bytes ahead of a request in which a checksummed one is still looked for."""

_HEAD = len("OK 9999 999/999 ")


@dataclass(frozen=True)
class LineRequest:
    """A request. `argument` is text without blanks around it, a number in digits, or empty, as VERBS says."""

    verb: str
    argument: str = ""


@dataclass(frozen=True)
class LineFault:
    """What came is no request: answer `error(code, text)`. Codes: long, late, sum, charset, verb, argument."""

    code: str
    text: str


LineEvent = LineRequest | LineFault


@dataclass(frozen=True)
class LineFormat:
    """How one port speaks. `width` is the longest reply in bytes, its end included; 0: no limit."""

    end: bytes = b"\r\n"
    width: int = 82
    charset: str = "ascii"
    request_sum: str = "none"
    reply_sum: str = "crc16"
    longest: int = 1024
    """Bytes of a request."""
    seconds: float = 10.0
    """From the first byte of a request to its end."""


class LineProtocol:
    """The device's half of one line. `noise` counts bytes that were skipped or thrown away."""

    def __init__(self, form: LineFormat) -> None:
        self.form = form
        self.noise = 0
        self._line = bytearray()
        self._since = 0.0
        self._skipping = False

    @property
    def room(self) -> int:
        """Bytes of text in one reply: the width without head, checksum and end; 0: no limit."""
        digits = CHECKSUMS[self.form.reply_sum][0]
        used = _HEAD + (digits + 1 if digits else 0) + len(self.form.end)
        return max(8, self.form.width - used) if self.form.width else 0

    def feed(self, data: bytes, now: float = 0.0) -> list[LineEvent]:
        """Take bytes that came at `now` (seconds of any steady clock); return the events they complete."""
        events = self.expire(now)
        for byte in data:
            if byte in b"\r\n":
                if self._line:
                    events.append(self._parse(bytes(self._line)))
                self._line.clear()
                self._skipping = False
            elif self._skipping:
                self.noise += 1
            elif byte:
                self._since = self._since if self._line else now
                self._line.append(byte)
                if len(self._line) > self.form.longest:
                    events.append(self._drop("long", f"more than {self.form.longest} bytes without an end of line"))
        return events

    def expire(self, now: float) -> list[LineEvent]:
        """A fault if the request under way takes too long; the rest of its line is skipped."""
        if not self._line or now - self._since <= self.form.seconds:
            return []
        return [self._drop("late", f"no end of line within {self.form.seconds:g} s")]

    def ok(self, seq: int, page: int, pages: int, text: bytes) -> bytes:
        """One page of an answer; `text` is encoded, of at most `room` bytes. seq: 0 to 9999."""
        return self._reply(b"OK %d %d/%d %s" % (seq, page, pages, text))

    def busy(self, seq: int, percent: int) -> bytes:
        """The answer is being made; `percent` of the prompt and the budget are done."""
        return self._reply(b"BUSY %d %d" % (seq, percent))

    def error(self, code: str, text: str) -> bytes:
        """A refusal, cut at the width: the code says all that a program needs."""
        digits = CHECKSUMS[self.form.reply_sum][0]
        body = b"ERR " + encode(f"{code} {text}", "ascii")
        used = (digits + 1 if digits else 0) + len(self.form.end)
        return self._reply(body[: self.form.width - used] if self.form.width else body)

    def _drop(self, code: str, text: str) -> LineFault:
        self.noise += len(self._line)
        self._line.clear()
        self._skipping = True
        return LineFault(code, text)

    def _reply(self, body: bytes) -> bytes:
        digits, function = CHECKSUMS[self.form.reply_sum]
        return body + (b"*%0*X" % (digits, function(body)) if digits else b"") + self.form.end

    def _parse(self, line: bytes) -> LineEvent:
        """One line without its end."""
        starts = [start for start in range(min(len(line), NOISE + 1)) if _verb_at(line, start)]
        digits, function = CHECKSUMS[self.form.request_sum]
        if not digits:
            # printable bytes ahead of a verb are a mistyped request, not noise
            start = next((at for at, byte in enumerate(line) if 0x20 < byte < 0x7F), len(line))
            self.noise += start
            return self._request(line[start:])
        body, mark, told = line.rstrip(b" ").rpartition(b"*")
        for start in starts:
            if mark and told.upper() == b"%0*X" % (digits, function(body[start:])):
                self.noise += start
                return self._request(body[start:])
        self.noise += len(line)
        return LineFault("sum", f"the checksum ({self.form.request_sum}) is missing or wrong")

    def _request(self, body: bytes) -> LineEvent:
        word, _, rest = body.partition(b" ")
        verb = word.decode("ascii", "replace").upper()
        if verb not in VERBS:
            return LineFault("verb", f"expected one of {' '.join(VERBS)}")
        try:
            argument = rest.decode(self.form.charset).replace("\t", " ").strip()
        except UnicodeDecodeError:
            return LineFault("charset", f"a byte that is not {self.form.charset}")
        if any(ord(character) < 0x20 or character == "\x7f" for character in argument):
            return LineFault("charset", "a control character")
        kind = VERBS[verb]
        if kind == "number":
            good = argument.isascii() and argument.isdigit() and len(argument) <= 4 and int(argument) > 0
        else:
            good = bool(argument) == (kind == "text")
        if not good:
            return LineFault("argument", f"{verb} takes {f'a {kind}' if kind else 'nothing'}")
        return LineRequest(verb, argument)


def _verb_at(line: bytes, start: int) -> bool:
    """A verb, or the upper-case form of one, begins at `start` and ends at a blank, a `*` or the end."""
    end = start
    while end < len(line) and end - start < 8 and line[end : end + 1].isalpha():
        end += 1
    return line[start:end].upper().decode("ascii", "replace") in VERBS
