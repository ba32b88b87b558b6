"""How the command line tells of errors and numbers."""

from __future__ import annotations

import click

from edged.errors import EdgedError


def report(error: EdgedError) -> None:
    """Print the message, and the remedy where there is one, on stderr."""
    click.echo(f"error: {error.message}", err=True)
    if error.hint:
        click.echo(f"hint: {error.hint}", err=True)


def counted(n: int, what: str) -> str:
    """'1 page', '2 pages'."""
    return f"{n} {what}{'' if n == 1 else 's'}"
