"""A real daemon in a process of its own: `with serving(folder, "--embedding-model", PATH) as socket: ...`"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from edged.cli import client
from edged.errors import EdgedError

CHECKOUT = Path(__file__).resolve().parents[2]
EDGED = [sys.executable, "-m", "edged.cli.main"]
PATIENCE = 60.0
"""Seconds until a test gives up; nothing is measured."""


@contextmanager
def serving(folder: Path, *args: str) -> Iterator[str]:
    """The socket of a daemon that is ready; it has to end well."""
    socket = str(folder / "s")
    daemon = subprocess.Popen([*EDGED, "serve", "--socket", socket, *args], env={**os.environ, "PYTHONPATH": CHECKOUT})
    try:
        deadline = time.monotonic() + PATIENCE
        while not _ready(socket):
            assert daemon.poll() is None and time.monotonic() < deadline, "the daemon does not start"
            time.sleep(0.05)
        yield socket
    finally:
        daemon.terminate()
        assert daemon.wait(PATIENCE) == 0


def _ready(socket: str) -> bool:
    try:
        return bool(client.fetch(socket, "GET", "/health")["status"] == "ok")
    except EdgedError:
        return False
