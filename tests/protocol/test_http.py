"""HTTP without I/O: every case whole, byte by byte, and with bytes of a next request behind it."""

from __future__ import annotations

from urllib.parse import urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edged.protocol.http import (
    MAX_HEAD,
    BadQuery,
    Ended,
    HttpConnection,
    HttpEvent,
    HttpRequest,
    Interim,
    Refused,
    parse_query,
)

MAX_BODY = 100
CONTINUE = Interim(b"HTTP/1.1 100 Continue\r\n\r\n")


def limit(method: str, path: str, length: int | None) -> tuple[int, str]:
    """What the bodies of this file are measured by."""
    return (1000, "large.limit") if (method, path) == ("POST", "/large one") else (MAX_BODY, "small.limit")


def feed(data: bytes, size: int = 0) -> tuple[HttpConnection, list[HttpEvent]]:
    """A connection and its events after `data` in pieces of `size`; 0: at once."""
    http = HttpConnection(limit)
    events: list[HttpEvent] = []
    for start in range(0, len(data), size or len(data)):
        events += http.feed(data[start : start + (size or len(data))])
    return http, events


def get(path: str, query: dict[str, str] | None = None, **headers: str) -> HttpRequest:
    return HttpRequest("GET", path, {"host": "e", **headers}, b"", query or {})


ACCEPTED = {
    "get": (b"GET /health HTTP/1.1\r\nHost: e\r\n\r\n", [get("/health")]),
    "query and escapes": (b"GET /v1/models/a%20b?x=1 HTTP/1.1\r\nHost: e\r\n\r\n", [get("/v1/models/a b", {"x": "1"})]),
    "query": (b"GET /a?name=Pump+3%20%C3%BC%2B.pdf&&flag&empty=&x=a=b& HTTP/1.1\r\nHost: e\r\n\r\n",
              [get("/a", {"name": "Pump 3 \xfc+.pdf", "flag": "", "empty": "", "x": "a=b"})]),
    "absolute target": (b"GET http://any/health?x HTTP/1.1\r\nHost: e\r\n\r\n", [get("/health", {"x": ""})]),
    "odd host": (b"GET / HTTP/1.1\r\nHost: %2Frun%2Fedged.sock\r\n\r\n",
                 [HttpRequest("GET", "/", {"host": "%2Frun%2Fedged.sock"})]),
    "empty host": (b"GET / HTTP/1.1\r\nHost:\r\n\r\n", [HttpRequest("GET", "/", {"host": ""})]),
    "options": (b"OPTIONS * HTTP/1.1\r\nHost: e\r\n\r\n", [HttpRequest("OPTIONS", "*", {"host": "e"})]),
    "http 1.0": (b"GET / HTTP/1.0\r\n\r\n", [HttpRequest("GET", "/", {})]),
    "length": (b"POST / HTTP/1.1\r\nHost: e\r\nContent-Length: 3\r\n\r\nabc",
               [HttpRequest("POST", "/", {"host": "e", "content-length": "3"}, b"abc")]),
    "largest": (b"POST / HTTP/1.1\r\nHost: e\r\nContent-Length: 100\r\n\r\n" + b"a" * 100,
                [HttpRequest("POST", "/", {"host": "e", "content-length": "100"}, b"a" * 100)]),
    "largest of a path": (b"POST /large%20one?x=y HTTP/1.1\r\nHost: e\r\nContent-Length: 1000\r\n\r\n" + b"a" * 1000,
                          [HttpRequest("POST", "/large one", {"host": "e", "content-length": "1000"}, b"a" * 1000,
                                       {"x": "y"})]),
    "chunked": (b"POST / HTTP/1.1\r\nHost: e\r\nTransfer-Encoding: chunked\r\n\r\n"
                b"2\r\nab\r\n1;x=y\r\nc\r\n0\r\nT: t\r\n\r\n",
                [HttpRequest("POST", "/", {"host": "e", "transfer-encoding": "chunked"}, b"abc")]),
    "head": (b"HEAD /health HTTP/1.1\r\nHost: e\r\n\r\n", [HttpRequest("HEAD", "/health", {"host": "e"})]),
    "broken authority": (b"GET http://[::1/ HTTP/1.1\r\nHost: e\r\n\r\n", [get("http://[::1/")]),
}

HEAD = b"POST / HTTP/1.1\r\nHost: e\r\n"
REFUSED = {
    "no http": (b"\x00\xff\xfe\r\n\r\n", 400),
    "no version": (b"GET /\r\n\r\n", 400),
    "no host": (b"GET / HTTP/1.1\r\n\r\n", 400),
    "two hosts": (b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
    "space before colon": (b"GET / HTTP/1.1\r\nHost : e\r\n\r\n", 400),
    "two lengths": (HEAD + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nab", 400),
    "no number": (HEAD + b"Content-Length: -1\r\n\r\n", 400),
    "endless number": (HEAD + b"Content-Length: " + b"9" * 5000 + b"\r\n\r\n", 400),
    "bad chunk": (HEAD + b"Transfer-Encoding: chunked\r\n\r\nxyz\r\n", 400),
    "other coding": (HEAD + b"Transfer-Encoding: gzip\r\n\r\n", 501),
    "too long": (HEAD + b"Content-Length: 101\r\n\r\n", 413),
    "too long, told early": (HEAD + b"Content-Length: 101\r\nExpect: 100-continue\r\n\r\n", 413),
    "too many chunks": (HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + (b"32\r\n" + b"a" * 50 + b"\r\n") * 3, 413),
    "too long for its path": (b"POST /large%20one HTTP/1.1\r\nHost: e\r\nContent-Length: 1001\r\n\r\n", 413),
    "too long for another method": (b"PUT /large%20one HTTP/1.1\r\nHost: e\r\nContent-Length: 101\r\n\r\n", 413),
    "parameter twice": (b"GET /?a=1&b=2&%61=3 HTTP/1.1\r\nHost: e\r\n\r\n", 400),
    "parameter without a name": (b"GET /?=1 HTTP/1.1\r\nHost: e\r\n\r\n", 400),
    "bad escape": (b"GET /?a=%4 HTTP/1.1\r\nHost: e\r\n\r\n", 400),
    "escaped latin-1": (b"GET /?a=%FC HTTP/1.1\r\nHost: e\r\n\r\n", 400),
    "compressed": (HEAD + b"Content-Encoding: gzip\r\nContent-Length: 1\r\n\r\na", 415),
    "other expectation": (HEAD + b"Expect: miracles\r\nContent-Length: 1\r\n\r\na", 417),
    "long head": (b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * (MAX_HEAD // 6 + 1), 431),
    "long line": (b"G" * (MAX_HEAD + 1), 431),
}


@pytest.mark.parametrize("size", [0, 1])
@pytest.mark.parametrize("name", ACCEPTED)
def test_accepted(name: str, size: int) -> None:
    data, expected = ACCEPTED[name]
    assert feed(data, size)[1] == expected


@pytest.mark.parametrize("name", ACCEPTED)
def test_trailing_bytes_wait_for_the_reply(name: str) -> None:
    """A pipelined request comes out after the reply to the first, never before it and never mixed with it."""
    data, expected = ACCEPTED[name]
    http, events = feed(data + b"GET /next HTTP/1.1\r\nHost: e\r\n\r\nGET /third")
    assert events == expected
    http.reply(200, [], b"ok")
    followed = http.next_request()
    assert followed == ([Ended()] if name == "http 1.0" else [get("/next")])


@pytest.mark.parametrize("size", [0, 1])
@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str, size: int) -> None:
    """The status says why, the reply can be sent, and the connection is over."""
    data, status = REFUSED[name]
    http, events = feed(data, size)
    refusals = [event for event in events if not isinstance(event, Interim)]
    assert [type(event) for event in refusals] == [Refused]
    assert isinstance(refusals[0], Refused)
    assert refusals[0].status == status
    reply = http.reply(status, [], b"why")
    assert reply.startswith(b"HTTP/1.1 %d " % status) and reply.endswith(b"\r\n\r\nwhy")
    assert b"\r\nConnection: close\r\n" in reply
    assert http.next_request() == [Ended()]
    assert http.feed(b"GET / HTTP/1.1\r\nHost: e\r\n\r\n") == []


@pytest.mark.parametrize(("target", "message", "param"), [
    (b"/large%20one", "the request body is larger than 1000 bytes (large.limit)", None),
    (b"/large", "the request body is larger than 100 bytes (small.limit)", None),
    (b"/?a=1&b=2&%61=3", "the query parameter 'a' is given twice", "a"),
    (b"/?a=1&" + b"b" * 99 + b"=%zz", f"the query parameter '{'b' * 80}' is not UTF-8 in percent escapes", "b" * 80),
    (b"/?c%FC=1", "the query parameter 'c%FC' is not UTF-8 in percent escapes", "c%FC"),
    (b"/?a=1&=two", "the query has a value without a name: '=two'", None),
])  # fmt: skip
def test_refusals_of_the_head_say_why(target: bytes, message: str, param: str | None) -> None:
    _, events = feed(b"POST " + target + b" HTTP/1.1\r\nHost: e\r\nContent-Length: 1001\r\n\r\n")
    (refused,) = events
    assert isinstance(refused, Refused)
    assert (refused.message, refused.param) == (message, param)


@given(st.dictionaries(st.text(min_size=1), st.text()))
def test_query_as_forms_write_it(query: dict[str, str]) -> None:
    """What a form sends is read as it was, whatever characters it holds."""
    assert parse_query(urlencode(query)) == query


@given(st.text("ab=&%+01C3", max_size=30))
def test_any_query(raw: str) -> None:
    """Is read, or refused with BadQuery; never anything else, and never an empty name."""
    try:
        assert "" not in parse_query(raw)
    except BadQuery as error:
        assert raw and str(error)


def test_expect_continue() -> None:
    """The client is told to go on only when its head is acceptable."""
    http, events = feed(b"POST / HTTP/1.1\r\nHost: e\r\nExpect: 100-Continue\r\nContent-Length: 2\r\n\r\n")
    assert events == [CONTINUE]
    (request,) = http.feed(b"ab")
    assert isinstance(request, HttpRequest)
    assert request.body == b"ab"


def test_keep_alive_and_pipelining() -> None:
    http, events = feed(b"GET /1 HTTP/1.1\r\nHost: e\r\n\r\nGET /2 HTTP/1.1\r\nHost: e\r\nConnection: close\r\n\r\nGET")
    assert events == [get("/1")]
    assert http.reply(200, [("A", "b")], b"one") == b"HTTP/1.1 200 OK\r\nA: b\r\nContent-Length: 3\r\n\r\none"
    assert http.next_request() == [get("/2", connection="close")]
    assert b"\r\nConnection: close\r\n" in http.reply(200, [], b"two")
    assert http.next_request() == [Ended()]


def test_bad_pipelined_request() -> None:
    http, _ = feed(b"GET /1 HTTP/1.1\r\nHost: e\r\n\r\n\x01\x02\r\n\r\n")
    http.reply(200, [], b"")
    (refused,) = http.next_request()
    assert isinstance(refused, Refused)


def test_stream_to_http_1_1_is_chunked() -> None:
    http, _ = feed(b"GET / HTTP/1.1\r\nHost: e\r\n\r\n")
    assert http.begin(200, []) == b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert http.part(b"data: 1\n\n") == b"9\r\ndata: 1\n\n\r\n"
    assert http.end() == b"0\r\n\r\n"
    assert http.next_request() == []


def test_stream_to_http_1_0_ends_by_close() -> None:
    http, _ = feed(b"GET / HTTP/1.0\r\n\r\n")
    assert http.begin(200, []) == b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"
    assert http.part(b"one") + http.end() == b"one"
    assert http.next_request() == [Ended()]


def test_head_has_no_body() -> None:
    http, _ = feed(b"HEAD / HTTP/1.1\r\nHost: e\r\n\r\n")
    assert http.reply(200, [], b"body") == b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n"
    assert http.next_request() == []


def test_no_content() -> None:
    http, _ = feed(b"OPTIONS / HTTP/1.1\r\nHost: e\r\n\r\n")
    assert http.reply(204, [], b"") == b"HTTP/1.1 204 No Content\r\n\r\n"


def test_idle_means_not_a_byte_of_a_request() -> None:
    http = HttpConnection(limit)
    assert http.idle
    http.feed(b"G")
    assert not http.idle
    http.feed(b"ET / HTTP/1.1\r\nHost: e\r\n\r\n")
    assert not http.idle
    http.reply(200, [], b"")
    http.next_request()
    assert http.idle


@pytest.mark.parametrize("sent", [b"", b"GET / HT", b"POST / HTTP/1.1\r\nHost: e\r\nContent-Length: 9\r\n\r\nabc"])
def test_end_of_input(sent: bytes) -> None:
    """Between requests it is the end; inside one it is a refusal, which nobody may be left to read."""
    http, _ = feed(sent) if sent else (HttpConnection(limit), [])
    (event,) = http.feed(b"")
    assert isinstance(event, Refused if sent else Ended)


@given(st.lists(st.binary(min_size=1, max_size=40), max_size=20))
def test_any_bytes(pieces: list[bytes]) -> None:
    """Gives events or asks for more; never raises."""
    http = HttpConnection(limit)
    for piece in [*pieces, b""]:
        for event in http.feed(piece):
            if isinstance(event, HttpRequest):
                http.reply(200, [], b"ok")
                http.next_request()
