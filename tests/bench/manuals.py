"""Questions about the demo manual through the daemon, an ingest, and a generation beside an ingest.

`extract` and `generate`: ms of one question over the socket, the median of the questions of the demo manual; `ingest`:
pages per second of the manual's PDF; `decode beside ingest`: decode speed while another copy of it is ingested, as a
share of decode alone; `both idle`: private memory with both models loaded, after the ingest and idle.
"""

from __future__ import annotations

import http.client
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from edged.store.catalogue import EMBEDDING
from edged.store.pull import pull
from tests.bench.daemon import Daemon, edged
from tests.bench.report import Report, Result

MANUAL = Path(__file__).resolve().parents[2] / "packaging" / "manual"
N_QUESTIONS = 20
N_TOKENS = 200
COPIES = 12  # of the manual, in one document, for an ingest that lasts


def run(report: Report, threads: int, rounds: int) -> None:
    """Adds the figures above, of SmolLM2 and MiniLM."""
    model = pull("smollm2-135m-instruct").path
    lines = (MANUAL / "qa.jsonl").read_text("utf-8").splitlines()
    questions = [row["question"] for row in map(json.loads, lines) if row["gold"]][:N_QUESTIONS]
    with tempfile.TemporaryDirectory(prefix="edged-bench-") as folder:
        subprocess.run([sys.executable, MANUAL / "make_pdf.py", f"{folder}/qv310.pdf"], check=True)
        pdf = Path(folder, "qv310.pdf").read_bytes()
        flags = ("--embedding-model", str(pull(EMBEDDING).path), "--store", f"{folder}/manuals.db")
        with edged(model, threads, *flags) as daemon:
            began = time.perf_counter()
            done = ingest(daemon, "qv310.pdf", pdf)
            rate = done["pages"] / (time.perf_counter() - began)
            report.add(Result("ingest", EMBEDDING, "edged", "p/s", (rate,), "", {"chunks": done["chunks"]}))
            time.sleep(1.0)
            report.add(Result("both idle", "smollm2 + minilm", "edged", "MB", (private_dirty(daemon.pid) / 1e6,),
                              "60 MB"))  # fmt: skip
            for mode, target in (("extract", "60 ms"), ("generate", "800 ms")):
                times = [ask(daemon, question, mode) for question in questions for _ in range(min(rounds, 3))]
                report.add(Result(f"ask {mode}", "smollm2 + minilm", "edged", "ms", tuple(times), target))
            beside(report, daemon, rounds)


def beside(report: Report, daemon: Daemon, rounds: int) -> None:
    """Decode alone and while a long document is ingested, in turns."""
    text = (MANUAL / "controller.md").read_text("utf-8")
    shares, alone, together = [], [], []
    for i in range(rounds):
        before = decode(daemon)
        # no two copies are equal, so that each chunk is embedded
        long = "\n\n".join(text.replace("QV-310", f"QV-{i}{n:03}") for n in range(COPIES)).encode()
        over = threading.Event()

        def work(name: str = f"long{i}.md", body: bytes = long, over: threading.Event = over) -> None:
            ingest(daemon, name, body)
            over.set()

        thread = threading.Thread(target=work)
        thread.start()
        time.sleep(1.5)  # it has been read
        speed = decode(daemon)
        assert not over.is_set(), "the ingest was over before the generation"
        thread.join()
        alone.append(before)
        together.append(speed)
        shares.append(100 * speed / before)
    more = {"alone tok/s": statistics.median(alone), "beside tok/s": statistics.median(together)}
    report.add(Result("decode beside", "smollm2 + minilm", "edged", "%", tuple(shares), "70 %", more))


def ask(daemon: Daemon, question: str, mode: str) -> float:
    """ms from the request to the whole answer."""
    began = time.perf_counter()
    daemon.post("/v1/ask", {"question": question, "answer": mode})
    return 1000 * (time.perf_counter() - began)


def decode(daemon: Daemon) -> float:
    """Tokens per second after the first, as a client sees them."""
    connection = daemon.connect()
    body = {"prompt": "The three laws of motion are", "max_tokens": N_TOKENS, "temperature": 0, "stream": True,
            "ignore_eos": True}  # fmt: skip
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    times = [time.perf_counter() for line in response if line.startswith(b"data: {")]
    connection.close()
    return (N_TOKENS - 1) / (times[-1] - times[0])


def ingest(daemon: Daemon, name: str, body: bytes) -> dict[str, Any]:
    """What the daemon says of the document in the end."""
    connection: http.client.HTTPConnection = daemon.connect()
    connection.request("POST", f"/v1/documents?path=/bench/{name}", body)
    response = connection.getresponse()
    last: dict[str, Any] = {}
    for line in response:
        if line.startswith(b"data: {"):
            last = json.loads(line[len(b"data: ") :])
    connection.close()
    if last.get("document", {}).get("outcome") != "added":
        raise SystemExit(f"{response.status}: {last}")
    found: dict[str, Any] = last["document"]
    return found


def private_dirty(pid: int) -> int:
    """Memory that the process has written: neither models nor programs, which the page cache holds."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith("Private_Dirty"))
