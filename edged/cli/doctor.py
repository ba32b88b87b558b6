"""`edged doctor`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from edged.cli.options import configured

if TYPE_CHECKING:
    from edged.config import Config


@click.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON object per finding and line.")
@configured("model", "engine", "embedding", "rag", "server")
def command(config: Config, as_json: bool) -> int:
    """Look for what keeps edged from running well here, and say what to do about it.

    Exit status: 0 nothing, or warnings; 1 an error.
    """
    import json

    from edged.service.doctor import examine

    status = 0
    for finding in examine(config):
        status |= finding.status == "error"
        if as_json:
            click.echo(json.dumps(finding._asdict()))
            continue
        click.echo(f"{finding.status:<8} {finding.check}: {finding.text}")
        if finding.remedy:
            click.echo(f"{'':8} -> {finding.remedy}")
    return int(status)
