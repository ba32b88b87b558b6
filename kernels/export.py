"""How a kernel body becomes a C symbol; build time only.

`@export("ptr, i64, f32 -> i32")` registers a function; `@helper` marks one that is inlined into its callers;
`extern(name, signature)` calls another kernel, or one of the few libc functions a library may need, by its symbol.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from numba.core import types

from edged.kernels import simd
from edged.kernels.unroll import Helper

_TYPES = {"ptr": simd.ptr, "i64": simd.i64, "i32": simd.i32, "f32": simd.f32}


@dataclass(frozen=True)
class Kernel:
    """One function of the library. `values`: constants of this variant, by parameter name."""

    name: str
    function: Any
    arguments: tuple[types.Type, ...]
    result: types.Type
    values: dict[str, Any] = field(default_factory=dict)
    internal: bool = False


KERNELS: dict[str, Kernel] = {}


def parse_signature(text: str) -> tuple[tuple[types.Type, ...], types.Type]:
    """'ptr, i64 -> f32' -> argument types, result type."""
    arguments, _, result = text.partition("->")
    result_type = _TYPES[result.strip()] if result.strip() else types.none
    return tuple(_TYPES[a.strip()] for a in arguments.split(",") if a.strip()), result_type


def export(text: str, *, name: str = "", internal: bool = False, **values: Any) -> Any:
    """Decorator: register a kernel under its own or the given name. `internal` ones are no symbols of the library."""
    arguments, result = parse_signature(text)

    def register(function: Any) -> Any:
        symbol = name or function.__name__
        if symbol in KERNELS:
            raise ValueError(f"kernel {symbol} is registered twice")
        KERNELS[symbol] = Kernel(symbol, function, arguments, result, values, internal)
        return function

    return register


def helper(function: Any) -> Any:
    """Decorator: a function that is inlined into the kernels that call it."""
    return Helper(function)


def extern(name: str, text: str) -> Any:
    """A function that calls the symbol `name`."""
    arguments, result = parse_signature(text)
    return simd.primitive(name, result, *arguments)
