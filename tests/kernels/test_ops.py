"""Every op against its reference, with equal bits on one to four threads. Cases: op_cases.py."""

from __future__ import annotations

import collections
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edged.kernels.table import OPS
from tests.kernels import ops_on_arm
from tests.kernels.case_runner import Case, differences, run, save


@pytest.fixture(scope="module")
def cases(library: Any) -> dict[str, list[Case]]:
    from tests.kernels import op_cases

    found = collections.defaultdict(list)
    for case in op_cases.cases(library.level.name):
        found[case.op].append(case)
    return found


@pytest.mark.parametrize("op", [op.name for op in OPS])
def test_op_matches_its_reference_on_any_number_of_threads(library: Any, cases: dict[str, list[Case]], op: str) -> None:
    assert cases[op], f"op {op} has no cases"
    wrong = []
    for case in cases[op]:
        alone = run(library, case)
        wrong += differences(case, alone)
        for threads in (2, 3, 4):
            shared = run(library, case, threads)
            for name in case.expected:
                if shared[name].tobytes() != alone[name].tobytes():
                    wrong.append(f"{case.name}: {name} differs on {threads} threads")
    assert wrong == []


def test_quantise_with_sixteen_lanes_and_biased_bytes() -> None:
    from tests.kernels import emulated, op_cases

    vnni = emulated.library("edged.kernels.ops.quantise")
    wrong = []
    for case in op_cases.quantising(vnni.level.name):
        for threads in (1, 2, 3):
            wrong += differences(case, run(vnni, case, threads))
    assert wrong == []


@pytest.fixture(scope="module")
def arm_cases(library: Any, cases: dict[str, list[Case]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """About a tenth of the cases of each op: the emulated processor is slow."""
    if library.lanes != 8:
        pytest.skip("the cases of this level have other panels than Arm's")
    folder = tmp_path_factory.mktemp("arm")
    save(str(folder / "cases.npz"), [case for op in cases.values() for case in op[:: max(1, len(op) // 12)]])
    np.save(folder / ops_on_arm.PROGRAM, ops_on_arm.program_logits(library, 1))
    np.save(folder / ops_on_arm.SAMPLER, ops_on_arm.sampled(library))
    return folder / "cases.npz"


@pytest.mark.arm
@pytest.mark.parametrize(("cpu", "level"), [("cortex-a72", "aarch64_neon"), ("cortex-a76", "aarch64_dotprod")])
def test_ops_program_and_sampler_on_arm(arm: Any, arm_libraries: None, arm_cases: Path, cpu: str, level: str) -> None:
    done = arm(cpu, ["-m", "tests.kernels.ops_on_arm", str(arm_cases), level])
    assert done.returncode == 0, done.stdout + done.stderr
