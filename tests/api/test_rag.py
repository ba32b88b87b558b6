"""The routes of manuals over a socket: stub models, a real store."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import numpy as np
import pytest

from edged.config import RagConfig
from edged.rag import answer
from tests.rag import manuals
from tests.rag.test_answer import PUMP
from tests.service.running import Running, parse_events
from tests.stub_engine import StubEmbedder, StubEngine

PUMP_MD = "# Pump\n\n" + "\n\n".join(f"## Part {i}\n\n{text}" for i, text in enumerate(PUMP, 1))
FAN_TXT = "The fan needs no grease at all.\n\nFault E-0x1F of the fan means dust."


def hashed(ids: list[int]) -> np.ndarray:
    """The vector of the text that the stub's tokens spell: near where texts share words."""
    vector = manuals.embed([bytes(i for i in ids if i < 256).decode("utf-8", "replace")])[0]
    return vector / max(float(np.linalg.norm(vector)), 1e-9)


def running(engine: StubEngine | None = None, **options: Any) -> Running:
    """A daemon with both stub models."""
    embedder = StubEmbedder(hashed, n_ctx=1000, dim=manuals.DIM)
    return Running(engine, **{"embedder": embedder, "rag": RagConfig(least=0.3), **options})


def ingest(daemon: Running, body: bytes | str, **query: str) -> list[Any]:
    """The events of an ingest."""
    with daemon.client() as client:
        response = client.post(f"/v1/documents?{urlencode(query)}", content=body)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    return parse_events(response.text)


def error_of(response: Any) -> tuple[int, str, str | None]:
    error = response.json()["error"]
    return response.status_code, error["code"], error["param"]


@pytest.fixture(scope="module")
def daemon() -> Iterator[Running]:
    """Holds two manuals, and copies of one."""
    with running() as daemon:
        assert ingest(daemon, PUMP_MD, path="/m/pump.md", product="pump", version="2")[-2]["document"]["outcome"] == "added"
        ingest(daemon, FAN_TXT, path="/m/fan.txt", product="fan")
        ingest(daemon, PUMP_MD, path="/m/copy.md", collection="old")
        yield daemon


def test_ingest_tells_how_far_it_is() -> None:
    with running() as daemon:
        events = ingest(daemon, PUMP_MD, path="/m/pump.md")
        assert events[0] == {"stage": "reading"}
        assert events[-1] == "[DONE]"
        assert events[-2] == {"document": {"path": "/m/pump.md", "outcome": "added", "chunks": 5, "embedded": 5,
                                           "pages": None, "pages_without_text": [], "error": ""}}
        assert all(set(e) == {"stage", "done", "total"} and e["stage"] == "embedding" for e in events[1:-2])
        again = ingest(daemon, PUMP_MD, path="/m/pump.md")
        assert [e if e == "[DONE]" else e["document"]["outcome"] for e in again] == ["unchanged", "[DONE]"]


def test_search(daemon: Running) -> None:
    found = daemon.post("/v1/search", {"query": "what does E-0x20 mean", "passages": 1}).json()
    assert found["object"] == "list"
    (passage,) = found["data"]
    assert passage["document"] == {"id": 1, "collection": "default", "path": "/m/pump.md", "title": "Pump",
                                   "product": "pump", "version": "2"}
    assert passage["also_in"] == [{"id": 3, "collection": "old", "path": "/m/copy.md", "title": "Pump", "product": "",
                                   "version": ""}]
    assert (passage["page"], passage["page_end"]) == (None, None)
    assert (passage["section"], passage["headings"]) == ("Part 3", ["Pump", "Part 3"])
    assert PUMP[2] in passage["text"] and passage["end"] - passage["start"] == len(passage["text"])
    assert 0 < passage["score"] and 0 < passage["cosine"] <= 1
