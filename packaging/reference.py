"""Write the parts of the docs that are made from the code: `python packaging/reference.py [--check]`.

packaging/edged.toml, the sample configuration, and the tables of README.md between `<!-- NAME -->` and `<!-- end -->`,
are made from edged/config.py and kernels/table.py. With --check nothing is written; exit code 1 if something would be.
"""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent


def main(check: bool) -> int:
    stale = []
    for path, content in wanted():
        if not path.exists() or path.read_text("utf-8") != content:
            stale.append(path.relative_to(ROOT))
            if not check:
                path.write_text(content, "utf-8")
    for name in stale:
        print(f"{name}: {'stale, run: python packaging/reference.py' if check else 'written'}")
    return 1 if check and stale else 0


def wanted() -> Iterator[tuple[Path, str]]:
    """Every file that has generated parts, with its content as it should be."""
    yield ROOT / "packaging" / "edged.toml", sample()
    readme = ROOT / "README.md"
    text = readme.read_text("utf-8")
    for name, table in (("settings", settings_table()), ("tensor types", types_line()), ("levels", levels_table())):
        pattern = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end -->)", re.S)
        text, count = pattern.subn(lambda m, table=table: m[1] + table + m[2], text)
        if count != 1:
            raise SystemExit(f"README.md: {count} sections <!-- {name} -->")
    yield readme, text


def sample() -> str:
    """The sample configuration: every key with its help and default, commented out."""
    lines = ["# Settings of edged. Every key is optional; the values here are the defaults."]
    for section, intro, keys in sections():
        lines += ["", f"# {intro}", f"[{section}]"]
        for name, default, text in keys:
            lines += textwrap.wrap(text, 110, initial_indent="# ", subsequent_indent="# ")
            lines.append(f"#{name} = {toml(default)}")
    return "\n".join(lines) + "\n"


def settings_table() -> str:
    """A Markdown table of all settings."""
    lines = ["| Key | Default | Meaning |", "| --- | --- | --- |"]
    for section, _, keys in sections():
        lines += [f"| `{section}.{name}` | `{toml(default)}` | {text} |" for name, default, text in keys]
    return "\n".join(lines) + "\n"


def types_line() -> str:
    """The tensor types, in one line."""
    from edged.kernels.table import TYPES

    return ", ".join(t.name.upper() for t in TYPES) + "\n"


def levels_table() -> str:
    """A Markdown table of the CPU levels."""
    from edged.kernels.table import LEVELS

    lines = ["| Level | Needs |", "| --- | --- |"]
    lines += [f"| `{level.name}` | {', '.join(level.features)} |" for level in LEVELS]
    return "\n".join(lines) + "\n"


def sections() -> Iterator[tuple[str, str, list[tuple[str, Any, str]]]]:
    """Each section of the settings: name, what it is about, its (key, default, help)."""
    from edged.config import Config

    config = Config()
    for section in fields(Config):
        values = getattr(config, section.name)
        keys = [(key.name, getattr(values, key.name), key.metadata["help"]) for key in fields(values)]
        yield section.name, (type(values).__doc__ or "").splitlines()[0], keys


def toml(value: Any) -> str:
    """A TOML literal of a default."""
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else repr(value)


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    sys.exit(main("--check" in sys.argv[1:]))
