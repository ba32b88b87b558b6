"""A serial port over a pty: lost and found again, held for one program, and never stuck in a write."""

from __future__ import annotations

import asyncio
import os
import tty
from collections.abc import Callable
from pathlib import Path

import serial

from edged.transports.serial import SerialPort

PATIENCE = 20.0


async def until(condition: Callable[[], bool]) -> None:
    async def wait() -> None:
        while not condition():
            await asyncio.sleep(0.005)

    await asyncio.wait_for(wait(), PATIENCE)


def make_line(link: Path) -> int:
    """A pty under a stable name, as udev gives one to an adapter; returns the far end."""
    far, near = os.openpty()
    tty.setraw(near)
    link.unlink(missing_ok=True)
    link.symlink_to(os.ttyname(near))
    os.close(near)
    return far


def test_H01_an_unplugged_port_is_opened_again(tmp_path: Path) -> None:
    async def main() -> None:
        got, losses = bytearray(), []
        port = SerialPort(str(tmp_path / "port"), lambda data, now: got.extend(data), lost=lambda: losses.append(1))
        running = asyncio.ensure_future(port.run())
        await until(lambda: port.state == "disconnected")  # there is none yet
        for turn in range(1, 3):
            far = make_line(tmp_path / "port")
            await until(lambda: port.state == "open")
            os.write(far, b"half")
            await until(lambda: got.endswith(b"half"))
            assert await port.write(b"answer")
            assert os.read(far, 100) == b"answer"
            os.close(far)
            await until(lambda: len(losses) == turn)  # noqa: B023
            got.clear()
            assert not await port.write(b"lost")
        running.cancel()
        await asyncio.wait([running])
        assert port.state == "closed"

    asyncio.run(main())


def test_H02_a_reply_nobody_takes_is_dropped_and_the_port_stays_usable(tmp_path: Path) -> None:
    async def main() -> None:
        far = make_line(tmp_path / "port")
        got = bytearray()
        port = SerialPort(str(tmp_path / "port"), lambda data, now: got.extend(data), write_timeout=0.1)
        running = asyncio.ensure_future(port.run())
        await until(lambda: port.state == "open")
        assert not await port.write(b"x" * 100_000)
        os.set_blocking(far, False)
        while True:
            try:
                os.read(far, 65536)
            except BlockingIOError:
                break
        os.write(far, b"next")
        await until(lambda: got == b"next")
        assert await port.write(b"answer")
        assert os.read(far, 100) == b"answer"
        running.cancel()
        await asyncio.wait([running])
        os.close(far)

    asyncio.run(main())


def test_H04_a_port_in_use_is_not_shared(tmp_path: Path) -> None:
    async def main() -> None:
        far = make_line(tmp_path / "port")
        with serial.Serial(str(tmp_path / "port"), exclusive=True):
            port = SerialPort(str(tmp_path / "port"), lambda data, now: None)
            running = asyncio.ensure_future(port.run())
            await until(lambda: port.state == "disconnected")
        await until(lambda: port.state == "open")
        running.cancel()
        await asyncio.wait([running])
        os.close(far)

    asyncio.run(main())
