"""The tables of README.md are what the code has."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]


def test_generated_parts_are_fresh() -> None:
    done = subprocess.run(
        [sys.executable, str(CHECKOUT / "packaging" / "reference.py"), "--check"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
