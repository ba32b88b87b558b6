"""/v1/models: what a daemon has, and what is said of what it lacks."""

from __future__ import annotations

from typing import Any

import pytest

from tests.api.stub_context import StubContext
from tests.stub_engine import StubEmbedder, StubEngine, stub_embedding, stub_model


def test_one() -> None:
    engine = StubEngine()
    context = StubContext(stub_model(engine))
    (model,) = context.get("/v1/models").json()["data"]
    assert model["id"] == "stub"
    assert model["object"] == "model"
    assert context.get("/v1/models/stub").json() == model
    assert context.get("/v1/models/default").json() == model
    missing = context.get("/v1/models/other")
    assert missing.status == 404
    assert missing.error["code"] == "model_not_found"
    engine.close()


def test_both_kinds() -> None:
    """"default" is the one that generates, where there is one."""
    engine, embedder = StubEngine(), StubEmbedder()
    model, embedding = stub_model(engine), stub_embedding(embedder)
    both, one = StubContext(model, embedding), StubContext(embedder=embedding)
    first, second = both.get("/v1/models").json()["data"]
    assert first == {"id": "stub", "object": "model", "created": 1, "owned_by": "edged",
                     "meta": {"n_ctx": 4096, "n_vocab": 400, "n_seqs": 4}, "edged": {"kind": "generate"}}  # fmt: skip
    assert second == {"id": "stub-embedding", "object": "model", "created": 2, "owned_by": "edged",
                      "meta": {"n_ctx": 64, "n_vocab": 400, "n_embd": 8, "pooling": "mean"},
                      "edged": {"kind": "embed", "fingerprint": "0" * 64}}  # fmt: skip
    assert one.get("/v1/models").json() == {"object": "list", "data": [second]}
    for context, name, found in ((both, "default", first), (both, "stub", first), (both, "stub-embedding", second),
                                 (one, "default", second)):  # fmt: skip
        assert context.get(f"/v1/models/{name}").json() == found
    missing = both.get("/v1/models/other")
    assert missing.error["message"] == "there is no model 'other'; loaded: 'stub', 'stub-embedding'"
    assert one.get("/v1/models/stub").status == 404
    engine.close()
    embedder.close()


@pytest.mark.parametrize(("path", "body"), [
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}), ("/v1/completions", {"prompt": "x"}),
], ids=["chat", "completions"])  # fmt: skip
def test_without_a_model_that_generates(path: str, body: dict[str, Any]) -> None:
    embedder = StubEmbedder()
    answer = StubContext(embedder=stub_embedding(embedder)).post(path, body)
    assert answer.status == 404
    assert (answer.error["code"], answer.error["type"]) == ("model_not_found", "invalid_request_error")
    assert answer.error["message"] == "this daemon has no model that generates text (set model.path)"
    embedder.close()
