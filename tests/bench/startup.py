"""From exec to the first byte of the answer, with the model in the page cache."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from tests.bench.report import Report

RUNS = 11
TARGETS = {"smollm2-135m-instruct": "250 ms", "gemma3-270m": "450 ms"}
PEER = """
import os, sys
from tests.bench.workers import xllamacpp_server
server = xllamacpp_server(sys.argv[1], int(sys.argv[2]), context=8192, parallel=1)
reply = server.handle_chat_completions({"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1})
os.write(1, (reply["choices"][0]["message"]["content"] or " ").encode())
os._exit(0)
"""


def run(report: Report, model: str, path: Path, threads: int, rounds: int) -> None:
    """Adds `startup`. The package is installed or run from its checkout, byte-compiled by the run that warms up."""
    console = Path(sys.executable).with_name("edged")
    start = [str(console)] if console.exists() else [sys.executable, "-m", "edged.cli.main"]
    own = [*start, "run", "--model", str(path), "--threads", str(threads), "-n", "1", "Hello"]
    peer = [sys.executable, "-c", PEER, str(path), str(threads)]
    times: dict[str, list[float]] = {"xllamacpp": [], "edged": []}
    for i in range(RUNS + 1):
        for name, command in (("xllamacpp", peer), ("edged", own)):
            took = first_byte(command)
            if i:
                times[name].append(1000 * took)
    report.compare("startup", model, "ms", times, TARGETS[model])


def first_byte(command: list[str]) -> float:
    """Seconds until the command writes its first byte."""
    started = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as child:
        assert child.stdout is not None
        byte = os.read(child.stdout.fileno(), 1)
        took = time.perf_counter() - started
        child.stdout.read()
    if not byte:
        raise SystemExit(f"{' '.join(command)} printed nothing, exit code {child.returncode}")
    return took
