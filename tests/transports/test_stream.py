"""Streams: bounded both ways, and everything done for a client ends when it leaves."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable

import pytest

from edged.transports import stream as stream_module
from edged.transports.null import NullClient, connect
from edged.transports.stream import READ_LIMIT, WRITE_LIMIT, Stream

PATIENCE = 20.0


def run(scene: Callable[[], Awaitable[None]]) -> None:
    """Play a scene in an event loop, not for ever."""

    async def bounded() -> None:
        await asyncio.wait_for(scene(), PATIENCE)

    asyncio.run(bounded())


async def settle() -> None:
    """Let everything run that can."""
    for _ in range(10):
        await asyncio.sleep(0)


def test_echo() -> None:
    async def echo(stream: Stream) -> None:
        while data := await stream.read(PATIENCE):
            await stream.write(data.upper())
        await stream.close()

    async def scene() -> None:
        client = connect(echo)
        for piece in (b"a", b"bc", b"def"):
            client.send(piece)
            await settle()
        assert client.received == b"ABCDEF"
        client.leave()
        await client.closed.wait()

    run(scene)


def test_read_gives_up() -> None:
    caught = []

    async def impatient(stream: Stream) -> None:
        try:
            await stream.read(0.0)
        except TimeoutError:
            caught.append(True)

    async def scene() -> None:
        await connect(impatient).closed.wait()
        assert caught

    run(scene)


def test_a_busy_reader_stops_the_client() -> None:
    """What is not read stays in the kernel once READ_LIMIT is reached, and flows again when it is read."""

    async def scene() -> None:
        paused = []
        go = asyncio.Event()

        async def busy(stream: Stream) -> None:
            await go.wait()
            await stream.read(PATIENCE)

        class Watched(NullClient):
            def pause_reading(self) -> None:
                paused.append(True)

            def resume_reading(self) -> None:
                paused.clear()

        stream = Stream(busy, PATIENCE)
        client = Watched(stream)
        stream.connection_made(client)
        client.send(b"x" * READ_LIMIT)
        assert not paused
        client.send(b"x")
        assert paused
        go.set()
        await settle()
        assert not paused

    run(scene)


def test_g04_a_writer_waits_for_a_client_that_does_not_read() -> None:
    async def scene() -> None:
        written = []

        async def chatty(stream: Stream) -> None:
            for i in range(100):
                await stream.write(b"x" * 4096)
                written.append(i)
            await stream.close()

        client = connect(chatty)
        client.reading = False
        await settle()
        assert len(written) * 4096 <= WRITE_LIMIT
        assert len(client.waiting) <= WRITE_LIMIT + 4096
        client.read_all()
        await client.closed.wait()
        assert len(client.received) == 100 * 4096

    run(scene)


def test_g04_a_client_that_never_reads_is_dropped() -> None:
    """Its task is cancelled, so what it had asked for stops."""

    async def scene() -> None:
        ended = asyncio.Event()

        async def chatty(stream: Stream) -> None:
            try:
                while True:
                    await stream.write(b"x" * 4096)
            except asyncio.CancelledError:
                ended.set()
                raise

        client = connect(chatty, write_timeout=0.01)
        client.reading = False
        await ended.wait()
        assert client.closed.is_set()

    run(scene)


def test_g01_the_task_is_cancelled_when_the_client_leaves() -> None:
    async def scene() -> None:
        ended = asyncio.Event()

        async def patient(stream: Stream) -> None:
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()

        client = connect(patient)
        await settle()
        client.leave()
        await ended.wait()

    run(scene)


def test_an_error_closes_the_connection() -> None:
    async def broken(stream: Stream) -> None:
        raise ValueError("a fault of the code that serves")

    async def scene() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
        client = connect(broken)
        await client.closed.wait()
        assert isinstance(client.stream.task, asyncio.Task)
        with pytest.raises(ValueError, match="fault"):
            await client.stream.task

    run(scene)


async def over_a_socket(serve: Callable[[Stream], Awaitable[None]]) -> socket.socket:
    """The client's end of a socket pair whose other end is served."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    await asyncio.get_running_loop().connect_accepted_socket(lambda: Stream(serve, PATIENCE), theirs)
    return ours


def test_a_client_that_closes_its_half_is_answered() -> None:
    async def late(stream: Stream) -> None:
        while await stream.read(PATIENCE):
            pass
        await asyncio.sleep(0.02)
        await stream.write(b"answer")
        await stream.close()

    async def scene() -> None:
        client = await over_a_socket(late)
        client.shutdown(socket.SHUT_WR)
        loop = asyncio.get_running_loop()
        assert await loop.sock_recv(client, 100) == b"answer"
        assert await loop.sock_recv(client, 100) == b""
        client.close()

    run(scene)


def test_g01_a_client_that_closes_its_half_and_then_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_module, "HANG_UP_CHECK", 0.01)

    async def scene() -> None:
        ended = asyncio.Event()

        async def patient(stream: Stream) -> None:
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()

        client = await over_a_socket(patient)
        client.shutdown(socket.SHUT_WR)
        await asyncio.sleep(0.05)
        assert not ended.is_set()
        client.close()
        await ended.wait()

    run(scene)


def test_lingering_lets_the_client_read_why() -> None:
    """Closing while the client still sends would take the answer back; lingering takes the rest first."""

    async def refuse(stream: Stream) -> None:
        await stream.read(PATIENCE)
        await stream.write(b"no")
        await stream.close(PATIENCE)

    async def scene() -> None:
        client = await over_a_socket(refuse)
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(client, b"x" * 2_000_000)
        assert await loop.sock_recv(client, 100) == b"no"
        client.close()

    run(scene)
