"""How the primitives of a level are written down as LLVM IR; build time only."""

from __future__ import annotations


def define(head: str, *lines: str) -> str:
    """One inlined function. `head`: 'result @name(arguments)'."""
    body = "".join(f"  {line}\n" for line in lines)
    return f"define linkonce_odr {head} alwaysinline {{\n{body}}}\n"


def piece(out: str, source: str, element: str, n: int, start: int, count: int) -> str:
    """Lanes start .. start + count of an n-lane vector."""
    mask = ", ".join(f"i32 {i}" for i in range(start, start + count))
    return f"%{out} = shufflevector <{n} x {element}> %{source}, <{n} x {element}> poison, <{count} x i32> <{mask}>"


def join(out: str, a: str, b: str, element: str, n: int) -> str:
    """Two n-lane vectors, one after the other."""
    mask = ", ".join(f"i32 {i}" for i in range(2 * n))
    return f"%{out} = shufflevector <{n} x {element}> %{a}, <{n} x {element}> %{b}, <{2 * n} x i32> <{mask}>"


def spread_first(out: str, scalar: str, n: int) -> tuple[str, str]:
    """An i32 in n lanes."""
    return (
        f"%{out}.0 = insertelement <{n} x i32> poison, i32 %{scalar}, i32 0",
        f"%{out} = shufflevector <{n} x i32> %{out}.0, <{n} x i32> poison, <{n} x i32> zeroinitializer",
    )
