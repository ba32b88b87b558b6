"""Clients as they are: openai-python through an httpx Unix-socket transport, and curl."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator

import httpx
import openai
import pytest

from edged.errors import ModelFault
from tests.service.running import PATIENCE, Running, request_bytes
from tests.stub_engine import EOS, StubEngine, endless


@pytest.fixture(scope="module")
def daemon() -> Iterator[Running]:
    with Running() as running:
        yield running


def client_of(running: Running) -> openai.OpenAI:
    http = httpx.Client(transport=httpx.HTTPTransport(uds=running.path, verify=False), timeout=PATIENCE)
    return openai.OpenAI(base_url="http://edged/v1", api_key="none", http_client=http, max_retries=0)


USER = [{"role": "user", "content": "x"}]


def test_openai_chat(daemon: Running) -> None:
    with client_of(daemon) as client:
        answer = client.chat.completions.create(model="default", messages=USER, max_completion_tokens=9, logprobs=True)
    assert answer.choices[0].message.content == "Hi"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.total_tokens == 23
    assert [entry.token for entry in answer.choices[0].logprobs.content] == ["H", "i"]


def test_openai_chat_stream(daemon: Running) -> None:
    with client_of(daemon) as client:
        chunks = list(client.chat.completions.create(model="default", messages=USER, stream=True,
                                                     stream_options={"include_usage": True}))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == "Hi"
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].usage.completion_tokens == 3


def test_openai_stream_helper(daemon: Running) -> None:
    """The helper that puts chunks together checks their order."""
    with client_of(daemon) as client, client.chat.completions.stream(model="default", messages=USER, n=2) as stream:
        for _ in stream:
            pass
        final = stream.get_final_completion()
    assert [choice.message.content for choice in final.choices] == ["Hi", "Hi"]


def test_openai_completions(daemon: Running) -> None:
    with client_of(daemon) as client:
        answer = client.completions.create(model="default", prompt=[65, 66], echo=True, logprobs=1)
        parts = list(client.completions.create(model="default", prompt="x", stream=True))
    assert answer.choices[0].text == "ABHi"
    assert answer.choices[0].logprobs.token_logprobs[0] is None
    assert "".join(part.choices[0].text for part in parts) == "Hi"


def test_openai_models(daemon: Running) -> None:
    with client_of(daemon) as client:
        assert [model.id for model in client.models.list()] == ["stub"]
        assert client.models.retrieve("stub").owned_by == "edged"
        with pytest.raises(openai.NotFoundError):
            client.models.retrieve("another")


def test_openai_errors() -> None:
    """Each arrives as the exception its status stands for, with code and parameter."""
    with Running(StubEngine([65, ModelFault("not finite")], n_ctx=64)) as running, client_of(running) as client:
        with pytest.raises(openai.BadRequestError) as bad:
            client.chat.completions.create(model="m", messages=USER, temperature=-1)
        assert (bad.value.code, bad.value.param) == ("bad_request", "temperature")
        with pytest.raises(openai.BadRequestError) as full:
            client.completions.create(model="m", prompt="x" * 64)
        assert full.value.code == "context_length_exceeded"
        with pytest.raises(openai.InternalServerError):
            client.chat.completions.create(model="m", messages=USER)
        running.engine.hold()
        running.engine.step(1)
        stream = client.chat.completions.create(model="m", messages=USER, stream=True)
        next(stream)
        running.engine.step()
        with pytest.raises(openai.APIError, match="not finite"):
            list(stream)


def test_openai_waits_out_a_full_queue() -> None:
    """openai-python tries again after Retry-After, and is answered."""
    with Running(StubEngine([65, EOS], slots=1, queue=0)) as running:
        running.engine.hold()
        with running.connect() as first, client_of(running) as client:
            first.sendall(request_bytes("/v1/completions", {"prompt": "x"}))
            running.engine.wait(lambda stats: stats["running"] == 1)
            with pytest.raises(openai.InternalServerError):
                client.completions.create(model="m", prompt="y")
            running.engine.step()
            running.engine.wait(lambda stats: stats["running"] == 0)
            assert client.with_options(max_retries=2).completions.create(model="m", prompt="y").choices[0].text == "A"


def test_openai_close_cancels() -> None:
    with Running(StubEngine(endless(65), n_ctx=200_000, delay=0.005)) as running, client_of(running) as client:
        stream = client.chat.completions.create(model="m", messages=USER, stream=True)
        next(stream)
        stream.close()
        assert running.engine.wait(lambda stats: stats["running"] == 0)["cancelled_total"] == 1


def curl(running: Running, *arguments: str, body: str = "") -> subprocess.CompletedProcess[str]:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    command = ["curl", "-sS", "--max-time", str(PATIENCE), "--unix-socket", running.path, *arguments]
    return subprocess.run(command, input=body, check=True, capture_output=True, text=True)


def test_curl(daemon: Running) -> None:
    body = json.dumps({"prompt": "x"})
    assert json.loads(curl(daemon, "http://localhost/v1/completions", "-d", body).stdout)["choices"][0]["text"] == "Hi"
    assert json.loads(curl(daemon, "http://edged/v1/models").stdout)["data"][0]["id"] == "stub"
    head = curl(daemon, "-I", "http://edged/health").stdout
    assert head.startswith("HTTP/1.1 200 OK")


def test_curl_stream(daemon: Running) -> None:
    body = json.dumps({"messages": USER, "stream": True})
    lines = curl(daemon, "-N", "http://edged/v1/chat/completions", "-d", body).stdout.splitlines()
    assert lines[0].startswith('data: {"id":"chatcmpl-')
    assert lines[-2:] == ["data: [DONE]", ""]


def test_curl_large_body_waits_for_continue(daemon: Running) -> None:
    """curl sends `Expect: 100-continue` above 1 MB."""
    body = json.dumps({"content": "x" * 1_500_000})
    reply = curl(daemon, "http://edged/tokenize", "-d", "@-", body=body)
    assert len(json.loads(reply.stdout)["tokens"]) == 1_500_000
