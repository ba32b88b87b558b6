"""The protocol of sd_notify(3): what the daemon tells systemd, without a library.

Each message is one datagram to NOTIFY_SOCKET. An unset variable or a dead socket is harmless. The variables are removed
from the environment, so that children do not speak in the daemon's name.
"""

from __future__ import annotations

import os
import socket
from collections.abc import MutableMapping
from contextlib import suppress


class Notifier:
    """`watchdog_interval`: seconds within which `alive()` must be called, None if no watchdog waits."""

    def __init__(self, environ: MutableMapping[str, str]) -> None:
        path = environ.pop("NOTIFY_SOCKET", "")
        interval, pid = environ.pop("WATCHDOG_USEC", ""), environ.pop("WATCHDOG_PID", "")
        watched = interval.isdecimal() and int(interval) > 0 and pid in ("", str(os.getpid()))
        self.watchdog_interval = int(interval) / 1e6 if watched else None
        # a leading @ stands for the NUL byte of an abstract address, unix(7)
        self._address = "\0" + path[1:] if path.startswith("@") else path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) if path else None

    def status(self, text: str) -> None:
        """A line for `systemctl status`."""
        self._send(f"STATUS={text}")

    def extend(self, seconds: float) -> None:
        """Still starting (or stopping): wait at least so much longer."""
        self._send(f"EXTEND_TIMEOUT_USEC={int(seconds * 1e6)}")

    def ready(self) -> None:
        """Start-up is complete."""
        self._send("READY=1")

    def alive(self) -> None:
        """The work makes progress."""
        self._send("WATCHDOG=1")

    def stopping(self) -> None:
        """The daemon has begun to stop."""
        self._send("STOPPING=1")

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _send(self, message: str) -> None:
        if self._socket is not None:
            with suppress(OSError):
                self._socket.sendto(message.encode(), socket.MSG_DONTWAIT, self._address)
