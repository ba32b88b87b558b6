"""Private memory of a daemon with context 8192 after one request of 2000 tokens.

From smaps: what no other process shares, without the mapping of the model file itself, which is page cache, and less
the KV blocks in use, which are the request's.
"""

from __future__ import annotations

import random
import re
from pathlib import Path

from tests.bench.daemon import edged, xllamacpp
from tests.bench.report import Report, Result

CONTEXT, N_PROMPT = 8192, 2000


def run(report: Report, model: str, path: Path, threads: int, rounds: int) -> None:
    """Adds `memory`, in MB. llama.cpp says nothing of KV in use: its whole cache is in its figure."""
    chance = random.Random(0)
    body = {"prompt": [chance.randrange(100, 40_000) for _ in range(N_PROMPT)], "max_tokens": 1, "temperature": 0}
    with xllamacpp(path, threads, CONTEXT, 1) as daemon:
        daemon.post("/v1/completions", body)
        report.add(Result("memory", model, daemon.name, "MB", (private_bytes(daemon.pid, path) / 1e6,)))
    with edged(path, threads, "--context", str(CONTEXT)) as daemon:
        before = private_bytes(daemon.pid, path) / 1e6
        daemon.post("/v1/completions", body)
        private = private_bytes(daemon.pid, path) / 1e6
        figures = dict(line.split() for line in daemon.get("/metrics")[1].decode().splitlines() if line[0] != "#")
        kv = float(figures["edged_kv_bytes_used"]) / 1e6
        more = {"private": private, "KV in use": kv, "private before": before}
        report.add(Result("memory", model, daemon.name, "MB", (private - kv,), "60 MB", more))


def private_bytes(pid: int, model: Path) -> int:
    """Private bytes of all mappings but the model's."""
    total, counted = 0, True
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            counted = not line.endswith(str(model.resolve()))
        elif counted and line.startswith("Private_"):
            total += 1024 * int(line.split()[1])
    return total
