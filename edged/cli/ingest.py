"""`edged ingest`."""

from __future__ import annotations

import json
import os
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
from edged.cli.report import counted
from edged.errors import EdgedError, NotFound, NotReady

if TYPE_CHECKING:
    from edged.config import Config

DOCUMENTS = ("added", "unchanged", "failed", "pruned")
STAYS = "; what was read of it before stays in the store (edged store remove)"
AGAIN = "run the same command again, it goes on where it was"
CUT_OFF = (EdgedError.code, NotReady.code)  # a daemon that is killed, or stopped


@click.command(epilog="Exit status: 0 all is in the store; 3 some files or folders were refused; 1 error.")
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option("--collection", default="default", show_default=True, callback=named,
              help="Collection the documents belong to.")
@click.option("--product", default=None, help="Product the documents are about; without it they keep theirs.")
@click.option("--version", default=None, help="Version of that product; without it they keep theirs.")
@click.option("--prune", is_flag=True,
              help="Forget the documents of the collection that lay in the folders given and are gone from the disk.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per file and line, the report as the last.")
@click.option("-q", "--quiet", is_flag=True, help="No progress bar and no report; only the files refused, on stderr.")
@configured("rag.store", "rag.chunk", "embedding", "server.socket", "engine.threads", "engine.kernel_level",
            "engine.memory_check")
def command(config: Config, paths: tuple[str, ...], collection: str, product: str | None, version: str | None,
            prune: bool, as_json: bool, quiet: bool) -> int:
    """Put documents into the store, for questions about them.

    PATH is a file, a folder with all below it, or a pattern such as '*.pdf'; hidden files and folders are passed over.
    PDF, HTML, Markdown and plain text are read. A file that is in the store as it is on the disk costs only a look.
    A folder without any file, such as one whose disk is not mounted, is refused; of what lay in it --prune forgets
    nothing.

    The daemon does it if one answers on the socket, else this process; with --store this process, in that file. The
    daemon has its own models and settings: flags for these, such as --chunk or --threads, are refused then.
    """
    given = {"product": product, "version": version}
    about = {"collection": collection, **{name: value for name, value in given.items() if value is not None}}
    with manuals.opened(config) as target, Bar(quiet) as bar:
        job = Job(target, about, bar, Report(as_json, quiet))
        try:
            job.run(files.find(paths), prune)
        except KeyboardInterrupt:
            job.report.interrupted = True
            raise
        except EdgedError as e:
            if e.code in CUT_OFF and target.where:
                e.hint = f"start the daemon again if it has ended, and {AGAIN}"
            raise
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
    pages: int | None = None  # no document with pages yet
    chunks: int = 0
    embedded: int = 0
    blank: list[tuple[str, list[int]]] = field(default_factory=list)
    refused: list[tuple[str, str]] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    interrupted: bool = False
    started: float = field(default_factory=time.monotonic)

    def add(self, done: Row) -> None:
        """One file that is done."""
        self.counts[done["outcome"]] += 1
        if done["outcome"] == "failed":
            self.refused.append((done["path"], done["error"]))
        elif done["outcome"] != "pruned":
            if done["pages"] is not None:
                self.pages = (self.pages or 0) + done["pages"]
            self.chunks += done["chunks"]
            self.embedded += done["embedded"]
            if done["pages_without_text"]:
                self.blank.append((done["path"], list(done["pages_without_text"])))
        if self.as_json:
            click.echo(json.dumps(done))
        elif self.quiet and done["outcome"] == "failed":
            click.echo(f"refused: {shown(done['path'])}: {done['error']}", err=True)

    def finish(self, where: str) -> None:
        """Print the report; of what was not begun nothing. where: '' if nobody knows."""
        seconds = time.monotonic() - self.started
        without = sum(len(pages) for _, pages in self.blank)
        if self.as_json:
            refused = [{"path": path, "error": error} for path, error in self.refused]
            counts = {**self.counts, "pages": self.pages or 0, "chunks": self.chunks, "embedded": self.embedded,
                      "pages_without_text": without}  # fmt: skip
            click.echo(json.dumps({"report": {"store": where or None, **counts, "refused": refused, "kept": self.kept,
                                              "interrupted": self.interrupted, "seconds": round(seconds, 3)}}))
            return
        if self.quiet:
            return
        if self.interrupted:
            click.echo(f"interrupted: {AGAIN}")
        if sum(self.counts.values()) > self.counts["failed"]:
            click.echo(f"documents: {', '.join(f'{self.counts[name]} {name}' for name in DOCUMENTS)}")
            paged = [] if self.pages is None else [counted(self.pages, "page")]
            embedded = f"{self.embedded} of them embedded now"
            if self.counts["added"] and self.embedded < self.chunks:
                embedded += " (the others say what was embedded before)"
            blank = [f"{counted(without, 'page')} without text"] if without else []
            told = ", ".join([*paged, counted(self.chunks, "chunk"), embedded])
            click.echo("; ".join([told, *blank, f"{seconds:.1f} s"]))
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
    known: dict[str, Row] = field(default_factory=dict)  # what the collection holds, by path

    def run(self, found: files.Found, prune: bool) -> None:
        """Store what is new, then forget what is gone. Raises NotFound if there is nothing at all."""
        if found.files or found.refused:
            with suppress(NotFound):  # there is no store yet
                rows = self.target.documents({"collection": self.about["collection"]})
                self.known = {row["path"]: row for row in rows}
        for path, why in found.refused:
            self._refuse(manuals.failed(path, why))
        if not found.files:
            raise NotFound("nothing to ingest", hint="give files, folders with files in them, or patterns")
        self._ingest(self._changed(found.files))
        for path, row in self.known.items():
            if files.under(path, found.folders) and not files.under(path, found.empty) and files.gone(path):
                if prune:
                    self.target.remove(row["id"])
                    self.report.add({"path": path, "outcome": "pruned"})
                else:
                    self.report.kept.append(path)

    def _refuse(self, done: Row) -> None:
        """A file that is not read; the store may hold what was in it before."""
        why = done["error"].removeprefix(f"{done['path'].rpartition('/')[2]}: ")
        stays = STAYS if os.path.realpath(done["path"]) in self.known else ""
        self.report.add({**done, "error": why + stays})

    def _changed(self, paths: list[Path]) -> list[tuple[Path, int]]:
        """The files that are not in the store as they are on the disk, and their sizes; the others are reported."""
        changed = []
        for n, path in enumerate(paths):
            self.bar.update("looking", n, len(paths), path.name)
            try:
                size = files.check(path)
                row = self.known.get(str(path))
                if row and self.about.items() <= row.items() and row["sha256"] == sha256(files.read(path)).hexdigest():
                    about = {name: row[name] for name in ("chunks", "pages", "pages_without_text")}
                    self.report.add({**manuals.failed(str(path), ""), "outcome": "unchanged", **about})
                else:
                    changed.append((path, size))
            except (EdgedError, OSError) as e:
                self._refuse(manuals.failed(str(path), _why(path, e)))
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
                self._refuse(manuals.failed(str(path), _why(path, e)))
            else:
                done = self.target.ingest(str(path), data, self.about, progress)
                (self._refuse if done["outcome"] == "failed" else self.report.add)(done)
            before += size
        if changed:
            self.bar.update("ingesting", total, total)


def _why(path: Path, error: Exception) -> str:
    why = str(error) if isinstance(error, EdgedError) else getattr(error, "strerror", None) or str(error)
    return f"a link to {os.readlink(path)}: {why}" if path.is_symlink() else why
