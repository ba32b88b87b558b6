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
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx

from edged.api.context import LoadedModel
from edged.config import Config, ServerConfig
from edged.service.daemon import Daemon
from edged.service.loader import Post
from tests.stub_engine import StubEngine, stub_model

PATIENCE = 20.0
"""Seconds until a test gives up; nothing is measured."""


class Running:
    """Starts on entry, stops on exit. `load` replaces the stub; keyword arguments are ServerConfig fields."""

    def __init__(self, engine: StubEngine | None = None, words: Iterable[str | bytes] = (), *,
                 load: Callable[[Config, Post], LoadedModel] | None = None, environ: dict[str, str] | None = None,
                 wait: bool = True, **server: Any) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="edged-")
        self.path = str(Path(self._folder.name, "s"))
        self.engine = engine or StubEngine()
        self.model = stub_model(self.engine, words)
        self.words = self.model.tokenizer
        self.code: int | None = None
        self.error: BaseException | None = None
        self._wait = wait
        self._load = load or self._load_stub
        self._config = Config(server=replace(ServerConfig(socket=self.path), **server))
        self._environ = environ if environ is not None else {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._listening = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Running:
        self._thread.start()
        until(lambda: self.error is not None or self._is_up())
        if self.error is not None:
            raise self.error
        self.engine.requests.clear()  # the self-test's
        self.engine.started.clear()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()
        self._folder.cleanup()

    def stop(self) -> None:
        """Stop and wait for the end."""
        self.engine.step()
        if self._thread.is_alive() and self._loop is not None:
            self._loop.call_soon_threadsafe(self.daemon.stop)
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive(), "the daemon does not stop"

    def client(self, patience: float = PATIENCE) -> httpx.Client:
        """An HTTP client of the socket."""
        transport = httpx.HTTPTransport(uds=self.path, verify=False)  # certificates take long to load and are not used
        return httpx.Client(transport=transport, base_url="http://edged", timeout=patience)

    def get(self, path: str) -> httpx.Response:
        with self.client() as client:
            return client.get(path)

    def post(self, path: str, body: Any) -> httpx.Response:
        """POST an object as JSON, or bytes as they are."""
        with self.client() as client:
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

    def _load_stub(self, config: Config, post: Post) -> LoadedModel:
        self.engine._post = post
        return self.model

    def _run(self) -> None:
        async def main() -> int:
            self._loop = asyncio.get_running_loop()
            self.daemon = Daemon(self._config, self._load, self._environ)
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
