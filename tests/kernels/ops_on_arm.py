"""Run on an emulated Arm processor: op cases, a whole program on three threads, and the sampler.

    python -m tests.kernels.ops_on_arm CASES.npz LEVEL       prints what is wrong, exits 1 if anything is

CASES.npz: `case_runner.save`. The program and the sampler are checked against bits that the host's library gave, from
PROGRAM and SAMPLER beside it: nothing in them depends on the processor.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

from tests.kernels import case_runner
from tests.kernels.sampler import filters, logits_of, sample
from tests.kernels.tiny_program import Tiny

PROGRAM, SAMPLER = "program.npy", "sampler.npy"


def program_logits(library: Any, threads: int) -> np.ndarray:
    """Logits of a prefill of 37 tokens in two chunks and of four decode steps."""
    tokens = np.random.default_rng(9).integers(0, 96, 41)
    model = Tiny(library, threads)
    rows = [model.prefill(0, tokens[:37], 23)]
    rows += [model.step([(0, p, int(tokens[p]))], [], [0]) for p in range(37, 41)]
    model.workers.close()
    return np.concatenate(rows)


def sampled(library: Any) -> np.ndarray:
    """Token ids by the setting of the filters, for two vocabularies and three draws."""
    return np.array([
        sample(library, logits_of(n, 3), draw, **params)
        for n in (77, 1000) for params in filters() for draw in (0, 2**31, 2**32 - 1)
    ])  # fmt: skip


def main(path: str, level: str) -> int:
    from edged.kernels import load

    library = load.open(level)
    wrong = []
    for case in case_runner.load(path):
        for threads in (1, 3):
            wrong += case_runner.differences(case, case_runner.run(library, case, threads))
    folder = Path(path).parent
    if program_logits(library, 3).tobytes() != np.load(folder / PROGRAM).tobytes():
        wrong.append("the program's logits differ from the host's")
    if sampled(library).tobytes() != np.load(folder / SAMPLER).tobytes():
        wrong.append("the sampled tokens differ from the host's")
    print("\n".join(wrong))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
