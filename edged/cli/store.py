"""`edged store`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from contextlib import closing
from typing import TYPE_CHECKING, Any

import click

from edged.cli.options import configured
from edged.errors import BadRequest, NotFound

if TYPE_CHECKING:
    from edged.config import Config
    from edged.rag.store import DocumentRow, Filter, Store

Row = dict[str, Any]
COLUMNS = ("document", "collection", "path", "title", "product", "version", "chunk", "page", "page_end", "headings",
           "text")  # fmt: skip
FORMATS = {
    "json": "A JSON array.",
    "nl": "One JSON object per row and line.",
    "csv": "Comma-separated values, with a line of column names.",
    "tsv": "Tab-separated values, with a line of column names.",
    "table": "A table for people.",
}
FILTERS = {
    "collection": "Only documents of this collection.",
    "product": "Only documents of this product.",
    "version": "Only documents of this version of the product.",
    "document": "Only the document of this path or file name.",
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


def filtered(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command an option for each of FILTERS, and `only: Filter` for them all."""

    @functools.wraps(function)
    def wrapper(*args: Any, **given: Any) -> Any:
        from edged.rag.store import Filter

        return function(*args, only=Filter(**{name: given.pop(name) for name in FILTERS}), **given)

    for name, help in reversed(FILTERS.items()):
        wrapper = click.option(f"--{name}", metavar="TEXT", default="", help=help)(wrapper)
    return wrapper


def opened(config: Config) -> closing[Store]:
    """The store of the settings."""
    from edged.rag.store import Store
    from edged.store.folder import manuals_file

    return closing(Store(manuals_file(config.rag.store)))


def write(rows: Iterable[Row], columns: Iterable[str], form: str) -> None:
    """Write rows in one of FORMATS, in the manner of sqlite-utils; lists stand as JSON in a column."""
    import csv
    import json
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

        click.echo(tabulate.tabulate(plain, columns, disable_numparse=True))  # version 2.10 is not 2.1
        return
    writer = csv.writer(sys.stdout, delimiter="\t" if form == "tsv" else ",", lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(plain)


@click.group()
def command() -> None:
    """Look after the store of manuals: what is in it, whether it is whole, what goes."""


@command.command()
@formatted("table")
@configured("rag.store")
def stats(config: Config, form: str) -> None:
    """Count documents, contents (equal files are one), chunks, pages and bytes, and name the embedding model."""
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
@configured("rag.store")
def list_(config: Config, only: Filter, form: str) -> None:
    """List the documents: id, collection, path, title, product, version, pages (blank: without text), chunks."""
    from edged.rag.store import DocumentRow

    with opened(config) as store:
        rows = [{**row._asdict(), "blank": list(row.blank)} for row in store.documents(only)]
    shown = [name for name in DocumentRow._fields if form != "table" or name != "sha256"]
    write(rows, shown, form)


@command.command()
@configured("rag.store")
def check(config: Config) -> None:
    """Read the whole store and compare its tables. Exit status 1 if it is damaged."""
    with opened(config) as store:
        store.check()
        counts = store.stats()
        click.echo(f"{store.path} is whole: {counts['documents']} documents, {counts['chunks']} chunks")


@command.command()
@click.argument("documents", nargs=-1, metavar="[ID|PATH]...")
@filtered
@configured("rag.store")
def remove(config: Config, documents: tuple[str, ...], only: Filter) -> None:
    """Remove documents by id, path or file name, or all that pass the filters."""
    if not documents and not any(vars(only).values()):
        raise click.UsageError("name documents (edged store list), or give a filter")
    with opened(config) as store:
        rows = store.documents(only)
        for row in {row.id: row for name in documents for row in [_named(rows, name)]}.values() if documents else rows:
            store.remove(row.id)
            click.echo(f"removed {row.id} {row.path}")
        if not documents and not rows:
            raise NotFound("no document passes the filters", hint="edged store list")


def _named(rows: list[DocumentRow], name: str) -> DocumentRow:
    """The one document that an argument means. Raises NotFound, BadRequest."""
    from pathlib import Path

    absolute = str(Path(name).resolve())
    found = ([row for row in rows if row.path in (name, absolute)]
             or [row for row in rows if str(row.id) == name]
             or [row for row in rows if row.path.endswith(f"/{name}")])  # fmt: skip
    if not found:
        raise NotFound(f"no document {name} in the store, or none that passes the filters", hint="edged store list")
    if len(found) > 1:
        listed = ", ".join(f"{row.id} {row.path} ({row.collection})" for row in found)
        raise BadRequest(f"{name} may be {listed}", hint="give the id, or --collection")
    return found[0]


@command.command()
@filtered
@formatted("nl")
@configured("rag.store")
def export(config: Config, only: Filter, form: str) -> None:
    """Write the chunks as rows: their document, page and page_end, headings, text."""
    with opened(config) as store:
        write(store.export(only), COLUMNS, form)


@command.command()
@configured("rag.store")
def migrate(config: Config) -> None:
    """Bring a store that an older edged wrote up to date; a copy of it is kept beside it."""
    from edged.rag import schema
    from edged.store.folder import manuals_file

    path = manuals_file(config.rag.store)
    old, copy = schema.migrate(path)
    if copy is None:
        click.echo(f"{path} has version {old} already")
    else:
        click.echo(f"{path} was version {old} and is up to date; as it was: {copy}")
