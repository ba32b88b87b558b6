"""Source-level specialisation of kernel bodies; build time only.

`expand(f, values, call)` returns a copy of the Python function f in which

- every global that is a `Param` has its value for this CPU level,
- every global that is an integer is a literal,
- every global that is a `Helper` is that helper, specialised the same way,
- `for j in static(n)` loops are written out, `if` over constants is folded,
- `acc[r, t]` with constant indices is a plain local variable: an array held in registers.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import linecache
import sys
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


class Param:
    """A name in a kernel body whose value depends on the CPU level or on the variant of the kernel.

    The value is found in the mapping given to `expand`; if it is not there, `make(mapping)` computes it.
    """

    def __init__(self, name: str, make: Callable[[dict[str, Any]], Any] | None = None) -> None:
        self.name, self.make = name, make

    def value(self, values: dict[str, Any]) -> Any:
        if self.make and self.name not in values:
            values[self.name] = self.make(values)
        return values[self.name]


class Helper:
    """A function that is inlined into the kernels that call it."""

    def __init__(self, function: Any) -> None:
        self.function = function
        self.__doc__ = function.__doc__


def static(*bounds: int) -> range:
    """A loop that `expand` writes out: the bounds are constants. The name exists only for readers and linters."""
    return range(*bounds)


@dataclass(frozen=True)
class Expanded:
    """A specialised function. `key` is equal for equal code: source, constants, helpers and primitives."""

    function: Any
    key: str


def expand(function: Any, values: dict[str, Any], call: Callable[[Expanded], Any]) -> Expanded:
    """Specialise `function` for the parameter values. call(helper) makes what a body calls for a specialised helper."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    definition = tree.body[0]
    assert isinstance(definition, ast.FunctionDef)
    definition.decorator_list = []
    for node in ast.walk(tree):
        if isinstance(node, (ast.Raise, ast.Assert, ast.Try)):  # Numba compiles them to an error code nobody reads
            raise ValueError(f"{function.__name__}: a kernel cannot raise (line {node.lineno} of its source)")
    names = [n for n in ast.walk(tree) if isinstance(n, ast.Name)]
    local = {a.arg for a in definition.args.args} | {n.id for n in names if isinstance(n.ctx, ast.Store)}
    scope: dict[str, Any] = dict(function.__globals__)
    constants: dict[str, int] = {}
    parts = [_module_source(function)]
    for name in sorted({n.id for n in names} - local):
        value = scope.get(name)
        if isinstance(value, Param):
            value = scope[name] = value.value(values)
        if isinstance(value, Helper):
            value = scope[name] = call(expand(value.function, values, call))
        elif isinstance(value, int):
            constants[name] = value
        parts.append(f"{name} = {getattr(value, 'key', value) if _is_plain(value) else ''}")
    tree = ast.fix_missing_locations(_Unroll().visit(_Substitute(constants).visit(tree)))
    source = ast.unparse(tree)
    filename = f"<{function.__module__}.{function.__name__}>"
    linecache.cache[filename] = (len(source), None, source.splitlines(True), filename)  # for error messages
    exec(compile(source, filename, "exec"), scope)
    return Expanded(scope[function.__name__], hashlib.sha256("\n".join([*parts, source]).encode()).hexdigest())


def _module_source(function: Any) -> str:
    """The text of the module that defines a function: its globals that have no key of their own come from there."""
    module = sys.modules.get(function.__module__)
    return inspect.getsource(module) if module and hasattr(module, "__file__") else ""


def _is_plain(value: Any) -> bool:
    """Whether a global says by itself what it is; others are what their module's source says."""
    return hasattr(value, "key") or isinstance(value, (int, float, str, tuple))


class _Substitute(ast.NodeTransformer):
    """Replace names by literals."""

    def __init__(self, constants: dict[str, int]) -> None:
        self.constants = constants

    def visit_Name(self, node: ast.Name) -> ast.AST:
        if isinstance(node.ctx, ast.Load) and node.id in self.constants:
            return ast.copy_location(ast.Constant(self.constants[node.id]), node)
        return node


_CONSTANT_NODES = (
    ast.Constant, ast.Tuple, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.operator, ast.unaryop, ast.boolop,
    ast.cmpop, ast.expr_context,
)  # fmt: skip


def _constant(node: ast.expr) -> Any:
    """The value of a constant expression; None for any other."""
    if not all(isinstance(n, _CONSTANT_NODES) for n in ast.walk(node)):
        return None
    return eval(compile(ast.fix_missing_locations(ast.Expression(node)), "<constant>", "eval"))


class _Unroll(ast.NodeTransformer):
    def visit_For(self, node: ast.For) -> Any:
        call = node.iter
        if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "static"):
            return self.generic_visit(node)
        assert isinstance(node.target, ast.Name)
        out: list[ast.stmt] = []
        for value in range(*[_constant(a) for a in call.args]):
            for statement in node.body:
                copy = ast.parse(ast.unparse(statement)).body[0]
                out += self._visit_all([_Substitute({node.target.id: value}).visit(copy)])
        return out

    def visit_If(self, node: ast.If) -> Any:
        test = _constant(node.test)
        if test is None:
            return self.generic_visit(node)
        return self._visit_all(node.body if test else node.orelse) or [ast.Pass()]

    def visit_Subscript(self, node: ast.Subscript) -> Any:
        self.generic_visit(node)
        index = _constant(node.slice)
        if index is None or not isinstance(node.value, ast.Name):
            return node
        parts = index if isinstance(index, tuple) else (index,)
        return ast.copy_location(ast.Name("_".join([node.value.id, *map(str, parts)]), node.ctx), node)

    def _visit_all(self, statements: list[ast.stmt]) -> list[ast.stmt]:
        out: list[ast.stmt] = []
        for statement in statements:
            visited = self.visit(statement)
            out += visited if isinstance(visited, list) else [visited]
        return out
