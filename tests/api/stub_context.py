"""A daemon without a daemon: routes are asked directly.

    StubContext(embedder=stub_embedding(StubEmbedder())).post("/v1/embeddings", {"input": "x"})
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from edged.api.context import Health, LoadedEmbedder, LoadedModel
from edged.api.router import answer
from edged.config import RagConfig, ServerConfig
from edged.errors import NotFound
from edged.protocol.http import HttpRequest

T = TypeVar("T")


@dataclass(frozen=True)
class Answer:
    """What a client gets."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        def refuse(constant: str) -> None:
            raise AssertionError(f"{constant} is no JSON")

        return json.loads(self.body, parse_constant=refuse)

    @property
    def error(self) -> dict[str, Any]:
        found: dict[str, Any] = self.json()["error"]
        return found


class StubContext:
    """The face of a Context with the models given, ready at once. n_aside: how often work was done beside the loop."""

    def __init__(self, model: LoadedModel | None = None, embedder: LoadedEmbedder | None = None) -> None:
        self.limits = ServerConfig()
        self.rag = RagConfig()
        self.n_aside = 0
        self._model = model
        self._embedder = embedder

    def model(self) -> LoadedModel:
        if self._model is None:
            raise NotFound("this daemon has no model that generates text", hint="set model.path",
                           code="model_not_found")
        return self._model

    def embedder(self) -> LoadedEmbedder:
        if self._embedder is None:
            raise NotFound("this daemon has no embedding model", hint="set embedding.model", code="model_not_found")
        return self._embedder

    def loaded(self) -> list[LoadedModel | LoadedEmbedder]:
        return [model for model in (self._model, self._embedder) if model is not None]

    async def manuals(self, work: Callable[..., T], *args: Any, writing: bool = False) -> T:
        raise NotImplementedError

    def health(self) -> Health:
        return Health("ok")

    def counters(self) -> dict[str, float]:
        return {"requests_total": 1.0}

    def machine(self) -> dict[str, float]:
        return {"resident_bytes": 2.0}

    async def aside(self, work: Callable[..., T], *args: Any) -> T:
        self.n_aside += 1
        return await asyncio.to_thread(work, *args)

    def ask(self, method: str, path: str, body: bytes = b"") -> Answer:
        reply = asyncio.run(answer(HttpRequest(method, path, {}, body), self))
        return Answer(reply.status, dict(reply.headers), reply.body)

    def get(self, path: str) -> Answer:
        return self.ask("GET", path)

    def post(self, path: str, body: Any) -> Answer:
        return self.ask("POST", path, json.dumps(body).encode())
