"""Choosing and loading a kernel library: features, the child that tries it, and every refusal with its remedy."""

from __future__ import annotations

import logging
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from edged.errors import BadKernels
from edged.kernels import load
from edged.kernels.table import LEVEL_BY_NAME, LEVELS, TYPES

HOST = [level for level in LEVELS if load.cpu_features().issuperset(level.features)]
BASE = HOST[-1]  # the level every supported processor of this family has

pytestmark = pytest.mark.skipif(not HOST, reason="no kernel level fits this processor")


@pytest.fixture(autouse=True)
def no_level_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(load.ENV, raising=False)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder of libraries."""
    monkeypatch.setattr(load, "FOLDER", str(tmp_path))
    return tmp_path


def patched(source: str, target: str, replacements: dict[bytes, bytes]) -> None:
    """Copy a library with some bytes replaced."""
    data = Path(source).read_bytes()
    for old, new in replacements.items():
        assert data.count(old) == 1
        data = data.replace(old, new)
    Path(target).write_bytes(data)


def compiled(path: Path, code: str) -> None:
    """A library made of C, for faults that no kernel source can have."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    argv = [compiler] if compiler else [sys.executable, "-m", "ziglang", "cc"]
    options = ["-shared", "-fPIC", "-O1", "-o", str(path), "-x", "c", "-"]
    subprocess.run([*argv, *options], input=code, text=True, check=True)


def faulty(path: Path, body: str, abi: int = load.ABI) -> None:
    """A library with every kernel the self-test calls, each doing `body`."""
    names = [f"{kernel}_{t.name}" for t in TYPES for kernel in ("row", "matvec", "matvec_rows", "tile")]
    signatures = {"row": "pip>", "matvec": "piiiippi>", "matvec_rows": "piiiipiipii>", "tile": "piiiipipiipp>"}
    text = "\\n".join(f"{n} {signatures[n[: n.index('_', 7 if n.startswith('matvec_r') else 0)]]}" for n in names)
    functions = "".join(f"void {name}(void) {{ {body} }}\n" for name in names)
    compiled(path, f'const int edged_abi = {abi}; const char edged_signatures[] = "{text}";\n{functions}')


def test_best_level_of_this_processor() -> None:
    library = load.open()
    assert library.level == HOST[0]
    assert library.lanes == HOST[0].lanes


@pytest.mark.parametrize("level", HOST, ids=lambda level: level.name)
def test_level_by_argument_and_by_environment(level: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert load.open(level.name).level == level
    monkeypatch.setenv(load.ENV, level.name)
    assert load.open().level == level


def test_features_are_those_the_kernel_reports() -> None:
    words = set(Path("/proc/cpuinfo").read_text().split())
    assert load.cpu_features() & {"avx2", "asimd"}
    assert load.cpu_features() <= words


def test_features_of_a_processor_without_dot_products(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """A Cortex-A72 is given aarch64_neon, a Cortex-A76 aarch64_dotprod, an old x86-64 nothing."""
    chosen = []
    monkeypatch.setattr(load, "Library", lambda level, path: chosen.append(level.name) or None)
    monkeypatch.setattr(load, "trial", lambda library: "")
    for level in LEVELS:
        Path(load.library_path(level)).touch()
    for machine, features in (
        ("aarch64", {"asimd"}),
        ("aarch64", {"asimd", "asimddp"}),
        ("x86_64", {"avx2", "fma", "f16c", "bmi1", "bmi2", "movbe", "abm", "avx512f"}),
        ("x86_64", {f for level in LEVELS if level.family == "x86_64" for f in level.features}),
    ):
        monkeypatch.setattr(platform, "machine", lambda machine=machine: machine)
        monkeypatch.setattr(load, "cpu_features", lambda features=features: frozenset(features))
        load.open()
    assert chosen == ["aarch64_neon", "aarch64_dotprod", "x86_64_v3", "x86_64_vnni512"]
    monkeypatch.setattr(load, "cpu_features", lambda: frozenset({"sse2"}))
    with pytest.raises(BadKernels, match="no kernel level for this processor"):
        load.open()


def test_missing_library_names_the_build_command(folder: Path) -> None:
    with pytest.raises(BadKernels) as e:
        load.open(BASE.name)
    assert str(folder / f"libedged_{BASE.name}.so") in e.value.message
    assert f"python -m edged.kernels.build --level {BASE.name}" in e.value.hint


def test_unknown_level_names_the_known_ones() -> None:
    with pytest.raises(BadKernels) as e:
        load.open("z80")
    assert "'z80'" in e.value.message
    assert BASE.name in e.value.hint


def test_level_of_another_family() -> None:
    other = next(level for level in LEVELS if level.family != BASE.family)
    with pytest.raises(BadKernels, match=other.name):
        load.open(other.name)


def test_file_that_is_no_library(folder: Path) -> None:
    (folder / f"libedged_{BASE.name}.so").write_bytes(b"MZ")
    with pytest.raises(BadKernels, match=f"libedged_{BASE.name}.so: .*(ELF|file too short)"):
        load.open(BASE.name)


def test_other_abi_names_both_numbers(folder: Path) -> None:
    faulty(folder / f"libedged_{BASE.name}.so", "", abi=load.ABI + 6)
    with pytest.raises(BadKernels) as e:
        load.open(BASE.name)
    assert f"has ABI {load.ABI + 6}, this edged needs ABI {load.ABI}" in e.value.message
    assert "edged.kernels.build" in e.value.hint


def test_library_of_other_sources_names_what_it_lacks(folder: Path) -> None:
    source = f'const int edged_abi = {load.ABI}; const char edged_signatures[] = "matvec_f32 piiiippi>";'
    compiled(folder / f"libedged_{BASE.name}.so", source)
    with pytest.raises(BadKernels, match=r"no kernels for f16, q4_0, .*: it was built from other sources") as e:
        load.open(BASE.name)
    assert "edged.kernels.build" in e.value.hint


@pytest.mark.parametrize(
    ("body", "reason"),
    [("__builtin_trap();", "SIGILL|SIGTRAP"), ("*(volatile int *)8 = 1;", "SIGSEGV"), ("", "wrong results")],
)
def test_named_level_that_fails_its_trial(folder: Path, body: str, reason: str) -> None:
    """The process lives on, whatever the library does."""
    faulty(folder / f"libedged_{BASE.name}.so", body)
    with pytest.raises(BadKernels, match=f"do not work on this processor .({reason})"):
        load.open(BASE.name)


def test_i05_illegal_instruction_falls_back_to_the_next_level(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One log line, then the level below; here every level claims to fit and the best one traps."""
    real = load.Library(BASE, os.path.join(os.path.dirname(load.__file__), "_built", f"libedged_{BASE.name}.so"))
    shutil.copy(real.path, folder)
    best = next(level for level in LEVELS if level.family == BASE.family)
    faulty(folder / f"libedged_{best.name}.so", "__builtin_trap();")
    monkeypatch.setattr(load, "cpu_features", lambda: frozenset(f for level in LEVELS for f in level.features))
    with caplog.at_level(logging.WARNING):
        assert load.open().level == BASE
    (record,) = caplog.records
    assert best.name in record.getMessage()
    assert "SIG" in record.getMessage()


def test_missing_best_level_falls_back_to_the_next(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    shutil.copy(os.path.join(os.path.dirname(load.__file__), "_built", f"libedged_{BASE.name}.so"), folder)
    monkeypatch.setattr(load, "cpu_features", lambda: frozenset(f for level in LEVELS for f in level.features))
    with caplog.at_level(logging.WARNING):
        assert load.open().level == BASE
    assert len(caplog.records) == 1


def test_self_test_notices_a_wrong_kernel() -> None:
    """Each of the four kernels of each type, replaced by one that does nothing."""
    library = load.open(BASE.name)
    assert load.self_test(library)
    for t in TYPES:
        for kernel in ("row", "matvec", "matvec_rows", "tile"):
            broken = load.Library(BASE, library.path)
            setattr(broken, f"{kernel}_{t.name}", lambda *arguments: None)
            assert not load.self_test(broken), f"{kernel}_{t.name}"


def test_functions_are_typed_by_the_library_itself() -> None:
    library = load.open(BASE.name)
    assert len(library.matvec_q4_k.argtypes) == 8
    assert library.matvec_q4_k.restype is None
    with pytest.raises(AttributeError, match="no kernel matvec_q9_9"):
        _ = library.matvec_q9_9


def test_loading_needs_no_compiler() -> None:
    code = f"from edged.kernels import load; load.open({BASE.name!r}); import sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "ctypes" in loaded
    assert not loaded & {"numba", "llvmlite", "asyncio", "subprocess"}


@pytest.mark.arm
@pytest.mark.parametrize(("cpu", "level"), [("cortex-a72", "aarch64_neon"), ("cortex-a76", "aarch64_dotprod")])
def test_i05_arm_level_by_hwcap(arm: Any, arm_libraries: None, cpu: str, level: str) -> None:
    done = arm(cpu, ["-c", "from edged.kernels import load; print(load.open().level.name)"])
    assert done.stdout.strip() == level, done.stderr
    assert LEVEL_BY_NAME[level].family == "aarch64"


@pytest.mark.arm
def test_i05_dotprod_on_a_processor_without_it_is_refused(arm: Any, arm_libraries: None) -> None:
    done = arm("cortex-a72", ["-c", "from edged.kernels import load; load.open('aarch64_dotprod')"])
    assert "do not work on this processor (SIGILL; it lacks asimddp)" in done.stderr
