"""Write the tables of README.md that are made from the code: `python packaging/reference.py [--check]`.

A table stands between `<!-- NAME -->` and `<!-- end -->`. With --check nothing is written, and the exit code is 1 if
something would be.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

README = Path(__file__).resolve().parent.parent / "README.md"


def main(check: bool) -> int:
    text = README.read_text("utf-8")
    fresh = text
    for name, lines in (("settings", settings()), ("levels", levels()), ("tensor types", tensor_types())):
        pattern = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end -->)", re.S)
        table = "".join(f"{line}\n" for line in lines)
        fresh, count = pattern.subn(lambda m, table=table: m[1] + table + m[2], fresh)
        if count != 1:
            raise SystemExit(f"README.md: {count} sections <!-- {name} -->")
    if fresh == text:
        return 0
    if check:
        print("README.md is stale, run: python packaging/reference.py")
        return 1
    README.write_text(fresh, "utf-8")
    return 0


def settings() -> Iterator[str]:
    """Every setting of edged/config.py."""
    from edged import config

    yield from ("| Key | Default | Meaning |", "| --- | --- | --- |")
    for s in config.settings():
        default = f'"{s.default}"' if isinstance(s.default, str) else s.default
        yield f"| `{s.section}.{s.name}` | `{default}` | {s.help} |"


def levels() -> Iterator[str]:
    """Every CPU level of kernels/table.py."""
    from edged.kernels.table import LEVELS

    yield from ("| Level | Processor features |", "| --- | --- |")
    yield from (f"| `{level.name}` | {', '.join(level.features)} |" for level in LEVELS)


def tensor_types() -> Iterator[str]:
    """Every tensor type of kernels/table.py, in one line."""
    from edged.kernels.table import TYPES

    yield ", ".join(t.name.upper() for t in TYPES) + "."


if __name__ == "__main__":
    sys.path.insert(0, str(README.parent))
    sys.exit(main("--check" in sys.argv[1:]))
