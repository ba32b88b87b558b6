"""`edged search`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from edged.cli import manuals
from edged.cli.manuals import NOTHING, place, printable
from edged.cli.options import configured, filtered, given, questioned

if TYPE_CHECKING:
    from edged.config import Config


@click.command(epilog="Exit status: 0 something was found; 4 nothing was; 1 error.")
@questioned
@filtered
@click.option("--json", "as_json", is_flag=True, help="One JSON object per passage and line.")
@configured("rag.store", "rag.passages", "embedding", "server.socket", "engine.threads", "engine.kernel_level",
            "engine.memory_check")
def command(config: Config, question: str, as_json: bool, only: dict[str, str]) -> int:
    """Show the passages of the manuals that have to do with QUESTION, best first; without one, or for "-", with stdin.

    Words, codes and meaning decide. The daemon is asked if one answers on the socket, else this process searches; with
    --store this process, in that file. The daemon has its own model: flags for models, such as --embedding-model or
    --threads, are refused then.
    """
    options = {**only, **given("rag.passages")}
    with manuals.opened(config) as target:
        found = target.search(question, options)
    for passage in found:
        if as_json:
            click.echo(json.dumps(passage))
        else:
            click.secho(place(passage), bold=True)
            click.echo(f"{printable(passage['text'].strip())}\n")
    if not found:
        click.echo("nothing found", err=True)
    return 0 if found else NOTHING
