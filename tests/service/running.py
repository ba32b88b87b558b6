"""A daemon in a thread, with a stub engine behind its socket.

    with Running(StubEngine([72, 105, EOS])) as daemon:
        daemon.post("/v1/completions", {"prompt": "x"}).json()
"""

from __future__ import annotations

import asyncio
import json
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx

from edged.api.context import Loaded, LoadedModel
from edged.config import Config, RagConfig, ServerConfig
from edged.service.daemon import Daemon
from edged.service.loader import Post
from tests.stub_engine import StubEmbedder, StubEngine, stub_embedding, stub_model

PATIENCE = 20.0
"""Seconds until a test gives up; nothing is measured."""


class Running:
    """Starts on entry, stops on exit. Keyword arguments are ServerConfig fields.

    embedder: an embedding model, beside the other, or alone where `generates` is false. load: replaces the stubs. The
    store of manuals, `store`, is in a folder of its own unless `rag` says otherwise.
    """

    def __init__(self, engine: StubEngine | None = None, words: Iterable[str | bytes] = (), *,
                 embedder: StubEmbedder | None = None, generates: bool = True, rag: RagConfig | None = None,
                 load: Callable[[Config, Post], Loaded | LoadedModel] | None = None,
                 environ: dict[str, str] | None = None, wait: bool = True, **server: Any) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="edged-")
        self.path = str(Path(self._folder.name, "s"))
        self.engine = engine or StubEngine()
        self.model = stub_model(self.engine, words)
        self.words = self.model.tokenizer
        self.code: int | None = None
        self.error: BaseException | None = None
        self._wait = wait
        self._load = load or self._load_stubs
        self._embedder, self._generates = embedder, generates
        rag = rag or RagConfig()
        self.store = Path(rag.store or Path(self._folder.name, "manuals.db"))
        self._config = Config(rag=replace(rag, store=str(self.store)),
                              server=replace(ServerConfig(socket=self.path), **server))  # fmt: skip
        self._environ = environ if environ is not None else {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._listening = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Running:
        self._thread.start()
        until(lambda: self.error is not None or self._is_up())
        if self.error is not None:
            raise self.error
        until(lambda: self.daemon.counters()["connections"] == 0)  # those that asked whether it is up
        self.engine.requests.clear()  # the self-test's
        self.engine.started.clear()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()
        self._folder.cleanup()

    def stop(self) -> None:
        """Stop and wait for the end."""
        self.engine.step()
        self.call(self.daemon.stop)
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive(), "the daemon does not stop"

    def call(self, function: Callable[..., object], *args: object) -> None:
        """Have the daemon's loop call a function, unless it has ended: it may at any moment, and before its thread."""
        assert self._loop is not None
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(function, *args)

    def settle(self) -> None:
        """Wait until the loop has called what it was given before."""
        done = threading.Event()
        self.call(done.set)
        assert done.wait(PATIENCE), "the loop stands still"

    @contextmanager
    def held(self) -> Iterator[None]:
        """The loop stands still: what clients do meanwhile it finds all at once, however slow they are."""
        go = threading.Event()
        self.call(go.wait, PATIENCE)
        try:
            yield
        finally:
            go.set()

    def client(self, patience: float = PATIENCE) -> httpx.Client:
        """An HTTP client of the socket."""
        transport = httpx.HTTPTransport(uds=self.path, verify=False)  # certificates take long to load and are not used
        return httpx.Client(transport=transport, base_url="http://edged", timeout=patience)

    def get(self, path: str) -> httpx.Response:
        with self.client() as client:
            return client.get(path)

    def post(self, path: str, body: Any, patience: float = PATIENCE) -> httpx.Response:
        """POST an object as JSON, or bytes as they are."""
        with self.client(patience) as client:
            return client.post(path, content=body if isinstance(body, bytes) else json.dumps(body).encode())

    def events(self, path: str, body: dict[str, Any]) -> list[Any]:
        """The events of a stream, the last one being "[DONE]" if it ended well."""
        response = self.post(path, {**body, "stream": True})
        assert response.status_code == 200, response.text
        assert response.headers["content-type"].startswith("text/event-stream")
        return parse_events(response.text)

    def connect(self) -> socket.socket:
        """A bare connection."""
        client = socket.socket(socket.AF_UNIX)
        client.settimeout(PATIENCE)
        client.connect(self.path)
        return client

    def _load_stubs(self, config: Config, post: Post) -> Loaded:
        self.engine._post = post
        embedder = stub_embedding(self._embedder) if self._embedder else None
        loaded = Loaded(self.model if self._generates else None, embedder)

        def close() -> None:
            for each in (self.model, embedder):
                if each is not None:
                    each.close()

        return replace(loaded, close=close)

    def _load_any(self, config: Config, post: Post) -> Loaded:
        made = self._load(config, post)
        return made if isinstance(made, Loaded) else Loaded(made, None, made.close)

    def _run(self) -> None:
        async def main() -> int:
            self._loop = asyncio.get_running_loop()
            self.daemon = Daemon(self._config, self._load_any, self._environ)
            return await self.daemon.run()

        try:
            self.code = asyncio.run(main())
        except BaseException as error:
            self.error = error

    def _is_up(self) -> bool:
        try:
            with self.client(1.0) as client:  # a loop that ends may leave a connection it has just accepted open
                return client.get("/health").status_code == 200 or not self._wait
        except httpx.TransportError:
            return False


def until(condition: Callable[[], bool], patience: float = PATIENCE) -> None:
    """Wait for a condition that nothing signals."""
    deadline = time.monotonic() + patience
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        pause.wait(0.005)


def parse_events(text: str) -> list[Any]:
    """Server-sent events of one `data:` line each."""
    blocks = text.split("\n\n")
    assert blocks.pop() == ""
    assert all(block.startswith("data: ") and "\n" not in block for block in blocks), text
    data = [block.removeprefix("data: ") for block in blocks]
    return [item if item == "[DONE]" else json.loads(item) for item in data]


def request_bytes(path: str, body: dict[str, Any], head: str = "") -> bytes:
    """A POST request as it goes over the wire."""
    raw = json.dumps(body).encode()
    return f"POST {path} HTTP/1.1\r\nHost: e\r\nContent-Length: {len(raw)}\r\n{head}\r\n".encode() + raw
