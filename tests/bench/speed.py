"""Decode and prefill of one sequence: both engines loaded, asked in turn, medians compared."""

from __future__ import annotations

import random
from pathlib import Path

from tests.bench.report import Report
from tests.bench.workers import Worker

N_PROMPT, N_GEN = 512, 128
TARGETS = {"smollm2-135m-instruct": ("2.2x", "2.0x"), "gemma3-270m": ("1.8x", "1.3x")}  # decode, prefill


def run(report: Report, model: str, path: Path, threads: int, rounds: int) -> None:
    """Adds `decode` (tokens/s of tokens 2 to 128 after an 8-token prompt) and `prefill` (512 tokens)."""
    rates: dict[str, dict[str, list[float]]] = {"prefill": {}, "decode": {}}
    chance = random.Random(0)
    with Worker("xllamacpp", path, threads) as peer, Worker("edged", path, threads) as own:
        for i in range(rounds + 1):
            long = [chance.randrange(100, 40_000) for _ in range(N_PROMPT)]
            short = [chance.randrange(100, 40_000) for _ in range(8)]
            for worker in (peer, own):
                prefill, decode = worker.ask(long, 1), worker.ask(short, N_GEN)
                if i:  # the first round warms up
                    rates["prefill"].setdefault(worker.name, []).append(N_PROMPT / prefill["prompt_s"])
                    rates["decode"].setdefault(worker.name, []).append(decode["tokens"] / decode["decode_s"])
    for bench, target in zip(("decode", "prefill"), TARGETS[model], strict=True):
        report.compare(bench, model, "tok/s", rates[bench], target)
