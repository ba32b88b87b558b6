"""The whole path with a real model: file, kernels, engine, socket, and openai-python unchanged at the other end."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from edged.api.context import LoadedModel
from edged.config import Config, EngineConfig, ModelConfig
from edged.service import loader
from edged.service.loader import Post
from tests.service.running import PATIENCE, Running, request_bytes, until
from tests.service.test_stop import CHECKOUT, STOP_WITHIN, connect, is_ready, metrics

CONTEXT = 2048
LONG = " ".join(f"Sensor {i} reads {i * 7 % 100} degrees." for i in range(120))


@contextmanager
def serving(path: Path, **engine: Any) -> Iterator[Running]:
    """A daemon with a real model; keyword arguments are EngineConfig fields."""

    def load(config: Config, post: Post) -> LoadedModel:
        model = ModelConfig(path=str(path), name="smollm2")
        return loader.load(replace(config, model=model, engine=EngineConfig(**engine)), post)

    with Running(load=load) as running:
        yield running


@pytest.fixture(scope="module")
def daemon(smollm2_path: Path) -> Iterator[Running]:
    with serving(smollm2_path, context=CONTEXT) as running:
        yield running


@pytest.fixture
def client(daemon: Running) -> Iterator[openai.OpenAI]:
    http = httpx.Client(transport=httpx.HTTPTransport(uds=daemon.path, verify=False), timeout=6 * PATIENCE)
    with openai.OpenAI(base_url="http://edged/v1", api_key="none", http_client=http, max_retries=0) as found:
        yield found


USER = [{"role": "user", "content": "What is the capital of France?"}]


def test_chat(client: openai.OpenAI) -> None:
    """Streamed and whole answers are the same, and so are their counts."""
    asked = {"model": "default", "messages": USER, "max_tokens": 12, "temperature": 0}
    answer = client.chat.completions.create(**asked)
    chunks = list(client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
    assert answer.choices[0].message.content
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == answer.choices[0].message.content
    first, second = answer.usage, chunks[-1].usage
    assert (first.prompt_tokens, first.completion_tokens) == (second.prompt_tokens, second.completion_tokens)
    assert 0 < first.completion_tokens <= 12
    assert second.prompt_tokens_details.cached_tokens == (first.prompt_tokens - 1) // 32 * 32 > 0


def test_completions_from_text_and_from_ids(client: openai.OpenAI, daemon: Running) -> None:
    asked = {"model": "default", "max_tokens": 6, "temperature": 0, "logprobs": 3}
    prompt = "The capital of France is"
    ids = daemon.post("/tokenize", {"content": prompt, "add_special": True}).json()["tokens"]
    by_text = client.completions.create(prompt=prompt, **asked).choices[0]
    by_ids = client.completions.create(prompt=ids, **asked).choices[0]
    assert by_text.text.startswith(" Paris")
    assert (by_ids.text, by_ids.logprobs) == (by_text.text, by_text.logprobs)
    best = [max(top, key=lambda token: top[token]) for top in by_text.logprobs.top_logprobs]
    assert best == by_text.logprobs.tokens  # greedy takes the likeliest


def test_echo_scores_what_generation_scored(client: openai.OpenAI, daemon: Running) -> None:
    """A text scores near what it was generated with: prompt and answer take different kernels."""
    asked = {"model": "default", "temperature": 0, "logprobs": 0}
    prompt = "The capital of France is"
    made = client.completions.create(prompt=prompt, max_tokens=5, **asked).choices[0]
    ids = daemon.post("/tokenize", {"content": prompt + made.text}).json()["tokens"]
    scored = client.completions.create(prompt=ids, max_tokens=0, echo=True, **asked).choices[0]
    assert scored.logprobs.token_logprobs[-5:] == pytest.approx(made.logprobs.token_logprobs, abs=0.25)


def test_seed_and_n(client: openai.OpenAI) -> None:
    asked = {"model": "default", "prompt": "Once upon a time", "max_tokens": 8, "temperature": 1.0}
    together = [choice.text for choice in client.completions.create(n=3, seed=7, **asked).choices]
    alone = [client.completions.create(seed=7 + i, **asked).choices[0].text for i in range(3)]
    assert together == alone
    assert len(set(together)) > 1


def test_ignore_eos(client: openai.OpenAI) -> None:
    asked = {"model": "default", "prompt": "The capital of France is", "temperature": 0, "max_tokens": 30}
    answer = client.completions.create(**asked, extra_body={"ignore_eos": True})
    assert answer.usage.completion_tokens == 30
    assert answer.choices[0].finish_reason == "length"


def test_d03_context(daemon: Running) -> None:
    refused = daemon.post("/v1/completions", {"prompt": [5] * CONTEXT, "max_tokens": 1})
    assert refused.status_code == 400
    assert refused.json()["error"]["code"] == "context_length_exceeded"
    assert str(CONTEXT) in refused.json()["error"]["message"]


def ask_all(running: Running, prompts: list[str]) -> list[str]:
    """Answers of clients that ask at once."""
    answers = [""] * len(prompts)

    def ask(i: int) -> None:
        body = {"prompt": prompts[i], "max_tokens": 10, "temperature": 0, "deterministic": True}
        with running.client() as client:
            client.timeout = 6 * PATIENCE
            answers[i] = client.post("/v1/completions", json=body).json()["choices"][0]["text"]

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(len(prompts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers


PROMPTS = [f"Fact number {i} about {topic}:" for i, topic in
           enumerate(["iron", "the sea", "bread", "copper", "clouds", "glass", "wool", "tides"])]  # fmt: skip


@pytest.fixture(scope="module")
def alone(daemon: Running) -> list[str]:
    """What each prompt is answered when nobody else asks."""
    return [ask_all(daemon, [prompt])[0] for prompt in PROMPTS]


@pytest.mark.parametrize("n", [4, 8])
def test_clients_at_once(daemon: Running, alone: list[str], n: int) -> None:
    """None is dropped, and each gets what it gets alone."""
    assert ask_all(daemon, PROMPTS[:n]) == alone[:n]


def test_more_clients_than_the_cache_holds(smollm2_path: Path) -> None:
    """It holds two or three of six; the others wait or are paused and computed again, and nobody notices."""
    prompts = [f"{i} {LONG[:250]}" for i in range(6)]
    with serving(smollm2_path, context=256, kv_tokens=256, max_seqs=6) as running:
        alone = [ask_all(running, [prompt])[0] for prompt in prompts]
        assert ask_all(running, prompts) == alone


def test_g01_a_client_that_leaves_frees_its_place(daemon: Running) -> None:
    before = figure(daemon, "edged_cancelled_total")
    with daemon.connect() as client:
        client.sendall(request_bytes("/v1/completions", {"prompt": LONG, "ignore_eos": True, "stream": True}))
        until(lambda: figure(daemon, "edged_running") == 1)
    until(lambda: figure(daemon, "edged_running") == 0)
    assert figure(daemon, "edged_cancelled_total") == before + 1
    assert figure(daemon, "edged_kv_blocks_used") == 0


def figure(running: Running, name: str) -> float:
    lines = running.get("/metrics").text.splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(f"{name} "))


@pytest.mark.parametrize("doing", ["prefill", "decode"])
def test_g08_sigterm(smollm2_path: Path, doing: str) -> None:
    """`edged serve` as it is started by systemd, told to stop in the midst of work."""
    with tempfile.TemporaryDirectory(prefix="edged-") as folder:
        path = f"{folder}/s"
        command = [sys.executable, "-m", "edged.cli.main", "serve", "--model", str(smollm2_path), "--socket", path]
        process = subprocess.Popen(command, cwd=CHECKOUT, stderr=subprocess.PIPE, text=True)
        try:
            until(lambda: process.poll() is not None or is_ready(path))
            assert process.poll() is None, process.communicate()[1]
            body = {"prompt": (LONG if doing == "prefill" else "A") * 2, "ignore_eos": True, "stream": True}
            with connect(path) as client:
                client.sendall(request_bytes("/v1/completions", body))
                until(lambda: b"\nedged_running 1\n" in metrics(path))
                if doing == "decode":
                    while b'"text":' not in client.recv(65536):
                        pass
                process.send_signal(signal.SIGTERM)
                assert process.wait(STOP_WITHIN) == 0
            assert not Path(path).exists()
        finally:
            process.kill()
            process.communicate()
