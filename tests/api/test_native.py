"""edged's own routes, and what the router says of others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.service.running import Running
from tests.stub_engine import BOS, IM_END, IM_START, StubEngine, StubTokenizer

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
