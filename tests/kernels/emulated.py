"""x86_64_vnni512 where no processor has it: the same bodies and primitives, the VNNI instructions in plain IR."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edged.kernels import load
from edged.kernels.table import LEVEL_BY_NAME

LEVEL = LEVEL_BY_NAME["x86_64_vnni512"]
_PREFIX = "@llvm.x86.avx512."


def _dot(name: str, lanes: int, element: str, parts: int, extend: tuple[str, str]) -> str:
    """acc[i] + sum over j of a[parts i + j] * b[parts i + j], in 32 bits. extend: 'zext' or 'sext' of a and of b."""
    n = lanes * parts
    lines = [
        f"%{v}w = {how} <{n} x {element}> %{v} to <{n} x i32>" for v, how in zip("ab", extend, strict=True)
    ] + [f"%p = mul <{n} x i32> %aw, %bw"]  # fmt: skip
    total = "%acc"
    for j in range(parts):
        mask = ", ".join(f"i32 {parts * i + j}" for i in range(lanes))
        lines += [
            f"%p{j} = shufflevector <{n} x i32> %p, <{n} x i32> poison, <{lanes} x i32> <{mask}>",
            f"%t{j} = add <{lanes} x i32> {total}, %p{j}",
        ]
        total = f"%t{j}"
    head = f"<{lanes} x i32> @emulated.{name}(<{lanes} x i32> %acc, <{n} x {element}> %a, <{n} x {element}> %b)"
    return f"define {head} alwaysinline {{\n" + "\n".join([*lines, f"ret <{lanes} x i32> {total}"]) + "\n}\n"


_INSTRUCTIONS = (
    _dot("vpdpbusd.256", 8, "i8", 4, ("zext", "sext"))
    + _dot("vpdpbusd.512", 16, "i8", 4, ("zext", "sext"))
    + _dot("vpdpwssd.256", 8, "i16", 2, ("sext", "sext"))
)


def library(only: str = "edged.kernels.types") -> load.Library:
    """Build it where it is out of date, and load it. only: the package of kernels wanted."""
    if "avx2" not in load.cpu_features():
        pytest.skip("this processor has no AVX2")
    from edged.kernels import build, levels

    real = levels.TARGETS[LEVEL.name]
    own = [line for line in real.steps.splitlines() if not (line.startswith("declare") and _PREFIX in line)]
    steps = "\n".join(own).replace(_PREFIX, "@emulated.") + _INSTRUCTIONS
    target = replace(real, cpu="x86-64-v3", features="", steps=steps)
    path = build.OUT / "emulated" / only.rpartition(".")[2] / f"libedged_{LEVEL.name}.so"
    build.build(target, path, only=only)
    return load.Library(LEVEL, str(path))
