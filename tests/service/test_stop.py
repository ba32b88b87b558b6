"""G08 with real signals and real processes: exit 0, no file left, whatever is going on."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.service.running import PATIENCE, request_bytes, until

CHECKOUT = Path(__file__).resolve().parents[2]
STREAM = request_bytes("/v1/completions", {"prompt": "x", "stream": True})
STOP_WITHIN = 5.0
UNREAD = "an answer that nobody reads"
RUNNING, BLOCKED = b"\nedged_running 1\n", b"\nedged_cancelled_total 1\n"


@contextmanager
def started(script: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A ready daemon process and the path of its socket."""
    with tempfile.TemporaryDirectory(prefix="edged-") as folder:
        path = f"{folder}/s"
        process = subprocess.Popen([sys.executable, "-m", "tests.service.stub_daemon", path, script], cwd=CHECKOUT,
                                   stderr=subprocess.PIPE, text=True)
        try:
            until(lambda: process.poll() is not None or is_ready(path))
            assert process.poll() is None, process.communicate()[1]
            yield process, path
        finally:
            process.kill()
            process.communicate()


def is_ready(path: str) -> bool:
    try:
        with connect(path) as client:
            client.sendall(b"GET /health HTTP/1.1\r\nHost: e\r\nConnection: close\r\n\r\n")
            return b" 200 " in client.recv(1000)
    except OSError:
        return False


def connect(path: str) -> socket.socket:
    client = socket.socket(socket.AF_UNIX)
    client.settimeout(PATIENCE)
    client.connect(path)
    return client


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("doing", ["nothing", "prefill", "decode", UNREAD])
def test_g08_signal(doing: str, number: int) -> None:
    with started({"prefill": "held", "decode": "endless"}.get(doing, "fast")) as (process, path):
        client = connect(path)
        if doing != "nothing":
            client.sendall(STREAM)
            until(lambda: (BLOCKED if doing == UNREAD else RUNNING) in metrics(path))
        if doing == "decode":
            while b'"text":"A' not in client.recv(65536):
                pass
        process.send_signal(number)
        assert process.wait(STOP_WITHIN) == 0
        assert not os.path.lexists(path)
        client.close()


def metrics(path: str) -> bytes:
    with connect(path) as client:
        client.sendall(b"GET /metrics HTTP/1.1\r\nHost: e\r\nConnection: close\r\n\r\n")
        return b"".join(iter(lambda: client.recv(65536), b""))


def test_g08_second_signal_is_immediate() -> None:
    """The first waits for a client that does not read; the second does not."""
    with started("fast") as (process, path):
        client = connect(path)
        client.sendall(STREAM)
        until(lambda: BLOCKED in metrics(path))
        process.send_signal(signal.SIGTERM)
        until(lambda: not os.path.lexists(path))
        process.send_signal(signal.SIGTERM)
        assert process.wait(STOP_WITHIN) == 0
        client.close()


def test_g07_killed_daemon_leaves_its_place() -> None:
    with tempfile.TemporaryDirectory(prefix="edged-") as folder:
        path = f"{folder}/s"
        command = [sys.executable, "-m", "tests.service.stub_daemon", path, "endless"]
        for _ in range(2):
            process = subprocess.Popen(command, cwd=CHECKOUT, stderr=subprocess.DEVNULL)
            until(lambda: is_ready(path))
            process.kill()
            process.wait()
            assert os.path.lexists(path)
