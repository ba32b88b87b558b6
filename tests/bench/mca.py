"""Cycles per 256 weights of the Arm row dots, as llvm-mca counts them: weights in the first-level cache, nothing else.

    python -m tests.bench.mca [TYPE ...]      needs llvm-mca (apt install llvm) and the libraries of `--family all`

llvm-mca simulates the inner loop of `dot1`, or of `dot1_pair` where a type has it, from the assembly that the build
leaves beside a library. It tells what a change does to a kernel on a processor that is not at hand, not what memory
lets through. The figures of the kernel prototype, which the types it had are to keep to, stand beside ours.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

from edged.kernels.load import library_path
from edged.kernels.table import LEVEL_BY_NAME, TYPES, TensorType

ITERATIONS = 500
CPUS = {"cortex-a72": "aarch64_neon", "cortex-a76": "aarch64_dotprod", "neoverse-n1": "aarch64_dotprod"}
PROTOTYPE = {
    "q8_0": (66, 65, 57), "q4_0": (73, 65, 65), "q4_1": (73, 73, 97), "q5_0": (124, 114, 97),
    "q4_k": (61, 57, 51), "q6_k": (91, 74, 68),
}  # fmt: skip
COUNTED = ("q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "iq4_nl", "iq4_xs")
LABEL, BRANCH = re.compile(r"(\.L\w+):"), re.compile(r"\s+(?:b\.?\w*|cbn?z|tbn?z)\s.*?(\.L\w+)")
LINE = 64  # bytes that one prefetch is for


def loop(assembly: str, t: TensorType) -> tuple[list[str], int]:
    """Instructions of the inner loop of a type's row dot, and the weights of one round of it.

    It stands in `matvec` or, where LLVM did not inline it, in `dot1`; types of 32-weight blocks take two rows at once
    there. A round is recognised by its prefetches: one for a pair of blocks, or one per line of a long block.
    Raises LookupError when there is none, or when it holds loops of its own, which llvm-mca would take for straight
    code.
    """
    body = _function(assembly, f"matvec_{t.name}")
    if not _prefetches(body):
        body = _function(assembly, f"dot1_{t.name}")
    starts = {m[1]: i for i, line in enumerate(body) if (m := LABEL.match(line))}
    loops = [(starts[m[1]], i) for i, line in enumerate(body)
             if (m := BRANCH.match(line)) and starts.get(m[1], i) < i]  # fmt: skip
    found = [bounds for bounds in loops if _prefetches(body[slice(*bounds)])]
    innermost = [a for a in found if not any(b != a and a[0] <= b[0] and b[1] <= a[1] for b in found)]
    if not innermost:
        raise LookupError(f"{t.name}: no loop with a prefetch")
    first, last = min(innermost)
    if any((first, last) != inner and first <= inner[0] and inner[1] <= last for inner in loops):
        raise LookupError(f"{t.name}: a loop in the loop")
    code = [line for line in body[first + 1 : last + 1] if not line.lstrip().startswith((".", "//"))]
    weights = 2 * t.block if t.block == 32 else t.block // -(-t.size // LINE)  # of one prefetch
    return code, _prefetches(code) * weights


def _function(assembly: str, name: str) -> list[str]:
    start = assembly.index(f"\n{name}:")
    return assembly[start : assembly.index(f"\t.size\t{name}", start)].splitlines()


def _prefetches(code: list[str]) -> int:
    return sum("\tprfm" in line for line in code)


def cycles(code: list[str], cpu: str) -> float:
    """Cycles of one round of the loop, when it runs on and on."""
    command = ["llvm-mca", "-mtriple=aarch64-linux-gnu", f"-mcpu={cpu}", f"-iterations={ITERATIONS}"]
    done = subprocess.run(command, input="\n".join(code), capture_output=True, text=True, check=False)
    total = re.search(r"Total Cycles:\s+(\d+)", done.stdout)
    if total is None:
        raise SystemExit(f"llvm-mca failed: {done.stderr}")
    return int(total[1]) / ITERATIONS


def main(names: list[str]) -> None:
    if shutil.which("llvm-mca") is None:
        raise SystemExit("llvm-mca is not installed: apt install llvm")
    print(f"{'cycles/256 weights':<20}" + "".join(f"{cpu:>14} {'prototype':>10}" for cpu in CPUS))
    for t in TYPES:
        if t.name in (names or COUNTED):
            print(f"{t.name:<20}" + "".join(_figure(t, i, cpu) for i, cpu in enumerate(CPUS)))


def _figure(t: TensorType, i: int, cpu: str) -> str:
    assembly = Path(library_path(LEVEL_BY_NAME[CPUS[cpu]])).with_suffix(".s").read_text()
    before = str(PROTOTYPE[t.name][i]) if t.name in PROTOTYPE else ""
    try:
        code, weights = loop(assembly, t)
    except LookupError:
        return f"{'loops':>14} {before:>10}"
    return f"{cycles(code, cpu) * 256 / weights:>14.1f} {before:>10}"


if __name__ == "__main__":
    main(sys.argv[1:])
