"""Calls chosen by a number at run time, written out from the tables in table.py. Build-time only."""

from __future__ import annotations

import linecache
from collections.abc import Iterable
from typing import Any

from edged.kernels.export import extern, helper
from edged.kernels.table import TYPES


def choose(name: str, signature: str, cases: Iterable[tuple[int, str]]) -> Any:
    """A helper `name(code, *arguments)` that calls the void kernel of the case with that code, or none.

    cases: (code, symbol); signature: that of every symbol.
    """
    arguments = ", ".join(f"a{i}" for i in range(len(signature.split(","))))
    lines, scope = [f"def {name}(code, {arguments}):"], {}
    for code, symbol in cases:
        scope[symbol] = extern(symbol, signature)
        lines += [f"    if code == {code}:", f"        {symbol}({arguments})"]
    source = "\n".join([*lines, ""])
    filename = f"<{__name__}.{name}>"
    linecache.cache[filename] = (len(source), None, source.splitlines(True), filename)  # for inspect.getsource
    exec(compile(source, filename, "exec"), scope)
    return helper(scope[name])


def by_type(prefix: str, signature: str) -> Any:
    """A helper `(type id, *arguments)` that calls `<prefix>_<type>`."""
    return choose(prefix, signature, [(t.id, f"{prefix}_{t.name}") for t in TYPES])
