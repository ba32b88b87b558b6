"""A daemon to measure from outside: edged on a Unix socket, or llama.cpp's server on a TCP port."""

from __future__ import annotations

import contextlib
import http.client
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edged.cli.client import UnixConnection

PEER = """
import sys, time
from tests.bench.workers import xllamacpp_server
server = xllamacpp_server(sys.argv[1], int(sys.argv[2]), context=int(sys.argv[3]), parallel=int(sys.argv[4]))
print(server.listening_address, flush=True)
sys.stdin.read()
"""


@dataclass
class Daemon:
    """A running server; `connect` opens a connection."""

    name: str
    pid: int
    connect: Callable[[], http.client.HTTPConnection]

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """One request on a connection of its own."""
        connection = self.connect()
        try:
            connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
            response = connection.getresponse()
            reply = response.read()
        finally:
            connection.close()
        if response.status != 200:
            raise SystemExit(f"{self.name}: HTTP {response.status}: {reply.decode()}")
        answer: dict[str, Any] = json.loads(reply)
        return answer

    def get(self, path: str) -> tuple[int, bytes]:
        """Status and body."""
        connection = self.connect()
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()


@contextlib.contextmanager
def edged(model: Path, threads: int, *flags: str) -> Iterator[Daemon]:
    """`edged serve`, ready."""
    with tempfile.TemporaryDirectory(prefix="edged-bench-") as folder:
        path = f"{folder}/edged.sock"
        command = [sys.executable, "-m", "edged.cli.main", "serve", "--model", str(model), "--socket", path]
        child = subprocess.Popen([*command, "--threads", str(threads), *flags], stderr=subprocess.DEVNULL)
        daemon = Daemon("edged", child.pid, lambda: UnixConnection(path))
        try:
            _wait(child, daemon)
            yield daemon
        finally:
            child.send_signal(signal.SIGTERM)
            child.wait(30)


@contextlib.contextmanager
def xllamacpp(model: Path, threads: int, context: int, parallel: int) -> Iterator[Daemon]:
    """llama.cpp's server, ready."""
    command = [sys.executable, "-c", PEER, str(model), str(threads), str(context), str(parallel)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                          text=True) as child:  # fmt: skip
        assert child.stdout is not None
        address = child.stdout.readline().strip().removeprefix("http://")
        daemon = Daemon("xllamacpp", child.pid, lambda: http.client.HTTPConnection(address))
        try:
            _wait(child, daemon)
            yield daemon
        finally:
            child.terminate()


def _wait(child: subprocess.Popen[Any], daemon: Daemon) -> None:
    """Until /health answers 200."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and child.poll() is None:
        with contextlib.suppress(Exception):
            if daemon.get("/health")[0] == 200:
                return
        time.sleep(0.02)
    raise SystemExit(f"{daemon.name} is not ready; exit code {child.poll()}")
