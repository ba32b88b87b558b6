"""Any body to any route: an answer or a refusal that names its reason; never a fault of the server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.service.running import Running
from tests.stub_engine import StubEmbedder

FIELDS = [
    "model", "messages", "prompt", "max_tokens", "max_completion_tokens", "temperature", "top_p", "top_k", "min_p", "n",
    "seed", "stop", "stream", "stream_options", "logprobs", "top_logprobs", "echo", "logit_bias", "suffix", "tools",
    "ignore_eos", "presence_penalty", "repeat_penalty", "repeat_last_n", "content", "tokens",
    "input", "encoding_format", "dimensions",
]  # fmt: skip
LEAVES = st.none() | st.booleans() | st.integers(-3, 300) | st.floats(allow_nan=False, allow_infinity=False) | st.text()
VALUES = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=3)
                      | st.dictionaries(st.sampled_from(["role", "content", "type", "text", "5"]), inner), max_leaves=5)
BODIES = st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=6)
MESSAGES = st.lists(st.fixed_dictionaries({"role": st.sampled_from(["user", "system", "assistant"]),
                                           "content": st.text()}), min_size=1, max_size=3)  # fmt: skip


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    with Running(embedder=StubEmbedder()) as running, running.client() as found:
        yield found


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(path=st.sampled_from(["/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize", "/v1/embeddings"]),
       body=BODIES,
       messages=st.none() | MESSAGES, prompt=st.none() | st.text() | st.lists(st.integers(0, 399)))  # fmt: skip
def test_any_body(client: httpx.Client, path: str, body: dict[str, Any], messages: Any, prompt: Any) -> None:
    """Half of the bodies have a valid messages, prompt or input, so that the other fields are reached."""
    given_ = {"messages": messages, "prompt": prompt, "input": prompt}
    response = client.post(path, json={**body, **{name: value for name, value in given_.items() if value is not None}})
    assert response.status_code in (200, 400)
    if response.status_code == 400:
        error = response.json()["error"]
        assert error["message"]
        assert error["code"]
