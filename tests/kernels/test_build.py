"""The build: specialisation of bodies, what may get into a library, and what every library must be like."""

from __future__ import annotations

import struct
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from edged.kernels import build, elf, front, simd
from edged.kernels.export import KERNELS, Kernel, export, helper, parse_signature
from edged.kernels.levels import TARGETS
from edged.kernels.table import ABI, LEVELS, TYPES
from edged.kernels.unroll import Expanded, Param, expand, static

LEVEL_NAMES = [level.name for level in LEVELS]
N, TYPE = Param("N"), Param("TYPE")
TEN = 10


@pytest.fixture(scope="module", params=LEVEL_NAMES)
def library(request: pytest.FixtureRequest) -> tuple[str, elf.Elf]:
    """Every level, of every family."""
    build.load_kernels()
    build.build(TARGETS[request.param], build.library_path(request.param))
    return request.param, elf.read(build.library_path(request.param))


def test_library_is_for_its_family(library: tuple[str, elf.Elf]) -> None:
    name, found = library
    assert found.machine == TARGETS[name].level.family


def test_library_has_every_kernel_of_the_table(library: tuple[str, elf.Elf]) -> None:
    """And nothing but what was exported."""
    _, found = library
    wanted = {f"{kernel}_{t.name}" for t in TYPES for kernel in ("row", "matvec", "matvec_rows", "tile")}
    assert wanted <= found.defined
    assert found.defined == {k.name for k in KERNELS.values() if not k.internal} | set(build.DESCRIPTION)


def test_library_needs_few_functions_of_libc(library: tuple[str, elf.Elf]) -> None:
    assert library[1].undefined <= {"memcpy", "memset", "sched_yield", "syscall"}


def test_i02_segments_fit_16_kib_pages(library: tuple[str, elf.Elf]) -> None:
    assert min(library[1].alignments) >= 16384


def dot_products(text: bytes) -> int:
    """SDOT and UDOT among the words of AArch64 code, vector and by-element forms.

    Source: Arm ARM, C7.2: 0 Q U 01110 10 0 Rm 100101 Rn Rd and 0 Q U 01111 10 L M Rm 1110 H 0 Rn Rd.
    """
    words = struct.unpack(f"<{len(text) // 4}I", text)
    return sum((w & 0x9FE0FC00) == 0x0E809400 or (w & 0x9FC0F400) == 0x0F80E000 for w in words)


@pytest.mark.parametrize(
    ("word", "found"),
    [(0x4E829420, 1), (0x6E829420, 1), (0x4F82E020, 1), (0x6F82E020, 1), (0x0E20C020, 0), (0x4EA19400, 0)],
    ids=["sdot v0.4s, v1.16b, v2.16b", "udot", "sdot by element", "udot by element", "smull", "mla"],
)
def test_decoder_of_dot_products(word: int, found: int) -> None:
    assert dot_products(struct.pack("<I", word)) == found


@pytest.mark.parametrize(("level", "expected"), [("aarch64_neon", False), ("aarch64_dotprod", True)])
def test_i05_dot_products_only_where_the_level_has_them(level: str, expected: bool) -> None:
    build.build(TARGETS[level], build.library_path(level))
    assert bool(dot_products(elf.read(build.library_path(level)).text)) == expected


GOOD = elf.Elf("aarch64", frozenset({"edged_abi"}), frozenset({"syscall"}), (65536, 65536), b"")


def test_check_refuses_what_would_not_run_everywhere() -> None:
    target = TARGETS["aarch64_neon"]
    build.check(GOOD, target, "\tsmull\tv0.8h, v1.8b, v2.8b\n")
    with pytest.raises(RuntimeError, match="undefined symbols expf"):
        build.check(replace(GOOD, undefined=frozenset({"syscall", "expf"})), target, "")
    with pytest.raises(RuntimeError, match="aligned to 4096"):
        build.check(replace(GOOD, alignments=(65536, 4096)), target, "")
    with pytest.raises(RuntimeError, match="dot-product"):
        build.check(GOOD, target, "\tsdot\tv0.4s, v1.16b, v2.16b\n")


def test_up_to_date_library_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    monkeypatch.setattr(build, "optimise", lambda *arguments: made.append(1) or (b"code", "assembly"))
    monkeypatch.setattr(build.front, "compile_bodies", lambda *arguments: [])
    monkeypatch.setattr(build.link, "link", lambda code, path, machine, soname: path.write_bytes(code))
    monkeypatch.setattr(build.elf, "read", lambda path: GOOD)
    path = tmp_path / "libedged_aarch64_neon.so"
    outcomes = []
    for sources, force in (("a", False), ("a", False), ("a", True), ("b", False), ("b", False)):
        monkeypatch.setattr(build, "source_hash", lambda sources=sources: f"hash of {sources}")
        outcomes.append(build.build(TARGETS["aarch64_neon"], path, force=force))
    assert outcomes == [True, False, True, True, False]
    assert len(made) == 3
    assert path.read_bytes() == b"code"


def test_library_describes_itself() -> None:
    kernels = [Kernel("one", None, *parse_signature("ptr, i64, f32 -> i64")), Kernel("two", None, *parse_signature(""))]
    hidden = Kernel("three", None, *parse_signature("ptr"), internal=True)
    text = build.description([*kernels, hidden])
    assert f"@edged_abi = constant i32 {ABI}\n" in text
    assert '[16 x i8] c"one pif>i\\0Atwo >\\00"' in text


def test_command_line() -> None:
    command = [sys.executable, "-m", "edged.kernels.build"]
    done = subprocess.run([*command, "--level", "z80"], capture_output=True, text=True)
    assert done.returncode == 2
    assert "aarch64_neon" in done.stderr
    done = subprocess.run([*command, "--help"], capture_output=True, text=True)
    assert all(option in done.stdout for option in ("--family", "--level", "--out", "--force"))


# -- registration and specialisation -----------------------------------------------------------------------------------


def test_kernel_names_are_unique() -> None:
    build.load_kernels()
    with pytest.raises(ValueError, match="matvec_q8_0 is registered twice"):
        export("ptr", name="matvec_q8_0")(len)


def add_up(x):  # type: ignore[no-untyped-def]
    total = 0
    for i in static(N):
        part[i] = x + i * TEN  # noqa: F821  (an array held in registers)
    for i in static(N):
        if i % 2:
            total += part[i]  # noqa: F821
    if N > 2:
        total += 1000
    return total


def doubled(x):  # type: ignore[no-untyped-def]
    return x * N


twice = helper(doubled)


def with_helper(x):  # type: ignore[no-untyped-def]
    return twice(x) + 1


def raising(x):  # type: ignore[no-untyped-def]
    if x < 0:
        raise ValueError
    return x


def specialise(function: Any, **values: Any) -> Expanded:
    return expand(function, values, lambda expanded: expanded.function)


def test_static_loops_register_arrays_and_constant_conditions() -> None:
    two, four = specialise(add_up, N=2), specialise(add_up, N=4)
    assert two.function(5) == 15
    assert four.function(5) == 15 + 35 + 1000
    assert set(two.function.__code__.co_varnames) == {"x", "total", "part_0", "part_1"}
    assert not {"N", "TEN", "static"} & set(two.function.__code__.co_names)


def test_helper_has_the_values_of_its_caller() -> None:
    assert specialise(with_helper, N=3).function(5) == 16


def test_kernels_cannot_raise() -> None:
    with pytest.raises(ValueError, match="raising: a kernel cannot raise"):
        specialise(raising)


def test_key_is_that_of_the_code() -> None:
    """Equal for equal values, other for another value, even one that only a helper has."""
    keys = [expand(with_helper, {"N": n, "unused": n}, lambda expanded: expanded).key for n in (1, 2, 1)]
    assert keys[0] == keys[2] != keys[1]


def test_levels_share_kernels_that_do_not_depend_on_them() -> None:
    build.load_kernels()
    keys = {
        (kernel, level): front.key(KERNELS[kernel], TARGETS[level].values())
        for kernel in ("matvec_q8_0", "dot1_q8_0", "micro1_s8_32") for level in LEVEL_NAMES
    }  # fmt: skip
    assert len({keys["matvec_q8_0", level] for level in LEVEL_NAMES}) == 1
    assert keys["dot1_q8_0", "x86_64_v3"] == keys["dot1_q8_0", "x86_64_vnni512"] != keys["dot1_q8_0", "aarch64_neon"]
    assert len({keys["micro1_s8_32", level] for level in LEVEL_NAMES}) == 2  # of 8 and of 16 lanes


def test_vector_types_of_a_level() -> None:
    values = TARGETS["x86_64_vnni512"].values()
    assert (values["NT"], values["BIAS"], values["f32xNT"]) == (16, 128, simd.f32x16)
    assert TARGETS["aarch64_neon"].values()["i32xA"] is simd.i32x4
