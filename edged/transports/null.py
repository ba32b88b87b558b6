"""A transport with nothing behind it: a test feeds a `Stream` by hand and reads what it wrote.

    client = connect(serve)          # in a running loop
    client.send(b"GET / ...")
    client.received                  # bytes the server wrote
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from edged.transports.stream import Stream


class NullClient(asyncio.Transport):
    """The far end and the wire between. `reading` False: the client takes nothing, so the server's buffer fills."""

    def __init__(self, stream: Stream) -> None:
        super().__init__()
        self.stream = stream
        self.received = bytearray()
        self.waiting = bytearray()
        self.reading = True
        self.closed = asyncio.Event()
        self._high = 64 * 1024

    def send(self, data: bytes) -> None:
        """Bytes from the client to the server."""
        self.stream.data_received(data)

    def leave(self) -> None:
        """The client closes both halves."""
        if not self.stream.eof_received():
            self.close()

    def read_all(self) -> None:
        """The client starts to read: what waited is received."""
        self.reading = True
        self.received += self.waiting
        self.waiting.clear()
        self.stream.resume_writing()

    # the transport that the stream writes to

    def write(self, data: Any) -> None:
        if self.reading:
            self.received += data
            return
        self.waiting += data
        if len(self.waiting) > self._high:
            self.stream.pause_writing()

    def write_eof(self) -> None:
        """Nothing to do: the end is seen by `closed`."""

    def close(self) -> None:
        self.abort()

    def abort(self) -> None:
        if not self.closed.is_set():
            self.closed.set()
            asyncio.get_running_loop().call_soon(self.stream.connection_lost, None)

    def is_closing(self) -> bool:
        return self.closed.is_set()

    def pause_reading(self) -> None:
        """Nothing to do: the test decides what it sends."""

    def resume_reading(self) -> None:
        """Nothing to do: the test decides what it sends."""

    def get_write_buffer_size(self) -> int:
        return len(self.waiting)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = high if high is not None else self._high


def connect(serve: Callable[[Stream], Awaitable[None]], write_timeout: float = 30.0) -> NullClient:
    """A client that has just connected."""
    stream = Stream(serve, write_timeout)
    client = NullClient(stream)
    stream.connection_made(client)
    return client
