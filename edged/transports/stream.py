"""A connected client as an asyncio protocol: bytes in, bytes out, bounded both ways, and told when the client leaves.

Each connection runs one coroutine in one task. Everything done for a client is done in that task, so when the client
leaves, the task is cancelled, and whatever it waits for (a place in the queue, the next token) is cancelled with it.

    read(patience) -> the next bytes, b"" when the client sends no more
    write(data)    -> returns when the client has taken enough of what came before; ends the connection if it does not
"""

from __future__ import annotations

import asyncio
import select
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress

READ_LIMIT = 256 * 1024
"""Bytes kept for a reader that is busy; then the kernel keeps them, then the client waits."""

WRITE_LIMIT = 64 * 1024
"""Bytes kept for a client that does not read; then the writer waits."""

HANG_UP_CHECK = 0.25
"""Seconds between looks at a client that closed its sending half, as `socat` does, or sends more than is read: no event
tells when it leaves."""


class Stream(asyncio.Protocol):
    """One client. `serve(stream)` is run as its task when it connects."""

    def __init__(self, serve: Callable[[Stream], Awaitable[None]], write_timeout: float) -> None:
        self._serve = serve
        self._write_timeout = write_timeout
        self._transport: asyncio.Transport | None = None
        self.task: asyncio.Task[None] | None = None
        self._received = bytearray()
        self._eof = False
        self._reader: asyncio.Future[None] | None = None
        self._writer: asyncio.Future[None] | None = None
        self._last_call: asyncio.TimerHandle | None = None
        self._watch: asyncio.TimerHandle | None = None
        self._paused = False
        self._blocked = False

    async def read(self, patience: float) -> bytes:
        """The next bytes, as many as have come; b"" when the client sends no more. Waits for `patience` seconds.

        Raises TimeoutError. Not done with asyncio.wait_for: before Python 3.12 that can swallow a cancellation.
        """
        assert self._transport is not None
        if not self._received and not self._eof:
            loop = asyncio.get_running_loop()
            self._reader = loop.create_future()
            timer = loop.call_later(patience, _wake, self._reader)
            try:
                await self._reader
            finally:
                timer.cancel()
            if not self._received and not self._eof:
                raise TimeoutError
        data = bytes(self._received)
        self._received.clear()
        self._paused = False
        self._transport.resume_reading()
        return data

    async def write(self, data: bytes) -> None:
        """Send bytes. Waits while the client leaves more than WRITE_LIMIT unread; after `write_timeout` it is dropped.

        A dropped client is like one that left: the task is cancelled.
        """
        assert self._transport is not None
        self._transport.write(data)
        if self._blocked:
            loop = asyncio.get_running_loop()
            drop = loop.call_later(self._write_timeout, self._transport.abort)
            self._writer = loop.create_future()
            try:
                await self._writer
            finally:
                drop.cancel()

    async def close(self, linger: float = 0.0) -> None:
        """Send what is left, then close. `linger`: seconds to take and forget bytes that the client is still sending.

        Without lingering, closing on a client that sends makes the kernel take back what it has not read yet.
        """
        assert self._transport is not None
        if linger and not self._eof:
            self._transport.write_eof()
            give_up = asyncio.get_running_loop().call_later(linger, self._transport.abort)
            with suppress(TimeoutError):
                while await self.read(linger):
                    pass
            give_up.cancel()
        self._transport.close()
        if self._transport.get_write_buffer_size():
            self._last_call = asyncio.get_running_loop().call_later(self._write_timeout, self._transport.abort)

    def abort(self) -> None:
        """Close at once; what is not sent is lost, and the task is cancelled."""
        if self._transport is not None:
            self._transport.abort()

    # what asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start the task."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.set_write_buffer_limits(high=WRITE_LIMIT)
        self.task = asyncio.ensure_future(self._run())

    def data_received(self, data: bytes) -> None:
        """Keep bytes for the reader; beyond READ_LIMIT leave them to the kernel."""
        assert self._transport is not None
        self._received += data
        if len(self._received) > READ_LIMIT:
            self._paused = True
            self._transport.pause_reading()  # from here on no event tells when the client leaves
            if self._watch is None:
                self._drop_if_gone()
        _wake(self._reader)

    def eof_received(self) -> bool:
        """True keeps the writing half open, for a client that has only closed its own."""
        self._eof = True
        _wake(self._reader)
        return self._watch is not None or not self._drop_if_gone()

    def connection_lost(self, error: Exception | None) -> None:
        """The client is gone: whatever is done for it ends."""
        self._eof = True
        if self._last_call is not None:
            self._last_call.cancel()
        if self.task is not None:
            self.task.cancel()

    def pause_writing(self) -> None:
        self._blocked = True

    def resume_writing(self) -> None:
        self._blocked = False
        _wake(self._writer)

    async def _run(self) -> None:
        try:
            await self._serve(self)
        finally:
            if self._transport is not None and not self._transport.is_closing():
                self._transport.abort()

    def _drop_if_gone(self) -> bool:
        """Whether a client that sends no more, or more than is read, has left; if it has not, looks again later."""
        assert self._transport is not None
        self._watch = None
        if not self._eof and not self._paused:
            return False
        peer = self._transport.get_extra_info("socket")
        if peer is None or self._transport.is_closing() or _hung_up(peer):
            self.abort()
            return True
        self._watch = asyncio.get_running_loop().call_later(HANG_UP_CHECK, self._drop_if_gone)
        return False


def _wake(waiter: asyncio.Future[None] | None) -> None:
    if waiter is not None and not waiter.done():
        waiter.set_result(None)


def _hung_up(peer: socket.socket) -> bool:
    poll = select.poll()
    poll.register(peer.fileno(), 0)  # POLLHUP and POLLERR are always reported
    return bool(poll.poll(0))
