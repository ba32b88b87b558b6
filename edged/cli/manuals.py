"""The manuals as commands see them: `Through` the daemon, or opened `Here`, by this process.

Both speak the daemon's JSON (README.md, "Questions from a program"), so a command does not know which it has.
"""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

import click

from edged.cli.options import FILTERS, flags_given, given
from edged.errors import BadRequest, Busy, EdgedError

if TYPE_CHECKING:
    from edged.config import Config
    from edged.engine.machine import Machine
    from edged.rag.answer import Evidence
    from edged.rag.manuals import Manuals as OpenManuals
    from edged.rag.store import Filter

Row = dict[str, Any]
Progress = Callable[[int, int], None]
NOTHING = 4  # exit status: the question was understood, the manuals hold nothing about it
# what a daemon is asked for, or asked with
_SENT = ("server.socket", "rag.passages", "rag.least", "rag.answer")
# a document that the daemon refuses, not an ingest that cannot go on
_OF_DOCUMENT = frozenset(("bad_request", "bad_http"))


class Manuals(Protocol):
    """A store and the model that fills and questions it. Raises EdgedError."""

    where: str  # the store; '' if the daemon has not told
    least: float | None  # the confidence that it asks for; None: the daemon's own

    def documents(self, only: dict[str, str]) -> list[Row]:
        """Those that pass these of FILTERS; needs no model. Raises NotFound where this process finds no store."""

    def ingest(self, path: str, data: bytes, about: dict[str, str], progress: Progress) -> Row:
        """Store a document; what became of it. progress(done, total): its chunks."""

    def remove(self, document: int) -> None:
        """Forget a document; needs no model."""

    def search(self, question: str, options: Row) -> list[Row]:
        """The passages for a question, best first."""

    def ask(self, question: str, options: Row, show: Callable[[str], None]) -> Row:
        """The answer; `show` is called with its pieces as they come, if they do."""

    def close(self) -> None:
        """Close what is open."""


@contextmanager
def opened(config: Config) -> Iterator[Manuals]:
    """The manuals of the running command: of the file that --store names, else of the daemon on the socket if one
    answers, else of the store of the configuration. Raises BadRequest for flags that a daemon does not honour."""
    found: Manuals = Here(config)
    if not given("rag.store"):
        from edged.cli import client  # http.client takes long to import

        if client.answers(config.server.socket):
            if flags := flags_given(*_SENT):
                raise BadRequest(f"the daemon on {config.server.socket} answers, which has its own {', '.join(flags)}",
                                 hint="leave that out, or name the store with --store: then this process does it")
            found = Through(config.server.socket)
        elif given("server.socket"):
            click.echo(f"no daemon answers on {config.server.socket}: using {found.where}", err=True)
    try:
        yield found
    finally:
        found.close()


class Through:
    """The daemon's. Its store is asked for when `documents` are."""

    def __init__(self, socket: str) -> None:
        from edged.cli import client

        self._client = client
        self.socket, self.where = socket, ""
        self.least: float | None = None

    def documents(self, only: dict[str, str]) -> list[Row]:
        answer = self._client.fetch(self.socket, "GET", "/v1/documents", only)
        self.where = answer["store"]
        rows: list[Row] = answer["data"]
        return rows

    def ingest(self, path: str, data: bytes, about: dict[str, str], progress: Progress) -> Row:
        while True:
            try:
                return self._ingest(path, data, about, progress)
            except Busy as e:  # others' documents are on their way; this one's turn comes
                time.sleep(e.retry_after)

    def _ingest(self, path: str, data: bytes, about: dict[str, str], progress: Progress) -> Row:
        headers = {"Content-Type": "application/octet-stream"}
        try:
            for event in self._client.events(self.socket, "/v1/documents", {"path": path, **about}, data, headers):
                if event.get("stage") == "embedding":
                    progress(event["done"], event["total"])
                elif "document" in event:
                    done: Row = event["document"]
                    return done
        except EdgedError as e:
            if e.code not in _OF_DOCUMENT:
                raise
            return failed(path, str(e))
        raise EdgedError(f"{self.socket}: the daemon did not say what became of {path}")

    def remove(self, document: int) -> None:
        self._client.fetch(self.socket, "DELETE", f"/v1/documents/{document}")

    def search(self, question: str, options: Row) -> list[Row]:
        answer = self._client.fetch(self.socket, "POST", "/v1/search", body={"query": question, **options})
        found: list[Row] = answer["data"]
        return found

    def ask(self, question: str, options: Row, show: Callable[[str], None]) -> Row:
        body = json.dumps({"question": question, "stream": True, **options}).encode()
        for event in self._client.events(self.socket, "/v1/ask", None, body, self._client.JSON):
            if "delta" in event:
                show(event["delta"])
            elif "answer" in event:
                answer: Row = event["answer"]
                return answer
        raise EdgedError(f"{self.socket}: the daemon gave no answer")

    def close(self) -> None:
        pass


class Here:
    """A store that this process opens, and the embedding model, which is loaded when it is needed."""

    def __init__(self, config: Config) -> None:
        from edged.store.folder import manuals_file

        self._config = config
        self._file = manuals_file(config.rag.store)
        self._open: OpenManuals | None = None
        self._machine: Machine | None = None  # of both models
        self._close: list[Callable[[], None]] = []
        self.where = str(self._file)
        self.least: float | None = config.rag.least

    def documents(self, only: dict[str, str]) -> list[Row]:
        from edged.rag.reply import document_of
        from edged.rag.store import Filter, Store

        with closing(Store(self._file)) as store:
            return [document_of(row) for row in store.documents(Filter(**only))]

    def ingest(self, path: str, data: bytes, about: dict[str, str], progress: Progress) -> Row:
        from edged.rag.reply import done_of

        return done_of(self._loaded().ingest(path, data, **about, progress=progress))

    def remove(self, document: int) -> None:
        self._unloaded().remove(document)

    def search(self, question: str, options: Row) -> list[Row]:
        from edged.rag.reply import passage_of

        found = self._loaded().search(question, passages=self._config.rag.passages, only=_filter(options))
        return [passage_of(passage) for passage in found]

    def ask(self, question: str, options: Row, show: Callable[[str], None]) -> Row:
        from edged.rag.reply import answer_of
        from edged.store.folder import find

        rag = self._config.rag
        if rag.answer == "generate":
            find(self._config.model.path)  # a missing file is told before anything is loaded
        manuals = self._loaded()
        found = manuals.look(question, passages=rag.passages, least=rag.least, only=_filter(options))
        if rag.answer == "generate" and found.bearing:
            return self._generated(found, options.get("passages", rag.read), show)
        return answer_of(question, manuals.quote(found), found.passages)

    def _generated(self, found: Evidence, most: int, show: Callable[[str], None]) -> Row:
        """What the model makes of the `most` best passages; quotes, if they bear out nothing of it."""
        from edged.cli import generate
        from edged.rag import prompt
        from edged.rag.citations import Checked
        from edged.rag.reply import answer_of

        model = generate.load(self._config, self._machine)
        self._close.append(model.close)
        limits = self._config.server
        tokens, room = prompt.room(model.engine.info.n_ctx, most=limits.max_tokens,
                                   most_prompt=limits.max_prompt_tokens)  # fmt: skip
        packed = prompt.pack(found.question, prompt.chunks(found.bearing), model.chat.render, room, most)
        checked = Checked(packed.used, found.question)
        wanted = generate.request(model, packed.ids, tokens, {"temperature": 0.0})._replace(speculate=True)
        done = generate.stream(model, wanted, (), lambda text: show(checked.push(text)), lambda: checked.over)
        show(checked.finish(whole=checked.over or done.reason == "stop"))
        answer = checked.answer(found.confidence)
        if answer.refused:
            answer = replace(self._loaded().quote(found), dropped=answer.dropped)
        return answer_of(found.question, answer, packed.used, packed.dropped)

    def close(self) -> None:
        while self._close:
            self._close.pop()()

    def _unloaded(self) -> OpenManuals:
        """The store alone, for what needs no model."""
        from edged.rag.manuals import Manuals

        if self._open is None:
            self._open = Manuals(self._file, None)
            self._close.append(self._open.close)
        return self._open

    def _loaded(self) -> OpenManuals:
        """The store with its model."""
        if self._open is None or self._open.embedding is None:
            from edged.engine.machine import Machine
            from edged.service import loader
            from edged.service.manuals import open_manuals

            self._machine = Machine(self._config.engine)
            self._close.append(self._machine.close)
            self._machine.start()
            embedder = loader.load_embedder(self._config, self._machine)
            self._close.append(embedder.close)
            self._open = open_manuals(self._config, embedder)
            self._close.append(self._open.close)
            if not gc.isenabled():  # see main
                gc.freeze()
                gc.enable()
        return self._open


def _filter(options: Row) -> Filter:
    from edged.rag.store import Filter

    return Filter(**{name: options.get(name, "") for name in FILTERS})


def failed(path: str, error: str) -> Row:
    """What became of a document that is refused."""
    return {"path": path, "outcome": "failed", "chunks": 0, "embedded": 0, "pages": None, "pages_without_text": [],
            "error": error}  # fmt: skip


def place(found: Row) -> str:
    """Where a passage or a quote stands: title, page, section, and the file, since many have one title."""
    document, page, last = found["document"], found["page"], found["page_end"]
    parts = [document["title"] or document["path"].rpartition("/")[2]]
    if page is not None:
        parts.append(f"page {page}" if last in (None, page) else f"pages {page}-{last}")
    parts += [found["section"]] if found["section"] else []
    return printable(f"{', '.join(parts)} ({document['path']})")


def printable(text: str) -> str:
    """A text without what would steer the terminal."""
    return "".join(c if c.isprintable() or c in "\n\t" else " " for c in text)
