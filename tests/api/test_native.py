"""edged's own routes, and what the router says of others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from edged.api.context import LoadedEmbedder, LoadedModel
from edged.errors import NotReady
from tests.api.stub_context import StubContext
from tests.service.running import Running
from tests.stub_engine import (
    BOS,
    FIRST_WORD,
    IM_END,
    IM_START,
    StubEmbedder,
    StubEngine,
    StubTokenizer,
    stub_embedding,
    stub_model,
)

LONG = "x" * (64 * StubTokenizer.longest + 1)


@pytest.fixture(scope="module")
def daemon() -> Iterator[Running]:
    with Running() as running:
        yield running


@pytest.mark.parametrize(("fields", "tokens"), [
    ({"content": ""}, []),
    ({"content": "ab"}, [97, 98]),
    ({"content": "ab", "add_special": True}, [BOS, 97, 98]),
    ({"content": "a<|im_end|>"}, [97, IM_END]),
    ({"content": "<s>", "parse_special": False}, [60, 115, 62]),
    ({"content": "\u6b4c"}, [0xE6, 0xAD, 0x8C]),
])  # fmt: skip
def test_tokenize(daemon: Running, fields: dict[str, Any], tokens: list[int]) -> None:
    assert daemon.post("/tokenize", fields).json() == {"tokens": tokens}


@pytest.mark.parametrize("fields", [{}, {"content": None}, {"content": 1}, {"content": "a", "add_special": 1},
                                    {"content": "a", "parse_special": "no"}], ids=repr)  # fmt: skip
def test_bad_tokenize(daemon: Running, fields: dict[str, Any]) -> None:
    assert daemon.post("/tokenize", fields).status_code == 400


@pytest.mark.parametrize(("path", "body"), [
    ("/tokenize", {"content": LONG}),
    ("/v1/completions", {"prompt": LONG}),
    ("/v1/completions", {"prompt": ["a", LONG]}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": LONG}]}),
], ids=["tokenize", "completions", "list", "chat"])  # fmt: skip
def test_d03_text_past_any_context_is_not_even_tokenised(path: str, body: dict[str, Any],
                                                         monkeypatch: pytest.MonkeyPatch) -> None:
    with Running(StubEngine(n_ctx=64)) as running:
        monkeypatch.setattr(StubTokenizer, "encode", None)
        response = running.post(path, body)
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "context_length_exceeded"
    assert str(len(LONG)) in response.json()["error"]["message"]


def test_detokenize(daemon: Running) -> None:
    for tokens, content in (([], ""), ([97, IM_START, 98], "a<|im_start|>b"), ([0xE6, 0xAD], "\ufffd")):
        assert daemon.post("/detokenize", {"tokens": tokens}).json() == {"content": content}


@pytest.mark.parametrize("tokens", [None, "a", [-1], [400], [2**64], [True], [1.0], ["1"], [[1]]], ids=repr)
def test_bad_detokenize(daemon: Running, tokens: Any) -> None:
    response = daemon.post("/detokenize", {"tokens": tokens})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "tokens"


def test_health(daemon: Running) -> None:
    response = daemon.get("/health")
    assert response.status_code == 200
    assert response.json() == {"status": "ok", "reasons": [], "warnings": []}


def test_metrics(daemon: Running) -> None:
    response = daemon.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = response.text.splitlines()
    figures = dict(line.split(" ") for line in lines if not line.startswith("#"))
    assert float(figures["edged_requests_total"]) >= 1  # the self-test
    assert float(figures["edged_http_requests_total"]) >= 1
    assert figures["edged_ready"] == "1"
    assert "# TYPE edged_tokens_total counter" in lines
    assert "# TYPE edged_running gauge" in lines


def test_metrics_of_both_models_and_of_one() -> None:
    """Those of the embedding model have a prefix of their own, also where it is the only model."""
    engine, embedder = StubEngine(), StubEmbedder()
    model, embedding = stub_model(engine), stub_embedding(embedder)

    def names(context: StubContext) -> set[str]:
        lines = context.get("/metrics").body.decode().splitlines()
        return {line.split()[0] for line in lines if not line.startswith("#")}

    both = names(StubContext(model, embedding))
    assert {"edged_tokens_total", "edged_embedding_tokens_total", "edged_embedding_waiting", "edged_ready"} <= both
    assert names(StubContext(model)) == {name for name in both if not name.startswith("edged_embedding_")}
    only = names(StubContext(embedder=embedding))
    assert "edged_embedding_tokens_total" in only and "edged_tokens_total" not in only
    engine.close()
    embedder.close()


def test_metrics_while_loading() -> None:
    class Loading(StubContext):
        def loaded(self) -> list[LoadedModel | LoadedEmbedder]:
            raise NotReady("loading: the model is being loaded")

    answer = Loading().get("/metrics")
    assert answer.status == 200
    assert b"edged_resident_bytes 2\n" in answer.body


def test_words_are_those_of_the_model_that_answers_or_else_of_the_other() -> None:
    engine, embedder = StubEngine(), StubEmbedder()
    model, embedding = stub_model(engine, ["one"]), stub_embedding(embedder, ["two"])
    for context, word in ((StubContext(model, embedding), "one"), (StubContext(embedder=embedding), "two")):
        assert context.post("/detokenize", {"tokens": [FIRST_WORD]}).json() == {"content": word}
        assert context.post("/tokenize", {"content": "a"}).json() == {"tokens": [97]}
    engine.close()
    embedder.close()


def test_unknown_path(daemon: Running) -> None:
    response = daemon.get("/v1/nothing")
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "not_found"
    assert "/v1/nothing" in response.json()["error"]["message"]


@pytest.mark.parametrize(("method", "path", "allow"), [
    ("GET", "/v1/chat/completions", "OPTIONS, POST"), ("POST", "/health", "GET, HEAD, OPTIONS"),
    ("DELETE", "/v1/models/stub", "GET, HEAD, OPTIONS"), ("BREW", "/tokenize", "OPTIONS, POST"),
])  # fmt: skip
def test_wrong_method(daemon: Running, method: str, path: str, allow: str) -> None:
    with daemon.client() as client:
        response = client.request(method, path)
    assert response.status_code == 405
    assert response.headers["allow"] == allow
    assert response.json()["error"]["code"] == "method_not_allowed"


def test_options_and_head(daemon: Running) -> None:
    with daemon.client() as client:
        options = client.options("/health")
        assert (options.status_code, options.headers["allow"], options.content) == (204, "GET, HEAD, OPTIONS", b"")
        head, get = client.head("/health"), client.get("/health")
        assert head.status_code == 200
        assert head.content == b""
        assert head.headers["content-length"] == get.headers["content-length"]
        assert client.head("/v1/completions").status_code == 405
