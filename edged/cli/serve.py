"""`edged serve`."""

from __future__ import annotations

from pathlib import Path
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

    from edged.errors import BadConfig
    from edged.service.app import App

    gc.enable()  # see main: a daemon lives long

    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    try:
        return App(config).run()
    except BadConfig as e:
        folder = Path(config.server.socket).parent
        if e.code == "socket_path" and not folder.exists():
            e.hint = f"the unit makes {folder} (RuntimeDirectory=edged); without it name another with --socket"
        raise
