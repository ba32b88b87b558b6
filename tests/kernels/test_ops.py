"""Every op against its reference, with equal bits on one to four threads. Cases: op_cases.py."""

from __future__ import annotations

import collections
from typing import Any

import pytest

from edged.kernels.table import OPS
from tests.kernels.case_runner import Case, differences, run


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
