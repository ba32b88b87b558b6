"""A serial port on the event loop: bytes in, whole replies out, and again after the adapter was unplugged.

    port = SerialPort("/dev/serial/by-id/...", take=protocol_feed, baud=9600)
    await port.run()                  until cancelled: open, read, and reopen with growing pauses
    await port.write(b"OK 1 1/1 ...") True, or False if the port was lost or did not take it in time

A port is opened for one program alone: pyserial's `exclusive` is flock, which ends with the program. A
reply is handed to the kernel in one piece, so that a receiver which ends a message at a silence sees none inside it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import termios
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0
"""Seconds before a lost port is opened again: doubled at each failure."""

CHUNK = 4096

log = logging.getLogger(__name__)


class SerialPort:
    """One port. `take(bytes, seconds)` gets what comes, with the loop's clock; `lost()` is called when the port goes.

    `state`: "closed", "open" or "disconnected". write_timeout: seconds that a reply may take to leave.
    Settings beyond the speed (bytesize, parity, stopbits, rtscts, xonxoff) are pyserial's, by its names.
    """

    def __init__(self, path: str, take: Callable[[bytes, float], object], *, baud: int = 9600,
                 write_timeout: float = 5.0, lost: Callable[[], object] = lambda: None, **settings: Any) -> None:
        self.path = path
        self.state = "closed"
        self._take = take
        self._lost = lost
        self._write_timeout = write_timeout
        self._settings = {"baudrate": baud, **settings}
        self._serial: Any = None
        self._gone: asyncio.Event = asyncio.Event()
        self._writing = asyncio.Lock()

    async def run(self) -> None:
        """Serve the port until cancelled. A failure is logged once, however often opening fails after it."""
        pause, told = FIRST_PAUSE, ""
        try:
            while True:
                error = self._open()
                if error is None:
                    log.info("%s: open", self.path)
                    pause, told = FIRST_PAUSE, ""
                    await self._gone.wait()
                    self._close()
                    self._lost()
                    error = "the port is gone"
                if error != told:
                    log.warning("%s: %s; trying again", self.path, error)
                self.state, told = "disconnected", error
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
        finally:
            self._close()
            self.state = "closed"

    async def write(self, data: bytes) -> bool:
        """Hand over one reply. What is not taken within the timeout is dropped, and so is the kernel's queue."""
        async with self._writing:
            end = time.monotonic() + self._write_timeout
            while data and self._serial is not None:
                try:
                    data = data[os.write(self._serial.fileno(), data) :]
                except BlockingIOError:
                    pass
                except OSError:
                    self._gone.set()
                    return False
                if data:
                    if time.monotonic() >= end:
                        with suppress(termios.error):  # just unplugged
                            self._serial.reset_output_buffer()
                        log.warning("%s: %d bytes of a reply were not taken in %g s", self.path, len(data),
                                    self._write_timeout)  # fmt: skip
                        return False
                    await asyncio.sleep(0.002)
            return not data

    def _open(self) -> str | None:
        """What hindered it, None for success."""
        import serial

        try:
            opened = serial.Serial(self.path, timeout=0, exclusive=True, **self._settings)
        except (OSError, ValueError, termios.error) as error:  # SerialException is an OSError
            return "in use by another program" if "exclusively lock" in str(error) else str(error)
        os.set_blocking(opened.fileno(), False)
        self._serial, self.state = opened, "open"
        self._gone.clear()
        asyncio.get_running_loop().add_reader(opened.fileno(), self._read)
        return None

    def _read(self) -> None:
        try:
            data = os.read(self._serial.fileno(), CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self._take(data, asyncio.get_running_loop().time())
        else:  # readable and empty: hung up; the reader goes at once, or the loop would spin
            asyncio.get_running_loop().remove_reader(self._serial.fileno())
            self._gone.set()

    def _close(self) -> None:
        opened, self._serial = self._serial, None
        if opened is not None:
            asyncio.get_running_loop().remove_reader(opened.fileno())
            opened.close()
