"""HTTP/1.1 on the server side, without any I/O.

`feed(bytes)` returns the events that those bytes complete, in order; the reply methods return the bytes to write. One
request is answered at a time: bytes of a pipelined request stay inside until `next_request()` after the reply.

    feed(b"GET /health HT")              -> []
    feed(b"TP/1.1\\r\\nHost: e\\r\\n\\r\\n")   -> [HttpRequest("GET", "/health", ...)]
    reply(200, headers, b"ok")           -> b"HTTP/1.1 200 OK ..."
    next_request()                       -> []

A request event always holds its whole body, of at most as many bytes as the limit of its method and path; the head
alone decides which that is. Any Host header is accepted: on a Unix socket it says nothing. A query is read as a form
(`application/x-www-form-urlencoded`), each name once: nothing is guessed. Sources: RFC 9110, RFC 9112, and for queries
https://url.spec.whatwg.org/#urlencoded-parsing; the grammar and the state machine are h11's.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from urllib.parse import unquote, unquote_to_bytes, urlsplit

import h11

MAX_HEAD = 32 * 1024
"""Bytes of request line and headers."""

_BAD_ESCAPE = re.compile("%(?![0-9a-fA-F]{2})")
_REASONS = {status.value: status.phrase for status in HTTPStatus}

Headers = list[tuple[str, str]]

BodyLimit = Callable[[str, str, "int | None"], tuple[int, str]]
"""Method, path and length of the body (None: its head does not say) -> the most bytes of a body, and the name of the
setting that says so. What it raises comes out of `feed` or `next_request`: the body is not wanted."""


@dataclass(frozen=True)
class HttpRequest:
    """One whole request. `path` and `query` are decoded; header names are lower case."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes = b""
    query: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Interim:
    """Bytes to write at once, before the request is whole: the client waits for `100 Continue`."""

    data: bytes


@dataclass(frozen=True)
class Refused:
    """What came is not an acceptable request. Answer with `status`; the connection cannot be used again.

    param: the parameter of the query that is at fault.
    """

    status: int
    message: str
    param: str | None = None


@dataclass(frozen=True)
class Ended:
    """The client sends nothing more."""


HttpEvent = HttpRequest | Interim | Refused | Ended


class HttpConnection:
    """The server's half of one HTTP/1.1 (or 1.0) connection."""

    def __init__(self, limit: BodyLimit) -> None:
        self._h11 = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD)
        self._limit = limit
        self._max_body, self._setting = 0, ""  # of the request that is coming
        self._head: h11.Request | None = None
        self._path = ""
        self._query: dict[str, str] = {}
        self._body = bytearray()
        self._broken = False
        self._bodiless = False

    @property
    def idle(self) -> bool:
        """Between requests: not a byte of the next one has come."""
        return self._head is None and not self._broken and not self._h11.trailing_data[0]

    def feed(self, data: bytes) -> list[HttpEvent]:
        """Take bytes from the client, b"" when it sends no more; return the events they complete."""
        if self._broken:
            return []
        self._h11.receive_data(data)
        return self._events()

    def next_request(self) -> list[HttpEvent]:
        """After a whole reply: the events of a request that had come early, or `Ended` if the connection is over."""
        if self._h11.our_state is not h11.DONE or self._h11.their_state is not h11.DONE:
            return [Ended()]
        self._h11.start_next_cycle()
        self._head, self._body = None, bytearray()
        return self._events()

    def reply(self, status: int, headers: Headers, body: bytes, *, close: bool = False) -> bytes:
        """A whole reply. Replies to HEAD keep their headers and lose their body."""
        length = [] if status == 204 else [("Content-Length", str(len(body)))]
        return self.begin(status, [*headers, *length], close=close) + (self.part(body) if body else b"") + self.end()

    def begin(self, status: int, headers: Headers, *, close: bool = False) -> bytes:
        """The head of a reply whose parts follow: chunked for HTTP/1.1, until close for HTTP/1.0.

        close: nothing more is read from this connection; so it is after a refusal anyway.
        """
        self._bodiless = self._head is not None and self._head.method == b"HEAD"
        if close or self._broken:
            headers = [*headers, ("Connection", "close")]
        return self._h11.send(h11.Response(status_code=status, headers=headers, reason=_REASONS.get(status, ""))) or b""

    def part(self, data: bytes) -> bytes:
        """A part of the body."""
        return b"" if self._bodiless else self._h11.send(h11.Data(data=data)) or b""

    def end(self) -> bytes:
        """The end of the reply."""
        return self._h11.send(h11.EndOfMessage()) or b""

    def _events(self) -> list[HttpEvent]:
        events: list[HttpEvent] = []
        try:
            while (event := self._h11.next_event()) is not h11.NEED_DATA and event is not h11.PAUSED:
                events += self._translate(event)
                if self._broken or isinstance(event, (h11.EndOfMessage, h11.ConnectionClosed)):
                    break  # what follows the request waits for its reply
        except (h11.RemoteProtocolError, ValueError) as error:  # ValueError: a Content-Length of thousands of digits
            events.append(self._refuse(getattr(error, "error_status_hint", 400), str(error)))
        return events

    def _translate(self, event: object) -> list[HttpEvent]:
        if isinstance(event, h11.Request):
            self._head = event
            return self._read_target(event) or self._check_head(event)
        if isinstance(event, h11.Data):
            self._body += event.data
            return [self._too_large()] if len(self._body) > self._max_body else []
        if isinstance(event, h11.EndOfMessage):
            return [self._request()]
        assert isinstance(event, h11.ConnectionClosed)
        return [Ended()]

    def _read_target(self, head: h11.Request) -> list[HttpEvent]:
        """Learn what is asked, and so how large its body may be."""
        target = head.target.decode("latin-1")
        self._path, raw = target, ""
        if target != "*":
            try:
                parts = urlsplit(target)
                self._path, raw = unquote(parts.path), parts.query
            except ValueError:  # such as http://[::1 with no closing bracket
                pass
        headers = dict(head.headers)
        length = None if b"transfer-encoding" in headers else int(headers.get(b"content-length", 0))
        self._max_body, self._setting = self._limit(head.method.decode("latin-1"), self._path, length)
        try:
            self._query = parse_query(raw)
        except BadQuery as error:
            return [self._refuse(400, str(error), error.param)]
        return []

    def _check_head(self, head: h11.Request) -> list[HttpEvent]:
        """Refuse from the head alone what would be refused after the body."""
        for name, value in head.headers:
            text = value.decode("latin-1")
            if name == b"content-length" and int(value) > self._max_body:
                return [self._too_large()]
            if name == b"content-encoding" and text.lower() != "identity":
                return [self._refuse(415, f"Content-Encoding {text!r} is not supported: send the body plain")]
            if name == b"expect" and text.lower() != "100-continue":
                return [self._refuse(417, f"Expect {text!r} is not supported")]
        if self._h11.they_are_waiting_for_100_continue:
            interim = h11.InformationalResponse(status_code=100, headers=[], reason="Continue")
            return [Interim(self._h11.send(interim) or b"")]
        return []

    def _too_large(self) -> Refused:
        return self._refuse(413, f"the request body is larger than {self._max_body} bytes ({self._setting})")

    def _refuse(self, status: int, message: str, param: str | None = None) -> Refused:
        self._broken = True
        return Refused(status, message, param)

    def _request(self) -> HttpRequest:
        assert self._head is not None
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in self._head.headers}
        body, self._body = bytes(self._body), bytearray()  # large ones are not kept twice
        return HttpRequest(self._head.method.decode("latin-1"), self._path, headers, body, self._query)


class BadQuery(ValueError):
    """A query that cannot be read one way only. `param`: the parameter at fault, if it has a name."""

    def __init__(self, message: str, param: str | None) -> None:
        super().__init__(message)
        self.param = param


def parse_query(raw: str) -> dict[str, str]:
    """`a=b+c&d=%C3%A9` -> {"a": "b c", "d": "é"}; a name alone has the value "". Raises BadQuery."""
    found: dict[str, str] = {}
    for pair in filter(None, raw.split("&")):
        shown = pair.partition("=")[0][:80]
        try:
            name, value = map(_unescape, pair.partition("=")[::2])
        except ValueError:
            raise BadQuery(f"the query parameter {shown!a} is not UTF-8 in percent escapes", shown) from None
        if not name:
            raise BadQuery(f"the query has a value without a name: {pair[:80]!a}", None)
        if name in found:
            raise BadQuery(f"the query parameter {name[:80]!a} is given twice", name[:80])
        found[name] = value
    return found


def _unescape(text: str) -> str:
    if _BAD_ESCAPE.search(text):
        raise ValueError(text)
    return unquote_to_bytes(text.replace("+", " ")).decode("utf-8")
