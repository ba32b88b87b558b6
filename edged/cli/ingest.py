"""`edged ingest`."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

import click

from edged.cli import files, manuals
from edged.cli.manuals import Manuals, Row
from edged.cli.options import configured, named
from edged.cli.pull import Bar
from edged.errors import EdgedError, NotFound

if TYPE_CHECKING:
    from edged.config import Config

DOCUMENTS = ("added", "unchanged", "failed", "pruned")


@click.command(epilog="Exit status: 0 all is in the store; 3 some files or folders were refused; 1 error.")
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option("--collection", default="default", show_default=True, callback=named,
              help="Collection the documents belong to.")
@click.option("--product", default="", help="Product the documents are about.")
@click.option("--version", default="", help="Version of the product that the documents are about.")
@click.option("--prune", is_flag=True,
              help="Forget the documents of the collection that lay in the folders given and are gone from the disk.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per file and line, the report as the last.")
@click.option("-q", "--quiet", is_flag=True, help="No progress bar and no report; only the files refused, on stderr.")
@configured("rag.store", "rag.chunk", "embedding", "server.socket", "engine.threads", "engine.kernel_level",
            "engine.memory_check")
def command(config: Config, paths: tuple[str, ...], collection: str, product: str, version: str, prune: bool,
            as_json: bool, quiet: bool) -> int:
    """Put documents into the store, for questions about them.

    PATH is a file, a folder with all below it, or a pattern such as '*.pdf'; hidden files and folders are passed over.
    PDF, HTML, Markdown and plain text are read. A file that is in the store as it is on the disk costs only a look.
    A folder without any file, such as one whose disk is not mounted, is refused; of what lay in it --prune forgets
    nothing.

    The daemon does it if one answers on the socket, else this process; with --store this process, in that file. The
    daemon has its own models and settings: flags for these, such as --chunk or --threads, are refused then.
    """
    about = {"collection": collection, "product": product, "version": version}
    with manuals.opened(config) as target, Bar(quiet) as bar:
        job = Job(target, about, bar, Report(as_json, quiet))
        try:
            job.run(files.find(paths), prune)
        finally:  # of an ingest that was cut off, too: what is complete stays
            bar.close()
            job.report.finish(target.where)
    return 3 if job.report.refused else 0


@dataclass
class Report:
    """What became of the files. `known` are counted as they were in the store."""

    as_json: bool
    quiet: bool
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(DOCUMENTS, 0))
    pages: int = 0
    chunks: int = 0
    embedded: int = 0
    blank: list[tuple[str, list[int]]] = field(default_factory=list)
    refused: list[tuple[str, str]] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    started: float = field(default_factory=time.monotonic)

    def add(self, done: Row) -> None:
        """One file that is done."""
        self.counts[done["outcome"]] += 1
        if done["outcome"] == "failed":
            self.refused.append((done["path"], done["error"]))
        elif done["outcome"] != "pruned":
            self.pages += done["pages"] or 0
            self.chunks += done["chunks"]
            self.embedded += done["embedded"]
            if done["pages_without_text"]:
                self.blank.append((done["path"], list(done["pages_without_text"])))
        if self.as_json:
            click.echo(json.dumps(done))
        elif self.quiet and done["outcome"] == "failed":
            click.echo(f"refused: {shown(done['path'])}: {done['error']}", err=True)

    def finish(self, where: str) -> None:
        """Print the report."""
        seconds = time.monotonic() - self.started
        without = sum(len(pages) for _, pages in self.blank)
        if self.as_json:
            refused = [{"path": path, "error": error} for path, error in self.refused]
            counts = {**self.counts, "pages": self.pages, "chunks": self.chunks, "embedded": self.embedded,
                      "pages_without_text": without}  # fmt: skip
            click.echo(json.dumps({"report": {"store": where, **counts, "refused": refused, "kept": self.kept,
                                              "seconds": round(seconds, 3)}}))  # fmt: skip
            return
        if self.quiet:
            return
        click.echo(f"documents: {', '.join(f'{self.counts[name]} {name}' for name in DOCUMENTS)}")
        click.echo(f"{self.pages} pages, {self.chunks} chunks, {self.embedded} of them embedded now; "
                   f"{without} pages without text; {seconds:.1f} s")  # fmt: skip
        click.echo(f"store: {where}")
        for path, pages in self.blank:
            click.echo(f"without text, scanned most likely: {shown(path)}: page {', '.join(map(str, pages))}")
        for path in self.kept:
            click.echo(f"gone from the disk, kept without --prune: {shown(path)}")
        for path, error in self.refused:
            click.echo(f"refused: {shown(path)}: {error}")


def shown(path: str) -> str:
    """A path that any terminal can show."""
    return path.encode("utf-8", "backslashreplace").decode() if path.isprintable() else ascii(path)[1:-1]


@dataclass
class Job:
    """One run of the command."""

    target: Manuals
    about: dict[str, str]
    bar: Bar
    report: Report

    def run(self, found: files.Found, prune: bool) -> None:
        """Store what is new, then forget what is gone. Raises NotFound if there is nothing at all."""
        for path, why in found.refused:
            self.report.add(manuals.failed(path, why))
        if not found.files:
            raise NotFound("nothing to ingest", hint="give files, folders with files in them, or patterns")
        known: dict[str, Row] = {}
        with suppress(NotFound):  # there is no store yet
            known = {row["path"]: row for row in self.target.documents({"collection": self.about["collection"]})}
        self._ingest(self._changed(found.files, known))
        for path, row in known.items():
            if files.under(path, found.folders) and not files.under(path, found.empty) and files.gone(path):
                if prune:
                    self.target.remove(row["id"])
                    self.report.add({"path": path, "outcome": "pruned"})
                else:
                    self.report.kept.append(path)

    def _changed(self, paths: list[Path], known: dict[str, Row]) -> list[tuple[Path, int]]:
        """The files that are not in the store as they are on the disk, and their sizes; the others are reported."""
        changed = []
        for n, path in enumerate(paths):
            self.bar.update("looking", n, len(paths), path.name)
            try:
                size = files.check(path)
                row = known.get(str(path))
                if row and self.about.items() <= row.items() and row["sha256"] == sha256(files.read(path)).hexdigest():
                    about = {name: row[name] for name in ("chunks", "pages", "pages_without_text")}
                    self.report.add({**manuals.failed(str(path), ""), "outcome": "unchanged", **about})
                else:
                    changed.append((path, size))
            except (EdgedError, OSError) as e:
                self.report.add(manuals.failed(str(path), _why(e)))
        return changed

    def _ingest(self, changed: list[tuple[Path, int]]) -> None:
        before, total = 0, sum(size for _, size in changed)
        for path, size in changed:
            def progress(done: int, chunks: int, before: int = before, size: int = size, path: Path = path) -> None:
                self.bar.update("ingesting", before + size * done // max(chunks, 1), total, path.name)

            progress(0, 1)
            try:
                data = files.read(path)
            except (EdgedError, OSError) as e:
                self.report.add(manuals.failed(str(path), _why(e)))
            else:
                self.report.add(self.target.ingest(str(path), data, self.about, progress))
            before += size
        if changed:
            self.bar.update("ingesting", total, total)


def _why(error: Exception) -> str:
    return str(error) if isinstance(error, EdgedError) else getattr(error, "strerror", None) or str(error)
