"""`python -m tests.bench [BENCH ...]`: run benchmarks and print a table; see --help."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from edged.store.catalogue import CATALOGUE
from edged.store.pull import pull
from tests.bench import agreement, concurrency, manuals, memory, search, speed, startup
from tests.bench.report import Report

MODELS = [entry for entry in CATALOGUE if entry.name in speed.TARGETS]
BENCHES = {"speed": speed, "startup": startup, "memory": memory, "concurrency": concurrency,
           "agreement": agreement}  # fmt: skip
ALL = (*BENCHES, "search", "manuals")  # of the store, not of one model


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("bench", nargs="*", default=list(ALL), help=f"default: {' '.join(ALL)}")
    parser.add_argument("--model", action="append", choices=[e.name for e in MODELS], help="default: all")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5, help="measured runs of which the median counts")
    parser.add_argument("--vectors", type=int, nargs="+", default=list(search.TARGETS), help="stored, of `search`")
    parser.add_argument("--jsonl", type=Path, help="append one JSON object per result to this file")
    args = parser.parse_args()
    if unknown := set(args.bench) - set(ALL):
        parser.error(f"no benchmark {', '.join(unknown)}")
    report = Report(args.jsonl)
    if "search" in args.bench:
        search.run(report, args.vectors)
    if "manuals" in args.bench:
        manuals.run(report, args.threads, args.rounds)
    of_models = [name for name in args.bench if name in BENCHES]
    for entry in MODELS if of_models else ():
        if args.model and entry.name not in args.model:
            continue
        given = Path(os.environ.get("EDGED_TEST_MODELS", ""), entry.file)
        path = given if given.is_file() else pull(entry.name).path
        for name in of_models:
            BENCHES[name].run(report, entry.name, path, args.threads, args.rounds)


if __name__ == "__main__":
    main()
