"""What `make demo` runs: start the daemon, ask it one question over its Unix socket, show the answer and the figures.

Uses the standard library only. The daemon is a child on a socket in a temporary folder, and is stopped at the end.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

MODEL = "smollm2-135m-instruct"
QUESTION = "Why does a voltage divider need two resistors?"
EDGED = [sys.executable, "-m", "edged.cli.main"]


class UnixConnection(http.client.HTTPConnection):
    """HTTP over the Unix socket at `path`."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=120)
        self.path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(self.path)


def main() -> None:
    subprocess.run([*EDGED, "pull", MODEL], check=True)
    with tempfile.TemporaryDirectory(prefix="edged-demo-") as folder:
        path = os.path.join(folder, "edged.sock")
        started = time.monotonic()
        daemon = subprocess.Popen([*EDGED, "serve", "--model", MODEL, "--socket", path])
        try:
            wait_ready(daemon, path)
            ready = time.monotonic() - started
            print(f"\n> {QUESTION}")
            first, rate, tokens = ask(path)
            print(f"\nready after {ready:.2f} s; first token after {1000 * first:.0f} ms")
            print(f"{tokens} tokens at {rate:.0f} tok/s")
            print(f"memory beside the model {own_bytes(daemon.pid) / 1e6:.0f} MB")
        finally:
            daemon.send_signal(signal.SIGTERM)
            code = daemon.wait(30)
    if code:
        raise SystemExit(f"the daemon ended with exit code {code}")


def wait_ready(daemon: subprocess.Popen, path: str) -> None:
    """Return once /health answers 200; SystemExit if the daemon ends before, or is not ready after a minute."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if daemon.poll() is not None:
            raise SystemExit(f"the daemon ended with exit code {daemon.returncode}")
        connection = UnixConnection(path)
        try:
            connection.request("GET", "/health")
            if connection.getresponse().status == 200:
                return
        except OSError:
            pass  # not listening yet
        finally:
            connection.close()
        time.sleep(0.005)
    raise SystemExit("the daemon was not ready after 60 s")


def ask(path: str) -> tuple[float, float, int]:
    """Stream one answer to stdout. Returns seconds to the first token, tokens per second after it, and tokens."""
    body = {
        "messages": [{"role": "user", "content": QUESTION}],
        "max_tokens": 120,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    connection = UnixConnection(path)
    asked = time.monotonic()
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    if response.status != 200:
        raise SystemExit(f"{response.status}: {response.read().decode()}")
    first = last = asked
    tokens = 0
    for line in response:
        if not line.startswith(b"data: {"):
            continue
        event = json.loads(line[len(b"data: ") :])
        text = "".join(choice["delta"].get("content") or "" for choice in event["choices"])
        if text:
            last = time.monotonic()
            first = last if first == asked else first
            print(text, end="", flush=True)
        if event.get("usage"):
            tokens = event["usage"]["completion_tokens"]
    connection.close()
    print()
    return first - asked, (tokens - 1) / (last - first), tokens


def own_bytes(pid: int) -> int:
    """Memory the process has written: neither the mapped model nor its programs, which the page cache holds."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith("Private_Dirty"))


if __name__ == "__main__":
    main()
