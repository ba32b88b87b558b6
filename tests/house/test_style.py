"""House style that a linter does not know."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]
SOURCES = [
    path.relative_to(CHECKOUT)
    for top in ("edged", "kernels", "rag", "packaging", "tests")
    for path in sorted((CHECKOUT / top).rglob("*.py"))
]
LIBRARIES = [path for path in SOURCES if path.parts[0] in {"edged", "rag"} and path.parts[1] != "cli"]
LIBRARIES += [Path("kernels", name) for name in ("table.py", "load.py", "program.py")]  # the rest is the build's
MAX_LINES = 450


def test_the_walk_sees_the_sources() -> None:
    assert {Path("edged/errors.py"), Path("kernels/table.py"), Path("tests/arm.py")} <= set(SOURCES)
    assert not any(path.is_relative_to("edged/kernels") for path in SOURCES)


@pytest.mark.parametrize("path", SOURCES, ids=str)
def test_file(path: Path) -> None:
    """A file can be read at one sitting, and knows nothing of the machine it was written on."""
    text = (CHECKOUT / path).read_text("utf-8")
    assert text.count("\n") <= MAX_LINES, f"{path}: {text.count(chr(10))} lines"
    assert not re.search(r"(?<![\w.])/(?:work|root|home)/", text), f"{path} names a folder of one machine"


@pytest.mark.parametrize("path", LIBRARIES, ids=str)
def test_library(path: Path) -> None:
    """A library module says what it is for, raises errors of edged.errors and prints nothing."""
    tree = ast.parse((CHECKOUT / path).read_text("utf-8"))
    assert ast.get_docstring(tree) or not tree.body, f"{path} has no docstring"
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id != "print", f"{path}:{node.lineno} prints"
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and isinstance(node.exc.func, ast.Name):
            bare = {"Exception", "RuntimeError", "OSError"}
            assert node.exc.func.id not in bare, f"{path}:{node.lineno} raises a {node.exc.func.id} without a name"


@pytest.mark.parametrize("path", LIBRARIES, ids=str)
def test_public_names_are_documented(path: Path) -> None:
    """Every public class, and every public function or method of some length, has a docstring.

    Methods of a class that has a base do what the base says.
    """
    tree = ast.parse((CHECKOUT / path).read_text("utf-8"))
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name[0] != "_" and not node.bases]
    for scope in (tree, *classes):
        for node in scope.body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.name[0] != "_":
                short = not isinstance(node, ast.ClassDef) and len(node.body) <= 3
                assert short or ast.get_docstring(node), f"{path}:{node.lineno} {node.name} has no docstring"
