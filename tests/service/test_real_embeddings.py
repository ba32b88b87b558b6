"""Embeddings by the whole path: file, kernels, engine, socket, and openai-python unchanged at the other end."""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest

from edged.api.context import Loaded
from edged.config import Config, EmbeddingConfig
from edged.service import loader
from edged.service.loader import Post
from tests.service.running import PATIENCE, Running

GOLDEN = [case for case in json.loads((Path(__file__).parent.parent / "golden" / "minilm_dev.json").read_text())
          if case["text"]]  # fmt: skip
TEXTS = [case["text"] for case in GOLDEN]
CONTEXT = 512
FULL = " ".join(["word"] * (CONTEXT - 2))


@pytest.fixture(scope="module")
def daemon(minilm_path: Path) -> Iterator[Running]:
    """A daemon with an embedding model alone."""
    def load(config: Config, post: Post) -> Loaded:
        return loader.load_all(replace(config, embedding=EmbeddingConfig(model=str(minilm_path), name="minilm")), post)

    with Running(load=load) as running:
        yield running


@pytest.fixture
def client(daemon: Running) -> Iterator[openai.OpenAI]:
    http = httpx.Client(transport=httpx.HTTPTransport(uds=daemon.path, verify=False), timeout=6 * PATIENCE)
    with openai.OpenAI(base_url="http://edged/v1", api_key="none", http_client=http, max_retries=0) as found:
        yield found


def embed(client: openai.OpenAI, given: Any, **how: Any) -> np.ndarray:
    """f32 (texts, dim), as the client gives them."""
    found = client.embeddings.create(model="any", input=given, **how).data
    assert [item.index for item in found] == list(range(len(found)))
    return np.array([item.embedding for item in found], np.float32)


def test_golden(client: openai.OpenAI) -> None:
    answer = client.embeddings.create(model="any", input=TEXTS)
    assert answer.model == "minilm"
    assert answer.usage.prompt_tokens == answer.usage.total_tokens == sum(len(case["ids"]) for case in GOLDEN)
    for case, item in zip(GOLDEN, answer.data, strict=True):
        assert np.array(item.embedding) @ np.array(case["vec"]) >= 0.999, case["text"]


def test_every_shape_gives_the_same_floats(client: openai.OpenAI) -> None:
    """The client's default, numbers, base64 as it comes, one text, and token ids."""
    default = embed(client, TEXTS)
    assert np.array_equal(embed(client, TEXTS, encoding_format="float", dimensions=384), default)
    raw = client.embeddings.create(model="any", input=TEXTS, encoding_format="base64").data
    assert np.array_equal([np.frombuffer(base64.b64decode(str(item.embedding)), "<f4") for item in raw], default)
    assert np.array_equal(embed(client, TEXTS[2]), default[2:3])
    assert np.array_equal(embed(client, [case["ids"] for case in GOLDEN]), default)
    assert np.array_equal(embed(client, GOLDEN[1]["ids"]), default[1:2])


def test_f01_order_and_company(client: openai.OpenAI) -> None:
    """32 texts of mixed length: the same vector alone, in a list and in a shuffled one; equal texts are equal."""
    texts = [" ".join(TEXTS[: 1 + i % 7]) + f" {i}" for i in range(31)] + [TEXTS[0]]
    texts[7] = texts[3]
    vectors = embed(client, texts)
    assert np.array_equal(vectors[7], vectors[3])
    assert np.array_equal(np.concatenate([embed(client, text) for text in texts]), vectors)
    order = random.Random(1).sample(range(32), 32)
    assert np.array_equal(embed(client, [texts[i] for i in order]), vectors[order])


def test_f02_short_and_odd_texts_have_vectors(client: openai.OpenAI) -> None:
    vectors = embed(client, ["a", "pump", ".", "?!...", " ", "\n", "\u2028", "\U0001f600", "x" * 101, FULL])
    assert np.isfinite(vectors).all()
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    assert np.allclose(np.linalg.norm(embed(client, [[0], [101], [102]]), axis=1), 1, atol=1e-5)


def test_f04_nothing_is_cut(client: openai.OpenAI) -> None:
    """The longest text is embedded whole; one word more is refused, by its index and with both numbers."""
    with pytest.raises(openai.BadRequestError) as refused:
        embed(client, ["a", FULL + " word"])
    assert (refused.value.code, refused.value.param) == ("context_length_exceeded", "input[1]")
    assert "513 tokens" in refused.value.message and "512" in refused.value.message
    first, second = embed(client, [FULL, FULL.removesuffix("word") + "other"])
    assert first @ second < 0.99999


def test_empty_texts_are_refused(client: openai.OpenAI) -> None:
    for given in ("", ["a", ""], []):
        with pytest.raises(openai.BadRequestError, match="is empty"):
            embed(client, given)


def test_other_dimensions_are_refused(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="dimensions is 256; the vectors of minilm have 384"):
        embed(client, "a", dimensions=256)


def test_models_and_metrics(client: openai.OpenAI, daemon: Running) -> None:
    (model,) = client.models.list().data
    assert model.id == "minilm"
    assert model.to_dict()["meta"]["n_embd"] == 384
    assert model.to_dict()["meta"]["pooling"] == "mean"
    embed(client, TEXTS)
    assert "edged_embedding_texts_total" in daemon.get("/metrics").text
    assert daemon.post("/tokenize", {"content": TEXTS[0], "add_special": True}).json() == {"tokens": GOLDEN[0]["ids"]}


def test_what_generates_is_refused(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match=r"set model\.path"):
        client.chat.completions.create(model="any", messages=[{"role": "user", "content": "x"}])
