"""HTTP over a `Stream`: bytes -> protocol -> api -> protocol -> bytes, one coroutine for each connection."""

from __future__ import annotations

import asyncio
import gc
import logging
import time
from functools import partial

from edged.api.context import Context, Reply
from edged.api.errors import BadHttp
from edged.api.router import answer, error_reply
from edged.errors import Busy
from edged.protocol.http import Ended, HttpConnection, HttpEvent, HttpRequest, Interim, Refused
from edged.transports.stream import Stream

LINGER = 2.0
"""Seconds to let a refused client finish sending, so that it gets to read why."""

PROGRESS = 64 * 1024
"""Bytes of a request for which header_timeout counts anew: a large document may take long, a client that stalls not."""

LARGE = ("POST", "/v1/documents")
"""What takes bodies up to rag.max_document, and keeps them until they are in the store."""

UPLOADS = 2
"""Largest documents that are kept at a time, or more that are smaller; what comes beside them is refused."""

RETRY = 5
"""Seconds after which a document that was refused for others may be sent again."""

log = logging.getLogger(__name__)


class HttpServer:
    """Serves any number of connections; `serve` is what a `Stream` runs."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._limits = context.limits
        self._open: dict[Stream, bool] = {}  # whether it is answering
        self._uploads: dict[Stream, int] = {}  # bytes of its document
        self._stopping = False
        self.counters = {"connections_total": 0.0, "requests_total": 0.0, "errors_total": 0.0, "dropped_total": 0.0}

    @property
    def n_open(self) -> int:
        """Connections open now."""
        return len(self._open)

    async def serve(self, stream: Stream) -> None:
        """One connection, from its first byte to its last."""
        self.counters["connections_total"] += 1
        http = HttpConnection(partial(self._max_body, stream))
        if len(self._open) >= self._limits.max_connections:
            reason = f"{len(self._open)} connections are open, as many as server.max_connections allows"
            await self._refuse(stream, http, error_reply(Busy(reason)))
            return
        self._open[stream] = False
        try:
            await self._converse(stream, http)
        except Busy as error:
            await self._refuse(stream, http, error_reply(error))
        except asyncio.CancelledError:
            self.counters["dropped_total"] += self._open[stream]
            raise
        except Exception:
            log.exception("a connection failed")
            stream.abort()
        finally:
            del self._open[stream]
            if self._uploads.pop(stream, 0):
                # what a cancelled task leaves are cycles, and one of them holds the document
                asyncio.get_running_loop().call_later(1.0, gc.collect)

    async def stop(self, patience: float) -> None:
        """Close idle connections now, the others when they are answered, at the latest after `patience` seconds."""
        self._stopping = True
        for stream, answering in list(self._open.items()):
            if not answering:
                stream.abort()
        tasks = [stream.task for stream in self._open if stream.task is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=patience)
        for stream in list(self._open):
            stream.abort()

    async def _converse(self, stream: Stream, http: HttpConnection) -> None:
        events: list[HttpEvent] = []
        patience = self._limits.header_timeout
        while True:
            event = await self._next_event(stream, http, events, patience)
            if isinstance(event, HttpRequest):
                self._open[stream] = True
                await self._send(stream, http, await self._answer(event))
                self._open[stream] = False
                del event  # with its body
                self._uploads.pop(stream, None)
                events = http.next_request()
                if self._stopping:
                    events = [Ended()]
                patience = self._limits.idle_timeout
            elif isinstance(event, Refused):
                await self._refuse(stream, http, error_reply(BadHttp(event.message, event.status, event.param)))
                return
            elif isinstance(event, Ended):
                await stream.close()
                return

    async def _next_event(self, stream: Stream, http: HttpConnection, events: list[HttpEvent], patience: float
                          ) -> HttpEvent:
        """The next request, refusal or end. Waits `patience` for a first byte, then header_timeout for the rest, or for
        each PROGRESS bytes of it."""
        deadline, n_bytes = time.monotonic() + patience, 0
        while True:
            while events:
                event = events.pop(0)
                if not isinstance(event, Interim):
                    return event
                await stream.write(event.data)
            idle = http.idle
            try:
                data = await stream.read(deadline - time.monotonic())
            except TimeoutError:
                if idle:
                    return Ended()
                return Refused(408, f"the rest of the request, or {PROGRESS // 1024} KiB of it, took longer than "
                                    f"{self._limits.header_timeout:g} seconds (server.header_timeout)")
            n_bytes += len(data)
            if idle or n_bytes >= PROGRESS:
                deadline, n_bytes = time.monotonic() + self._limits.header_timeout, 0
            events += http.feed(data)

    def _max_body(self, stream: Stream, method: str, path: str, length: int | None) -> tuple[int, str]:
        """Raises Busy for a document beside too many others."""
        if (method, path) != LARGE:
            return self._limits.max_body, "server.max_body"
        most = self._context.rag.max_document
        size, held = most if length is None else length, sum(self._uploads.values())
        if size <= most:
            if held + size > UPLOADS * most:
                raise Busy(f"{len(self._uploads)} documents of {held} bytes are on their way into the store; "
                           f"{UPLOADS * most} bytes are taken at a time", retry_after=RETRY,
                           hint="send one document after the other, or raise rag.max_document")
            self._uploads[stream] = size
        return most, "rag.max_document"

    async def _answer(self, request: HttpRequest) -> Reply:
        self.counters["requests_total"] += 1
        reply = await answer(request, self._context)
        self.counters["errors_total"] += reply.status >= 400
        return reply

    async def _send(self, stream: Stream, http: HttpConnection, reply: Reply) -> None:
        headers = [("Date", _http_date()), *reply.headers]
        try:
            if reply.parts is None:
                await stream.write(http.reply(reply.status, headers, reply.body, close=self._stopping))
                return
            head = http.begin(reply.status, headers, close=self._stopping)
            async for part in reply.parts:
                await stream.write(head + http.part(part))
                head = b""
            await stream.write(head + http.end())
        finally:
            reply.cancel()

    async def _refuse(self, stream: Stream, http: HttpConnection, reply: Reply) -> None:
        """Answer what is no request, and close."""
        self.counters["errors_total"] += 1
        await stream.write(http.reply(reply.status, reply.headers, reply.body, close=True))
        await stream.close(LINGER)


def _http_date() -> str:
    """IMF-fixdate of RFC 9110 5.6.7; not strftime, whose names follow the locale."""
    now = time.gmtime()
    day = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")[now.tm_wday]
    month = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")[now.tm_mon - 1]
    return f"{day}, {now.tm_mday:02} {month} {now.tm_year} {now.tm_hour:02}:{now.tm_min:02}:{now.tm_sec:02} GMT"
