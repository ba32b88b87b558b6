"""The daemon on its event loop: listen, load, answer, stop.

Two threads beside the loop: one loads the model and then tokenises (`Worker`), the engine has its own. Engine events of
one step come over in one call.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import resource
import signal
import threading
from collections.abc import Callable, MutableMapping, Sequence
from contextlib import suppress
from dataclasses import replace
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from edged.api.context import Health, Loaded, LoadedEmbedder, LoadedModel
from edged.config import Config
from edged.engine.request import Done, Event, Failed, Request, Sampling, Sink, Vectors
from edged.errors import EdgedError, ModelChanged, NotFound, NotReady
from edged.service.care import Care
from edged.service.http_server import HttpServer
from edged.service.loader import Post
from edged.service.manuals import Desk
from edged.service.sd_notify import Notifier
from edged.service.worker import Worker
from edged.transports import unix
from edged.transports.stream import Stream

TICK = 1.0
"""Seconds between looks at the model file and the engine's progress, less if the watchdog wants it."""

EXTEND = 15.0
"""Seconds asked of systemd at each tick while loading."""

ACCEPTS = 16
"""Connections accepted at one look at the socket: asyncio calls it the backlog, too."""

SPARE_FILES = 64
"""Descriptors beside those of connections."""

SELF_TEST_PATIENCE = 120.0
STOP_PATIENCE = 2.0
"""Seconds for clients to take the end of their answers, and as many for the engine to stop."""

SAVE_PATIENCE = 20.0
"""Seconds for an engine that writes its prompt cache when it stops: tens of MB, and some cards take 5 MB in one."""

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)

EXIT_MODEL_CHANGED = os.EX_TEMPFAIL
"""75: systemd restarts the unit, which then checks the file anew."""

T = TypeVar("T")

log = logging.getLogger(__name__)


class Daemon:
    """One run of the daemon; also the Context that the routes see.

    `left_behind`: the model did not close in time when the daemon stopped.
    """

    def __init__(self, config: Config, load: Callable[[Config, Post], Loaded],
                 environ: MutableMapping[str, str]) -> None:
        self.limits, self.rag = config.server, config.rag
        self.left_behind = False
        self._signalled = False
        self._next_report = 0.0  # of missing descriptors, on the loop's clock
        self._handlers: dict[signal.Signals, Any] = {}
        self._config = config
        self._load = load
        self._notifier = Notifier(environ)
        self._listener = unix.activated(environ)
        self._health = Health("loading", ("the model is being loaded",))
        self._loaded: Loaded | None = None
        self._desk: Desk | None = None
        self._http = HttpServer(self)
        self._worker = Worker("edged-words")
        self._progress = Progress()
        self._care = Care()

    async def run(self) -> int:
        """Serve until told to stop; returns the exit code. Raises EdgedError if the daemon cannot start."""
        self._loop = asyncio.get_running_loop()
        self._end: asyncio.Future[int] = self._loop.create_future()
        self._loop.set_exception_handler(self._report)
        self._handle_signals()
        limits = self.limits
        _allow_files(limits.max_connections + SPARE_FILES)
        try:
            if self._listener is None:
                self._listener = unix.listen(limits.socket, mode=limits.mode, group=limits.group,
                                             backlog=limits.backlog)  # fmt: skip
            server = await self._loop.create_server(
                lambda: Stream(self._http.serve, limits.write_timeout),
                sock=self._listener.socket, backlog=ACCEPTS,
            )  # fmt: skip
            self._listener.socket.listen(limits.backlog)
            loading = asyncio.ensure_future(self._start())
            ticking = asyncio.ensure_future(self._tick())
            try:
                return await self._end
            finally:
                ticking.cancel()
                server.close()
                await self._stop(loading)
        finally:
            self._leave_signals()
            if self._listener is not None:
                self._listener.close()
            self._worker.close()
            self._notifier.close()

    def stop(self, code: int = 0) -> None:
        """Make `run` return `code`. On the loop's thread; the first call counts."""
        if not self._end.done():
            self._end.set_result(code)

    # the Context of the routes

    def model(self) -> LoadedModel:
        model = self._ready().model
        if model is None:
            raise NotFound("this daemon has no model that generates text", hint="set model.path",
                           code="model_not_found")
        return model

    def embedder(self) -> LoadedEmbedder:
        embedder = self._ready().embedder
        if embedder is None:
            raise NotFound("this daemon has no embedding model", hint="set embedding.model", code="model_not_found")
        return embedder

    def loaded(self) -> list[LoadedModel | LoadedEmbedder]:
        return self._ready().all

    async def manuals(self, work: Callable[..., T], *args: Any, writing: bool = False) -> T:
        self.embedder()
        assert self._desk is not None
        return await self._desk.run(work, *args, writing=writing)

    def _ready(self) -> Loaded:
        if self._loaded is None or not self._health.ready:
            raise NotReady(f"{self._health.status}: {'; '.join(self._health.reasons)}")
        try:
            for each in self._loaded.all:
                each.check()
        except ModelChanged as error:
            self._model_changed(error)
            raise
        return self._loaded

    def health(self) -> Health:
        of_manuals = self._desk.warnings() if self._desk is not None else ()
        return replace(self._health, warnings=(*self._care.warnings(), *of_manuals))

    def machine(self) -> dict[str, float]:
        return self._care.figures()

    def counters(self) -> dict[str, float]:
        return {**self._http.counters, "connections": float(self._http.n_open)}

    async def aside(self, work: Callable[..., T], *args: Any) -> T:
        return await self._worker.run(work, *args)

    # start and stop

    async def _start(self) -> None:
        try:
            self._loaded = await self._worker.run(self._open)
        except Exception as error:
            if not self._end.done():
                self._end.set_exception(error)
            return
        if self._end.done():
            return
        self._desk = Desk(self._config, self._loaded.embedder)
        self._health = Health("ok")
        names = " and ".join(each.name for each in self._loaded.all)
        self._notifier.status(f"answering with {names}")
        self._notifier.ready()
        log.info("%s: answering on %s", names, self.limits.socket)
        if self._loaded.embedder is not None:
            await self._desk.probe()

    def _open(self) -> Loaded:
        """In the worker's thread: load, and compute one token and one vector as a proof."""
        loaded = self._load(self._config, self._post)
        try:
            if loaded.model is not None:
                self_test(loaded.model)
            if loaded.embedder is not None:
                self_test_vectors(loaded.embedder)
        except BaseException:
            loaded.close()
            raise
        return loaded

    def _post(self, batch: list[tuple[Sink, Event]]) -> None:
        """In the engine's thread, once a step: hand its events to the loop."""
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(_deliver, batch)

    async def _stop(self, loading: asyncio.Future[None]) -> None:
        """No new connections, then the engine ends what runs, then clients take the end of their answers."""
        assert self._listener is not None
        if self._health.status != "failed":
            self._health = Health("stopping", ("the daemon was told to stop",))
        log.info("stopping")
        self._notifier.stopping()
        self._listener.close()
        closing = asyncio.ensure_future(self._close_model(loading))
        await self._http.stop(STOP_PATIENCE)
        patience = SAVE_PATIENCE if self._config.engine.prompt_cache else STOP_PATIENCE
        done, _ = await asyncio.wait([closing], timeout=patience)
        if not done:
            log.critical("the model did not close within %.0f seconds; leaving it behind", patience)
            self.left_behind = True

    async def _close_model(self, loading: asyncio.Future[None]) -> None:
        await loading
        if self._desk is not None:
            self._desk.close()
        if self._loaded is not None:
            closer = Worker("edged-close")
            await closer.run(self._loaded.close)
            closer.close()

    def _handle_signals(self) -> None:
        """Not by loop.add_signal_handler: between the end of the loop and of the process a signal would kill."""
        if threading.current_thread() is threading.main_thread():
            self._handlers = {number: signal.signal(number, self._on_signal) for number in STOP_SIGNALS}

    def _leave_signals(self) -> None:
        """Once told to stop, the rest of the process's end is not disturbed by being told again."""
        for number, handler in self._handlers.items():
            signal.signal(number, signal.SIG_IGN if self._signalled else handler)

    def _on_signal(self, number: int, frame: object) -> None:
        if self._signalled:  # asked a second time: at once
            if self._listener is not None:
                self._listener.remove()
            os._exit(0)
        self._signalled = True
        self._loop.call_soon_threadsafe(self.stop)

    # what happens meanwhile

    async def _tick(self) -> None:
        interval = self._notifier.watchdog_interval
        while True:
            if self._loaded is None:
                self._notifier.status("loading the model")
                self._notifier.extend(EXTEND)
            else:
                with suppress(EdgedError):
                    self._ready()
                if self._progress.seen([each.engine.stats() for each in self._loaded.all]):
                    self._notifier.alive()
                if self._loaded.model is not None:
                    self._care.look(self._loaded.model.engine.stats())
            await asyncio.sleep(TICK if interval is None else min(TICK, interval / 4))

    def _report(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """What fails on the loop outside of a task. When files run out that is every accept: one line a minute."""
        error = context.get("exception")
        if not isinstance(error, OSError) or error.errno not in (errno.EMFILE, errno.ENFILE):
            loop.default_exception_handler(context)
        elif loop.time() >= self._next_report:
            self._next_report = loop.time() + 60.0
            log.error("cannot accept a connection: %s; raise LimitNOFILE (ulimit -n) above %d", error.strerror,
                      resource.getrlimit(resource.RLIMIT_NOFILE)[0])

    def _model_changed(self, error: ModelChanged) -> None:
        log.error("%s", error)
        self._health = Health("failed", (str(error),))
        self.stop(EXIT_MODEL_CHANGED)


class Progress:
    """Whether the engine's thread moves: it has nothing to do, or has computed since the last look."""

    def __init__(self) -> None:
        self._last: list[tuple[float, float]] | None = None

    def seen(self, stats: Sequence[dict[str, float]]) -> bool:
        """`stats` of each model now; false if there is work and nothing has changed."""
        now = [(each.get("progress", 0), each.get("steps_total", 0)) for each in stats]  # what no new request moves
        last, self._last = self._last, now
        return not any(each.get("running") or each.get("waiting") for each in stats) or now != last


def _allow_files(wanted: int) -> None:
    """Raise the limit of open files as far as the hard one allows; warn if it is not enough."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    if allowed < wanted:
        log.warning("server.max_connections needs %d open files, %d are allowed: raise LimitNOFILE (ulimit -n)",
                    wanted, allowed)


def self_test(model: LoadedModel) -> None:
    """Raise unless the model gives one token. Also compiles the chat template, so that no request waits for it."""
    events: SimpleQueue[Event] = SimpleQueue()
    try:
        prompt = tuple(model.chat.render([{"role": "user", "content": "Hello"}]))
    except EdgedError as error:
        log.warning("chat will be refused: %s", error)
        prompt = (model.tokenizer.bos_id or 0,)
    model.engine.submit(Request(prompt, max_tokens=1, sampling=Sampling(temperature=0)), events.put)
    while not isinstance(_next(events, "token"), Done):
        pass


def self_test_vectors(embedder: LoadedEmbedder) -> None:
    """Raise unless the embedding model gives one vector."""
    events: SimpleQueue[Vectors | Failed] = SimpleQueue()
    embedder.engine.submit([embedder.encode("Hello")], events.put)
    _next(events, "vector")


def _next(events: SimpleQueue[Any], what: str) -> Any:
    """The next event. Raises the error of a failed request, and EdgedError if none comes."""
    try:
        event = events.get(timeout=SELF_TEST_PATIENCE)
    except Empty:
        raise EdgedError(f"the self-test gave no {what} within {SELF_TEST_PATIENCE:.0f} seconds") from None
    if isinstance(event, Failed):
        raise event.error
    return event


def _deliver(batch: list[tuple[Sink, Event]]) -> None:
    for sink, event in batch:
        sink(event)
