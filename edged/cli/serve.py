"""`edged serve`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from edged.cli.options import configured

if TYPE_CHECKING:
    from edged.config import Config


@click.command()
@click.option("--show-config", is_flag=True, help="Print the settings in force as a TOML file, and exit.")
@configured("model", "engine", "embedding", "rag", "server")
def command(config: Config, show_config: bool) -> int:
    """Load a model, an embedding model, or both, and answer HTTP requests on a Unix socket until SIGTERM or Ctrl-C.

    Logs to stderr. Exit status 75: the model file was changed in place; start again to load it anew.
    """
    if show_config:
        from edged.config import dump

        click.echo(dump(config), nl=False)
        return 0
    import gc
    import logging

    from edged.service.app import App

    gc.enable()  # see main: a daemon lives long

    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    return App(config).run()
