"""`edged inspect`."""

from __future__ import annotations

from typing import Any

import click


@click.command()
@click.argument("model", metavar="NAME|PATH")
@click.option("--json", "as_json", is_flag=True, help="Everything as one JSON object.")
def command(model: str, as_json: bool) -> None:
    """Show what a model file holds: metadata, tensors, sizes. No weight is read."""
    from edged import gguf
    from edged.store.folder import find

    with gguf.open(find(model)) as opened:
        facts = gguf.describe(opened)
    if as_json:
        import json

        click.echo(json.dumps(facts, allow_nan=False, default=str))
    else:
        click.echo("\n".join(_lines(facts)))


def _lines(facts: dict[str, Any]) -> list[str]:
    lines = [
        f"{facts['path']}: GGUF v{facts['version']}, {facts['size'] / 1e6:.1f} MB in {len(facts['files'])} file(s), "
        f"{facts['weights'] / 1e6:.1f} M weights, {8 * facts['size'] / max(facts['weights'], 1):.2f} bits each",
        "",
        "metadata",
        *(f"  {row['key']:<44} {row['type']:<8} {_value(row)}" for row in facts["metadata"]),
        "",
        "tensors",
    ]
    width = max((len(row["name"]) for row in facts["tensors"]), default=0)
    for row in facts["tensors"]:
        shape = " x ".join(map(str, row["shape"]))
        lines.append(f"  {row['name']:<{width}}  {row['type']:<6} {shape:>16} {row['bytes']:>12} bytes")
    lines += ["", "types"]
    for row in facts["types"]:
        lines.append(f"  {row['type']:<6} {row['tensors']:>6} tensors {row['bytes'] / 1e6:>10.1f} MB")
    return lines


def _value(row: dict[str, Any], limit: int = 72) -> str:
    if "length" in row:
        return f"{row['length']} values: {_shorten(', '.join(map(str, row['first'])), limit)}"
    return _shorten(str(row["value"]), limit)


def _shorten(text: str, limit: int) -> str:
    text = text.encode("unicode_escape").decode("ascii") if not text.isprintable() else text
    return text if len(text) <= limit else text[: limit - 3] + "..."
