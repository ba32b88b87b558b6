"""The arrows of the house: which part may import which, at the top of a module or inside a function.

A part is the first folder or module below `edged`. The table is the house rule: to draw a new arrow, change it here and
say why.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]

# part -> the parts it may import, besides itself, `errors` and the bare `edged`
ARROWS: dict[str, str] = {
    "errors": "",
    "config": "",
    "gguf": "",
    "tokenizers": "",
    "chat": "tokenizers",
    "kernels": "",
    "models": "",
    "protocol": "",
    "transports": "",
    "client": "protocol",  # for other programs: the port is handed in
    "rag": "",
    "convert": "gguf",
    "store": "convert",  # a model of the catalogue may travel as safetensors
    "engine": "config gguf kernels models tokenizers",
    "api": "chat config engine protocol rag tokenizers",
    "service": "api chat config engine gguf kernels models protocol rag store tokenizers transports",
    "cli": "chat config convert engine gguf kernels models rag service store tokenizers",
}

# library -> the modules that may import it; "edged.cli." stands for all of a part
HOMES: dict[str, str] = {
    "numba": "edged.kernels.",
    "llvmlite": "edged.kernels.",
    "ctypes": "edged.kernels.load edged.gguf.memory",
    "mmap": "edged.gguf.memory",
    "serial": "edged.transports.serial",
    "sqlite_utils": "edged.rag.schema",
    "tabulate": "edged.cli.store",
    "sqlite3": "edged.rag.database edged.rag.schema",
    "jinja2": "edged.chat.",
    "click": "edged.cli.",
    "h11": "edged.protocol.http",
    "asyncio": "edged.transports. edged.service. edged.api.",
    "socket": "edged.transports. edged.service. edged.cli.",
}

# where a device starts from; nothing reached from here may need the compiler
RUN_TIME = ["edged.cli.main", "edged.service.app", "edged.engine", "edged.kernels.load", "edged.kernels.program"]


def modules() -> list[tuple[str, Path]]:
    """Every module of the package by its one name, sorted."""
    found = []
    for top in ("edged", "kernels", "rag"):
        for path in sorted((CHECKOUT / top).rglob("*.py")):
            parts = path.relative_to(CHECKOUT).with_suffix("").parts
            parts = parts if top == "edged" else ("edged", *parts)
            found.append((".".join(parts).removesuffix(".__init__"), path))
    return [(name, path) for name, path in dict(found).items()]


def imports(name: str, path: Path) -> Iterator[str]:
    """Every module that `path` imports, at its top or in a function; `from package import module` is that module."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name}: relative import; name the module in full"
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield full if full in NAMES else str(node.module)


def part(module: str) -> str:
    """The part of the house a module of edged belongs to."""
    return module.split(".")[1] if "." in module else ""


def reached(roots: Iterable[str]) -> set[str]:
    """All modules that importing `roots`, and calling anything in them, can import."""
    seen: set[str] = set()
    todo = [root for root in roots if root in NAMES]
    while todo:
        name = todo.pop()
        if name not in seen:
            seen.add(name)
            todo += IMPORTS.get(name, ())
    return seen


MODULES = modules()
NAMES = {name for name, _ in MODULES}
IMPORTS = {name: sorted(set(imports(name, path))) for name, path in MODULES}


def test_the_walk_sees_the_house() -> None:
    assert {"edged.errors", "edged.config", "edged.kernels.table", "edged.rag"} <= NAMES
    assert {part(name) for name in NAMES} - {""} == set(ARROWS)


@pytest.mark.parametrize("name", sorted(NAMES))
def test_arrows(name: str) -> None:
    """A part imports only the parts the table gives it."""
    free = {part(name), "errors", ""}
    for target in IMPORTS[name]:
        if target in NAMES and part(target) not in free:
            assert part(target) in ARROWS[part(name)].split(), f"{name} may not import {target}"


@pytest.mark.parametrize("name", sorted(NAMES))
def test_homes(name: str) -> None:
    """A library with a home is imported nowhere else; `kernels` and `rag` are never imported by their bare names."""
    for target in IMPORTS[name]:
        library = target.partition(".")[0]
        assert library not in {"kernels", "rag"}, f"{name}: import edged.{target}"
        homes = HOMES.get(library, name).split()
        at_home = any(name == home or (home[-1] == "." and f"{name}.".startswith(home)) for home in homes)
        assert at_home, f"{name} may not import {library}, only {', '.join(homes)}"


def test_only_the_build_needs_the_compiler() -> None:
    needed = reached(RUN_TIME) & {"numba", "llvmlite"}
    assert not needed, f"imported by {[n for n in sorted(reached(RUN_TIME) & NAMES) if needed & set(IMPORTS[n])]}"


def test_protocol_does_no_io() -> None:
    """protocol/ is bytes in, events out."""
    forbidden = {"asyncio", "socket", "select", "selectors", "threading", "time", "os", "io", "subprocess"}
    for name in NAMES:
        if part(name) == "protocol":
            assert not {target.partition(".")[0] for target in IMPORTS[name]} & forbidden, name


def test_no_cycles() -> None:
    """No module reaches itself, not even through an import inside a function."""
    done: set[str] = set()

    def visit(name: str, trail: tuple[str, ...]) -> None:
        assert name not in trail, "import cycle: " + " -> ".join((*trail[trail.index(name) :], name))
        if name not in done:
            for target in IMPORTS.get(name, ()):
                visit(target, (*trail, name))
            done.add(name)

    for name in sorted(NAMES):
        visit(name, ())
