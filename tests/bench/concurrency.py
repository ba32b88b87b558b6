"""Tokens per second of 1, 4 and 8 clients at once, over HTTP; edged's answers must not depend on the company."""

from __future__ import annotations

import random
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.bench.daemon import Daemon, edged, xllamacpp
from tests.bench.report import Report

CLIENTS = (1, 4, 8)
N_PROMPT, N_GEN = 64, 64


def run(report: Report, model: str, path: Path, threads: int, rounds: int) -> None:
    """Adds `clients-1`, `clients-4`, `clients-8`: all generated tokens over the time until the last answer."""
    chance = random.Random(0)
    prompts = [[chance.randrange(100, 40_000) for _ in range(N_PROMPT)] for _ in range(max(CLIENTS))]
    rates: dict[int, dict[str, list[float]]] = {clients: {} for clients in CLIENTS}
    with xllamacpp(path, threads, 1024, max(CLIENTS)) as peer, edged(path, threads, "--context", "1024") as own:
        for daemon in (peer, own):
            alone = [ask(daemon, prompt) for prompt in prompts]
            for clients in CLIENTS:
                for _ in range(rounds):
                    started = time.perf_counter()
                    with ThreadPoolExecutor(clients) as pool:
                        texts = list(pool.map(lambda prompt: ask(daemon, prompt), prompts[:clients]))  # noqa: B023
                    took = time.perf_counter() - started
                    rates[clients].setdefault(daemon.name, []).append(clients * N_GEN / took)
                    if daemon is own and texts != alone[:clients]:
                        raise SystemExit(f"edged answers {clients} clients differently from one")
    for clients in CLIENTS:
        report.compare(f"clients-{clients}", model, "tok/s", rates[clients])


def ask(daemon: Daemon, prompt: list[int]) -> str:
    """The greedy answer of N_GEN tokens."""
    body: dict[str, Any] = {"prompt": prompt, "max_tokens": N_GEN, "temperature": 0, "ignore_eos": True}
    if daemon.name != "edged":
        body["cache_prompt"] = False
    reply = daemon.post("/v1/completions", body)
    assert reply["usage"]["completion_tokens"] == N_GEN, reply
    return str(reply["choices"][0]["text"])
