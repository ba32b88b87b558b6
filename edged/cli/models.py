"""`edged models`."""

from __future__ import annotations

import json
from typing import Any

import click


@click.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON object per model and line.")
def command(as_json: bool) -> None:
    """List the models that are here, and those of the catalogue that can be pulled."""
    rows = _rows()
    if as_json:
        for row in rows:
            click.echo(json.dumps(row))
        return
    width = max(len(row["name"]) for row in rows)
    for row in rows:
        state = row["path"] or f"not here: edged pull {row['name']}"
        click.echo(f"{row['name']:<{width}}  {row['size'] / 1e6:8.1f} MB  {state}")


def _rows() -> list[dict[str, Any]]:
    from edged.store.catalogue import CATALOGUE
    from edged.store.folder import installed

    here = {path.name: path for path in installed()}
    rows = []
    for entry in CATALOGUE:
        path = here.pop(entry.file, None)
        rows.append({"name": entry.name, "summary": entry.summary, "size": entry.size, "licence": entry.licence,
                     "path": str(path or "")})  # fmt: skip
    for name, path in here.items():
        rows.append({"name": name.removesuffix(".gguf"), "summary": "", "size": path.stat().st_size, "licence": "",
                     "path": str(path)})  # fmt: skip
    return rows
