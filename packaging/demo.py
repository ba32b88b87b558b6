"""What `make demo` runs: start the daemon with two models, give it a manual, ask it, show answers, sources and figures.

The standard library, but for the manual, a PDF that is made here. The daemon is a child on a socket in a temporary
folder, and is stopped at the end.
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
from typing import Any

MODEL = "smollm2-135m-instruct"
EMBEDDING_MODEL = "all-minilm-l6-v2"
QUESTION = "Why does a voltage divider need two resistors?"
ABOUT_THE_MANUAL = (
    "What happens after five wrong PINs?",
    "What does the controller cost?",
)
EDGED = [sys.executable, "-m", "edged.cli.main"]
MAKE_PDF = Path(__file__).with_name("manual") / "make_pdf.py"


class UnixConnection(http.client.HTTPConnection):
    """HTTP over the Unix socket at `path`."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=120)
        self.path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(self.path)


def main() -> None:
    for model in (MODEL, EMBEDDING_MODEL):
        subprocess.run([*EDGED, "pull", model], check=True)
    with tempfile.TemporaryDirectory(prefix="edged-demo-") as folder:
        path = os.path.join(folder, "edged.sock")
        started = time.monotonic()
        models = ["--model", MODEL, "--embedding-model", EMBEDDING_MODEL]
        store = ["--store", os.path.join(folder, "manuals.db")]
        daemon = subprocess.Popen([*EDGED, "serve", *models, *store, "--socket", path])
        try:
            wait_ready(daemon, path)
            ready = time.monotonic() - started
            print(f"\n> {QUESTION}")
            first, rate, tokens = chat(path)
            manual = os.path.join(folder, "qv310.pdf")
            subprocess.run([sys.executable, MAKE_PDF, manual], check=True)
            ingested = ingest(path, manual)
            taken = [ask(path, question) for question in ABOUT_THE_MANUAL]
            own = own_bytes(daemon.pid)
        finally:
            daemon.send_signal(signal.SIGTERM)
            code = daemon.wait(30)
    if code:
        raise SystemExit(f"the daemon ended with exit code {code}")
    print(f"\nready after {ready:.2f} s; first token after {1000 * first:.0f} ms; {tokens} tokens at {rate:.0f} tok/s")
    print(f"manual: {ingested['pages']} pages, {ingested['chunks']} chunks, "
          f"{ingested['pages'] / ingested['seconds']:.1f} pages/s")  # fmt: skip
    print(f"questions about it: {', '.join(f'{1000 * seconds:.0f} ms' for seconds in taken)}")
    print(f"memory beside the models {own / 1e6:.0f} MB")


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


def post(path: str, target: str, body: dict[str, Any]) -> tuple[UnixConnection, http.client.HTTPResponse]:
    """The connection and the answer to a request, its body not yet read. SystemExit if it is refused."""
    connection = UnixConnection(path)
    connection.request("POST", target, json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    if response.status != 200:
        raise SystemExit(f"{response.status}: {response.read().decode()}")
    return connection, response


def chat(path: str) -> tuple[float, float, int]:
    """Stream one answer to stdout. Returns seconds to the first token, tokens per second after it, and tokens."""
    body = {
        "messages": [{"role": "user", "content": QUESTION}],
        "max_tokens": 60,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    asked = time.monotonic()
    connection, response = post(path, "/v1/chat/completions", body)
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


def ingest(path: str, manual: str) -> dict[str, Any]:
    """Have the daemon take the manual in; the report."""
    print(f"\n> edged ingest {os.path.basename(manual)}", flush=True)
    done = subprocess.run([*EDGED, "ingest", "--socket", path, "--product", "QV-310", "--json", manual],
                          stdout=subprocess.PIPE, text=True, check=True)  # fmt: skip
    report: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])["report"]
    print(f"{report['added']} document, {report['pages']} pages, {report['chunks']} chunks")
    return report


def ask(path: str, question: str) -> float:
    """Ask about the manual; print the answer and where it stands. Returns the seconds it took."""
    print(f"\n> {question}")
    asked = time.monotonic()
    connection, response = post(path, "/v1/ask", {"question": question})
    answer = json.loads(response.read())
    taken = time.monotonic() - asked
    connection.close()
    print(answer["answer"])
    for quote in answer["quotes"]:
        print(f"  [{quote['n']}] \"{' '.join(quote['text'].split())}\"")
        print(f"      {quote['document']['title']}, page {quote['page']}, {quote['section']}")
    return taken


def own_bytes(pid: int) -> int:
    """Memory the process has written: neither the mapped models nor its programs, which the page cache holds."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith("Private_Dirty"))


if __name__ == "__main__":
    main()
