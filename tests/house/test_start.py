"""What is loaded when: a start pays only for what it uses."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]
HEAVY = {"asyncio", "sqlite3", "sqlite_utils", "numba", "llvmlite", "h11", "serial", "llguidance", "pypdfium2", "ssl"}

# runs the command line in this process and, at the first text it prints, says what is loaded
FIRST_TOKEN = """
import sys
class Out:
    def write(self, text):
        print(text, *sys.modules, file=sys.__stdout__, flush=True)
        import os
        os._exit(0)
    flush = isatty = lambda self: None
out = Out()
out.buffer = out
sys.stdout = out
from edged.cli.main import main
main(sys.argv[1:])
"""


def python(code: str, *args: str) -> str:
    done = subprocess.run([sys.executable, "-c", code, *args], cwd=CHECKOUT, capture_output=True, text=True,
                          env={**os.environ, "PYTHONPATH": str(CHECKOUT)})  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_first_token(smollm2_path: Path) -> None:
    """At the first token of `edged run` nothing is loaded that only other commands need."""
    loaded = set(python(FIRST_TOKEN, "run", "--model", str(smollm2_path), "-n", "1", "Hello").split())
    assert {"numpy", "jinja2", "edged.engine"} <= loaded
    assert not loaded & HEAVY


@pytest.mark.parametrize("module", ["edged", "edged.errors", "edged.config"])
def test_light_modules(module: str) -> None:
    """These import nothing from outside the standard library, and nothing heavy in it."""
    code = f"import sys; before = set(sys.modules); import {module}; print(*set(sys.modules) - before)"
    assert not set(python(code).split()) & (HEAVY | {"numpy", "click", "jinja2", "json", "ctypes"})


def test_help_is_light() -> None:
    """`edged --help` needs neither numpy nor a kernel."""
    loaded = python("import sys, edged.cli.main as m; m.run(['--help']); print(*sys.modules)").split()
    assert not set(loaded) & (HEAVY | {"numpy", "jinja2", "ctypes"})
