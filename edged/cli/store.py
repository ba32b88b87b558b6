"""`edged store`."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Generator, Iterable
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from edged.cli import manuals
from edged.cli.manuals import Row
from edged.cli.options import configured, filtered, given
from edged.cli.report import counted
from edged.errors import BadRequest, BadStore, EdgedError, NotFound

if TYPE_CHECKING:
    from edged.config import Config
    from edged.rag.store import Store

FORMATS = {
    "json": "A JSON array.",
    "nl": "One JSON object per row and line.",
    "csv": "Comma-separated values, with a line of column names.",
    "tsv": "Tab-separated values, with a line of column names.",
    "table": "A table for people.",
}


def formatted(default: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a command a flag for each of FORMATS, and `form: str` for the one chosen."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        for form, help in reversed(FORMATS.items()):
            shown = "  [default]" if form == default else ""
            function = click.option(f"--{form}", "form", flag_value=form, default=None, help=help + shown)(function)

        @functools.wraps(function)
        def wrapper(*args: Any, form: str | None, **given: Any) -> Any:
            return function(*args, form=form or default, **given)

        return wrapper

    return decorate


def local(config: Config) -> Path:
    """The file of the settings, for what no daemon does; says so if the daemon on the socket has another."""
    from edged.store.folder import manuals_file

    path = manuals_file(config.rag.store)
    if not given("rag.store"):
        from edged.cli import client

        socket = config.server.socket
        with suppress(EdgedError):  # there is none, or it keeps no manuals
            nothing = {"document": "/"}  # of what is in it
            other = client.fetch(socket, "GET", "/v1/documents", nothing)["store"]
            if Path(other).resolve() != path.resolve():
                click.echo(f"this is {path}; the daemon on {socket} keeps its manuals in {other}: "
                           f"--store {other} for these", err=True)  # fmt: skip
    return path


def opened(config: Config) -> closing[Store]:
    """The store of that file."""
    from edged.rag.store import Store

    return closing(Store(local(config)))


def write(rows: Iterable[Row], columns: Iterable[str], form: str) -> None:
    """Write rows in one of FORMATS, in the manner of sqlite-utils; lists stand as JSON in a column. A table leaves out
    the columns that hold nothing."""
    import csv
    import sys

    columns = list(columns)
    if form == "nl":
        for row in rows:
            click.echo(json.dumps(row, ensure_ascii=False))
        return
    if form == "json":
        before = "["
        for row in rows:
            click.echo(before + json.dumps(row, ensure_ascii=False), nl=False)
            before = ",\n "
        click.echo("[]" if before == "[" else "]")
        return
    plain = ([json.dumps(v, ensure_ascii=False) if isinstance(v, list) else v for v in map(row.get, columns)]
             for row in rows)  # fmt: skip
    if form == "table":
        import tabulate  # type: ignore[import-untyped]

        lines = list(plain)
        filled = [n for n in range(len(columns)) if not lines or any(line[n] not in (None, "", "[]") for line in lines)]
        lines = [[line[n] for n in filled] for line in lines]
        click.echo(tabulate.tabulate(lines, [columns[n] for n in filled], disable_numparse=True))  # 2.10 is not 2.1
        return
    writer = csv.writer(sys.stdout, delimiter="\t" if form == "tsv" else ",", lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(plain)


@click.group()
def command() -> None:
    """Look after the store of manuals: what is in it, whether it is whole, what goes."""


@command.command()
@formatted("table")
@configured("rag.store", "server.socket")
def stats(config: Config, form: str) -> None:
    """Count documents, contents (equal files are one), chunks, pages and bytes, and name the embedding model.

    No daemon is asked: this looks into the file of --store or of the settings.
    """
    with opened(config) as store:
        row: Row = {"store": str(store.path), **store.stats()}
        binding = store.binding()
    for name in ("vectors", "scanned"):  # those of the chunks
        del row[name]
    row["words"] = row.get("words")  # none: no search by words, for want of FTS5
    row |= zip(("model", "fingerprint", "dim", "pooling"), binding or (None,) * 4, strict=True)
    if form == "table":
        write([{"": name, "value": value} for name, value in row.items()], ("", "value"), form)
    else:
        write([row], row, form)


@command.command("list")
@filtered
@formatted("table")
@configured("rag.store", "server.socket")
def list_(config: Config, only: dict[str, str], form: str) -> None:
    """List the documents: id, collection, path, title, product, version, pages, pages_without_text, chunks.

    Those of the daemon if one answers on the socket, else of the settings' store; with --store of that file.
    """
    from edged.rag.store import DocumentRow

    with manuals.opened(config) as target:
        rows = target.documents(only)
    names = ["pages_without_text" if name == "blank" else name for name in DocumentRow._fields]
    write(rows, [name for name in names if form != "table" or name != "sha256"], form)


@command.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@configured("rag.store", "server.socket")
def check(config: Config, as_json: bool) -> None:
    """Read the whole store and compare its tables. Exit status 1 if it is damaged.

    No daemon is asked: this looks into the file of --store or of the settings.
    """
    try:
        with opened(config) as store:
            store.check()
            counts = store.stats()
    except BadStore as error:
        if as_json:
            click.echo(json.dumps({"whole": False, "error": error.message}))
        raise
    found = {"store": str(store.path), "documents": counts["documents"], "chunks": counts["chunks"]}
    if as_json:
        click.echo(json.dumps({"whole": True, **found}))
    else:
        holds = f"{counted(counts['documents'], 'document')}, {counted(counts['chunks'], 'chunk')}"
        click.echo(f"{store.path} is whole: {holds}")


@command.command()
@click.argument("documents", nargs=-1, metavar="[ID|PATH]...")
@filtered
@click.option("--json", "as_json", is_flag=True, help="One JSON object per document and line.")
@configured("rag.store", "server.socket")
def remove(config: Config, documents: tuple[str, ...], only: dict[str, str], as_json: bool) -> None:
    """Remove documents by id, path or file name, or all that pass the filters.

    From the daemon's store if one answers on the socket, else from the settings'; with --store from that file.
    """
    if not documents and not only:
        raise click.UsageError("name documents (edged store list), or give a filter")
    with manuals.opened(config) as target:
        rows = target.documents(only)
        if documents:
            rows = list({row["id"]: row for row in (_named(rows, name) for name in documents)}.values())
        elif not rows:
            raise NotFound("no document passes the filters", hint="edged store list")
        for row in rows:
            target.remove(row["id"])
            if as_json:
                click.echo(json.dumps({**row, "deleted": True}))
            else:
                click.echo(f"removed document {row['id']}: {row['path']} (collection {row['collection']})")


def _named(rows: list[Row], name: str) -> Row:
    """The one document that an argument means. Raises NotFound, BadRequest."""
    absolute = str(Path(name).resolve())
    found = ([row for row in rows if row["path"] in (name, absolute)]
             or [row for row in rows if str(row["id"]) == name]
             or [row for row in rows if row["path"].endswith(f"/{name}")])  # fmt: skip
    if not found:
        raise NotFound(f"no document {name} in the store, or none that passes the filters", hint="edged store list")
    if len(found) > 1:
        listed = ", ".join(f"{row['id']} {row['path']} ({row['collection']})" for row in found)
        raise BadRequest(f"{name} may be {listed}", hint="give the id, or --collection")
    return found[0]


@command.command()
@filtered
@formatted("nl")
@configured("rag.store", "server.socket")
def export(config: Config, only: dict[str, str], form: str) -> None:
    """Write the chunks as rows: their document, page and page_end, headings, text.

    No daemon is asked: this looks into the file of --store or of the settings, which is named on stderr.
    """
    from edged.rag.admin import COLUMNS
    from edged.rag.store import Filter

    with opened(config) as store:
        click.echo(f"store: {store.path}", err=True)
        # closed before the store, also where the reader of the output goes away
        with closing(cast("Generator[Row]", store.export(Filter(**only)))) as rows:
            write(rows, COLUMNS, form)


@command.command()
@configured("rag.store", "server.socket")
def migrate(config: Config) -> None:
    """Bring a store that an older edged wrote up to date; a copy of it is kept beside it.

    No daemon is asked: this changes the file of --store or of the settings.
    """
    from edged.rag import schema

    path = local(config)
    old, copy = schema.migrate(path)
    if copy is None:
        click.echo(f"{path} has version {old} already")
    else:
        click.echo(f"{path} was version {old} and is up to date; as it was: {copy}")
