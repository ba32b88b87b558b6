"""Every kernel of every tensor type against its reference, on every level that can run here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from edged.kernels import load
from edged.kernels.table import TYPE_BY_NAME, TYPES, TensorType
from tests.kernels import type_cases, type_runner

TYPE_IDS = [t.name for t in TYPES]


@pytest.mark.parametrize("t", TYPES, ids=TYPE_IDS)
def test_reference_is_that_of_the_gguf_package(t: TensorType) -> None:
    k = type_cases.WIDTHS[t.block][-1]
    weights = type_cases.matrix(t, k, np.random.default_rng(t.id))
    stored = weights.view({"f32": np.float32, "f16": np.float16}.get(t.name, np.uint8))
    with np.errstate(all="ignore"):
        theirs = gguf.quants.dequantize(stored, gguf.GGMLQuantizationType(t.id)).astype(np.float32)
    np.testing.assert_array_equal(type_cases.reference(t, weights), theirs.reshape(len(weights), k))


@pytest.mark.parametrize("t", TYPES, ids=TYPE_IDS)
def test_sizes_are_those_of_the_gguf_package(t: TensorType) -> None:
    assert gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(t.id)] == (t.block, t.size)


@pytest.mark.parametrize("name", TYPE_IDS)
def test_l05_every_kernel_equals_the_reference(library: Any, name: str) -> None:
    t = TYPE_BY_NAME[name]
    cases = [type_cases.case(t, k) for k in type_cases.WIDTHS[t.block]]
    assert [fault for case in cases for fault in type_runner.check(library, case)] == []


@pytest.mark.parametrize("name", TYPE_IDS)
def test_l05_vnni_level_emulated(vnni_emulated: Any, name: str) -> None:
    """The kernels of x86_64_vnni512 on a processor without it: 16 lanes, biased activations; the bits of x86_64_v3."""
    t = TYPE_BY_NAME[name]
    case = type_cases.case(t, type_cases.WIDTHS[t.block][0])
    assert type_runner.check(vnni_emulated, case) == []
    assert type_runner.digest(vnni_emulated, case) == type_runner.digest(load.open("x86_64_v3"), case)


@pytest.mark.arm
def test_l05_every_kernel_on_arm(arm: Any, arm_libraries: None, case_file: Path) -> None:
    """Right on both levels, and with the same bits: without dot products the sums round as with them."""
    outputs = set()
    for cpu, level in (("cortex-a72", "aarch64_neon"), ("cortex-a76", "aarch64_dotprod")):
        done = arm(cpu, ["-m", "tests.kernels.type_runner", str(case_file), level])
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stdout.count(" ok ") == len(type_cases.cases())
        outputs.add(done.stdout)
    assert len(outputs) == 1


@pytest.fixture(scope="module")
def case_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All cases as one .npz file for type_runner."""
    path = tmp_path_factory.mktemp("cases") / "types.npz"
    np.savez(path, **{f"{c['type']}-{c['k']}/{key}": v for c in type_cases.cases() for key, v in c.items()})
    return path


def test_the_checks_notice_a_wrong_kernel(library: Any) -> None:
    """A library whose Q4_1 kernels are those of Q4_0 fails every check of Q4_1."""

    class Wrong:
        lanes = library.lanes

        def __getattr__(self, name: str) -> Any:
            return getattr(library, name.replace("q4_1", "q4_0"))

    faults = " ".join(type_runner.check(Wrong(), type_cases.case(TYPE_BY_NAME["q4_1"], 576)))
    assert "row 0 differs" in faults
    assert "matvec row" in faults
    assert "tile row" in faults
