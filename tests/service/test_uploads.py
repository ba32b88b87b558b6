"""Large bodies: how large, known from the head, and how slow, by a clock of the test."""

from __future__ import annotations

import asyncio
import time
import weakref
from types import SimpleNamespace
from typing import Any

import pytest

from edged.api.context import Context, Reply
from edged.config import RagConfig, ServerConfig
from edged.protocol.http import HttpRequest
from edged.service import http_server
from edged.service.http_server import PROGRESS, HttpServer
from edged.transports.null import NullClient, connect


class Clock:
    """Time as the server sees it: it passes when a test says so."""

    def __init__(self) -> None:
        self.now = 0.0
        self.gmtime = time.gmtime

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The server's clock; requests are answered with the size of their body."""
    async def answer(request: HttpRequest, context: Context) -> Reply:
        return Reply(200, f"{len(request.body)} bytes".encode())

    made = Clock()
    monkeypatch.setattr(http_server, "time", made)
    monkeypatch.setattr(http_server, "answer", answer)
    return made


async def settled() -> None:
    """Whatever can be done without waiting is done."""
    for _ in range(20):
        await asyncio.sleep(0)


def talk(conversation: Any) -> None:
    """Run conversation(client) with a client of a server that takes 1000 bytes, and documents of 500 000."""
    async def main() -> None:
        context: Any = SimpleNamespace(limits=ServerConfig(max_body=1000, header_timeout=10.0),
                                       rag=RagConfig(max_document=500_000))
        await conversation(connect(HttpServer(context).serve))

    asyncio.run(main())


def head(method: str, path: str, length: int) -> bytes:
    return f"{method} {path} HTTP/1.1\r\nHost: e\r\nContent-Length: {length}\r\n\r\n".encode()


@pytest.mark.parametrize(("method", "path", "length", "refusal"), [
    ("POST", "/v1/documents?name=a.pdf", 500_000, b""),
    ("POST", "/v1/documents?name=a.pdf", 500_001, b"500000 bytes (rag.max_document)"),
    ("POST", "/v1/documents/1", 1001, b"1000 bytes (server.max_body)"),
    ("PUT", "/v1/documents", 1001, b"1000 bytes (server.max_body)"),
    ("POST", "/v1/embeddings", 1001, b"1000 bytes (server.max_body)"),
    ("POST", "/v1/embeddings", 1000, b""),
])  # fmt: skip
@pytest.mark.usefixtures("clock")
def test_documents_have_a_limit_of_their_own(method: str, path: str, length: int, refusal: bytes) -> None:
    """Known from the head: not a byte of the body is waited for."""
    async def conversation(client: NullClient) -> None:
        client.send(head(method, path, length))
        await settled()
        assert bool(client.received) == bool(refusal)
        if refusal:
            assert client.received.startswith(b"HTTP/1.1 413 ")
        assert refusal in client.received
        for start in range(0, length, PROGRESS):
            client.send(b"x" * min(PROGRESS, length - start))
            await settled()
        assert refusal or client.received.endswith(b"%d bytes" % length)
        client.abort()

    talk(conversation)


def test_a_slow_upload_may_take_as_long_as_it_goes_on(clock: Clock) -> None:
    async def conversation(client: NullClient) -> None:
        client.send(head("POST", "/v1/documents", 5 * PROGRESS))
        for _ in range(5):
            await settled()
            clock.now += 9
            client.send(b"x" * PROGRESS)
        await settled()
        assert client.received.endswith(b"%d bytes" % (5 * PROGRESS))
        client.abort()

    talk(conversation)


def test_an_upload_that_stalls_is_dropped(clock: Clock) -> None:
    """Also one that goes on by a few bytes."""
    async def conversation(client: NullClient) -> None:
        client.send(head("POST", "/v1/documents", 5 * PROGRESS) + b"x" * PROGRESS)
        for size in (PROGRESS - 1, 0):
            await settled()
            assert not client.received
            clock.now += 6
            client.send(b"x" * size)
        while not client.received:
            await settled()
        assert client.received.startswith(b"HTTP/1.1 408 ")
        assert b"64 KiB of it, took longer than 10 seconds" in client.received
        client.abort()

    talk(conversation)


@pytest.mark.usefixtures("clock")
def test_documents_that_are_too_many_to_be_kept_are_refused_before_they_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until those before them are answered or their clients leave; other requests are not meant."""
    async def main() -> None:
        go = asyncio.Event()

        async def answer(request: HttpRequest, context: Context) -> Reply:
            await go.wait()
            return Reply(200, b"done")

        monkeypatch.setattr(http_server, "answer", answer)
        context: Any = SimpleNamespace(limits=ServerConfig(), rag=RagConfig(max_document=1000))
        server = HttpServer(context)

        async def sent(data: bytes) -> NullClient:
            client = connect(server.serve)
            client.send(data)
            await settled()
            return client

        document = head("POST", "/v1/documents?path=a.md", 900)
        whole, unknown = await sent(document + b"x" * 900), head("POST", "/v1/documents", 0).replace(
            b"Content-Length: 0", b"Transfer-Encoding: chunked")  # fmt: skip
        slow = await sent(unknown)
        for data in (document, unknown):
            refused = await sent(data)
            assert refused.received.startswith(b"HTTP/1.1 503 ") and b'"code":"busy"' in refused.received
            assert b"Retry-After: 5\r\n" in refused.received and b"2 documents of 1900 bytes" in refused.received
        small = await sent(head("POST", "/v1/documents", 100) + b"x" * 100)
        assert not small.received and not (await sent(head("POST", "/v1/ask", 900))).received
        slow.leave()
        await settled()
        taken = await sent(document + b"x" * 900)
        assert not taken.received
        go.set()
        await settled()
        for client in (whole, small, taken):
            assert client.received.endswith(b"done")
        assert not (await sent(document)).received and not (await sent(document)).received  # beside open connections

    asyncio.run(main())


def test_a_request_is_let_go_once_it_is_answered(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    """A connection that stays open may have sent a large body."""
    requests: list[weakref.ref[HttpRequest]] = []

    async def answer(request: HttpRequest, context: Context) -> Reply:
        requests.append(weakref.ref(request))
        return Reply(200, b"done")

    async def conversation(client: NullClient) -> None:
        client.send(head("POST", "/v1/documents", 4) + b"long")
        await settled()
        assert client.received.endswith(b"done") and requests[0]() is None
        client.abort()

    monkeypatch.setattr(http_server, "answer", answer)
    talk(conversation)
