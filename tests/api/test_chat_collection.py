"""Chat completions that manuals answer, as openai-python sees them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from edged.errors import ModelFault
from tests.api.test_generated import holding, says
from tests.api.test_rag import PUMP_MD, error_of, ingest, running
from tests.service.running import PATIENCE, Running
from tests.stub_engine import StubEngine

CHAT = "/v1/chat/completions"
QUESTION = "What is the reset value of register CR2?"
MESSAGES: list[Any] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "What does fault E-0x20 mean?"},
    {"role": "assistant", "content": None},
    {"role": "user", "content": [{"type": "text", "text": QUESTION}]},
]
EDGED = {"collection": "default"}


@pytest.fixture(scope="module")
def daemon() -> Iterator[Running]:
    with holding(says("The reset value is 0x0018 [1]. It lies at 0x7777 [1]. The motor must stand [1].")) as daemon:
        yield daemon


@pytest.fixture(scope="module")
def client(daemon: Running) -> Iterator[openai.OpenAI]:
    http = httpx.Client(transport=httpx.HTTPTransport(uds=daemon.path, verify=False), timeout=PATIENCE)
    with openai.OpenAI(base_url="http://edged/v1", api_key="none", http_client=http, max_retries=0) as client:
        yield client


def create(client: openai.OpenAI, edged: dict[str, Any], **options: Any) -> Any:
    return client.chat.completions.create(model="default", messages=MESSAGES, extra_body={"edged": edged}, **options)


@pytest.mark.parametrize("mode", ["extract", "generate"])
def test_the_message_carries_what_the_answer_cites(daemon: Running, client: openai.OpenAI, mode: str) -> None:
    made = create(client, {**EDGED, "answer": mode, "passages": 3}, temperature=1.5)
    asked = daemon.post("/v1/ask", {"question": QUESTION, **EDGED, "answer": mode, "passages": 3}).json()
    message = made.choices[0].message
    assert (message.role, message.content, made.object) == ("assistant", asked["answer"], "chat.completion")
    names = ("refused", "confidence", "mode", "dropped_sentences", "dropped_passages")
    assert message.edged == {"citations": asked["quotes"], **{name: asked[name] for name in names}}
    assert made.choices[0].finish_reason == "stop" and made.model == "stub"
    assert made.usage.completion_tokens == asked.get("usage", {}).get("completion_tokens", 0)


@pytest.mark.parametrize("mode", ["extract", "generate"])
def test_a_stream_carries_it_in_its_last_delta(client: openai.OpenAI, mode: str) -> None:
    whole = create(client, {**EDGED, "answer": mode})
    chunks = list(create(client, {**EDGED, "answer": mode}, stream=True, stream_options={"include_usage": True}))
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1])
    assert text == whole.choices[0].message.content and "0x0018" in text
    assert [c.choices[0].finish_reason for c in chunks[:-1]] == [None] * (len(chunks) - 2) + ["stop"]
    assert chunks[-2].choices[0].delta.edged == whole.choices[0].message.edged
    assert not any(hasattr(chunk.choices[0].delta, "edged") for chunk in chunks[:-2])
    assert chunks[-1].usage == whole.usage and chunks[-1].choices == []
    assert len({chunk.id for chunk in chunks}) == 1


def test_sentences_come_one_by_one(daemon: Running) -> None:
    body = {"messages": MESSAGES, "edged": {**EDGED, "answer": "generate"}}
    *events, done = daemon.events(CHAT, body)
    texts = [event["choices"][0]["delta"].get("content") for event in events]
    assert done == "[DONE]"
    assert "".join(filter(None, texts)) == "The reset value is 0x0018 [1]. The motor must stand [1]."
    assert all("usage" not in event for event in events)


def test_the_stream_helper_of_openai(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(model="x", messages=MESSAGES, extra_body={"edged": EDGED}) as stream:
        for _ in stream:
            pass
        message: Any = stream.get_final_completion().choices[0].message
    assert "0x0018" in message.content and message.edged["citations"][0]["document"]["path"] == "pump.md"


def test_what_the_manuals_lack_is_refused(daemon: Running, client: openai.OpenAI) -> None:
    for edged in ({**EDGED, "least": 1}, {**EDGED, "least": 0.9}):
        message = create(client, edged).choices[0].message
        assert message.content == "not in the manuals"
        assert message.edged["refused"] and message.edged["citations"] == []
    for edged in ({"collection": "nothing"}, {**EDGED, "product": "fan"}):
        with pytest.raises(openai.NotFoundError, match="no document has the"):
            create(client, edged)


def test_without_edged_a_chat_is_a_chat(daemon: Running) -> None:
    for body in ({"messages": MESSAGES}, {"messages": MESSAGES, "edged": None}):
        made = daemon.post(CHAT, body).json()["choices"][0]["message"]
        assert "edged" not in made and made["content"].startswith("The reset value is 0x0018 [1]. It lies at 0x7777")


@pytest.mark.parametrize(("fields", "param"), [
    ({"edged": "default"}, "edged"),
    ({"edged": []}, "edged"),
    ({"edged": {}}, "edged.collection"),
    ({"edged": {"collection": ""}}, "edged.collection"),
    ({"edged": {"collection": 1}}, "edged.collection"),
    ({"edged": {"colection": "a"}}, "edged.colection"),
    ({"edged": {**EDGED, "question": "a"}}, "edged.question"),
    ({"edged": {**EDGED, "least": 2}}, "edged.least"),
    ({"edged": {**EDGED, "answer": "invent"}}, "edged.answer"),
    ({"edged": {**EDGED, "passages": "5"}}, "edged.passages"),
    ({"edged": {**EDGED, "product": ["a"]}}, "edged.product"),
    ({"n": 2}, "n"),
    ({"logprobs": True}, "logprobs"),
    ({"stop": ["\n"]}, "stop"),
    ({"logit_bias": {"5": 1}}, "logit_bias"),
    ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
    ({"response_format": {"type": "json_object"}}, "response_format"),
    ({"messages": [{"role": "system", "content": "a"}]}, "messages"),
    ({"messages": [{"role": "user", "content": " "}]}, "messages"),
    ({"messages": [{"role": "user", "content": "a"}, {"role": "user", "content": ""}]}, "messages"),
    ({"messages": []}, "messages"),
    ({"max_tokens": "5"}, "max_tokens"),
], ids=str)  # fmt: skip
@pytest.mark.parametrize("stream", [False, True])
def test_bad_fields_are_named(daemon: Running, fields: dict[str, Any], param: str, stream: bool) -> None:
    response = daemon.post(CHAT, {"messages": MESSAGES, "edged": EDGED, "stream": stream, **fields})
    assert (response.status_code, error_of(response)[2]) == (400, param), response.text
    assert param.rpartition(".")[2] in response.json()["error"]["message"]


def test_long_questions_are_refused(daemon: Running) -> None:
    messages = [{"role": "user", "content": "grease " * 1500}]
    response = daemon.post(CHAT, {"messages": messages, "edged": EDGED})
    assert error_of(response)[:2] == (400, "context_length_exceeded")


def test_an_answer_that_was_cut_off_says_so(daemon: Running) -> None:
    body = {"messages": MESSAGES, "edged": {**EDGED, "answer": "generate"}, "max_tokens": 40}
    choice = daemon.post(CHAT, body).json()["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("The reset value is 0x0018 [1].", "length")
    choice = daemon.post(CHAT, {**body, "max_tokens": 10}).json()["choices"][0]
    assert (choice["message"]["edged"]["mode"], choice["finish_reason"]) == ("extract", "stop")


def test_an_embedding_model_alone_answers_with_quotes() -> None:
    with running(generates=False) as daemon:
        ingest(daemon, PUMP_MD, path="pump.md")
        body = {"messages": MESSAGES, "edged": EDGED}
        made = daemon.post(CHAT, body).json()
        assert made["model"] == "stub-embedding" and "0x0018" in made["choices"][0]["message"]["content"]
        assert daemon.events(CHAT, body)[-1] == "[DONE]"
        assert error_of(daemon.post(CHAT, {"messages": MESSAGES}))[:2] == (404, "model_not_found")


def test_a_model_without_embedding_model_has_no_manuals() -> None:
    with Running() as daemon:
        response = daemon.post(CHAT, {"messages": MESSAGES, "edged": EDGED})
        assert error_of(response)[:2] == (404, "model_not_found") and "embedding.model" in response.text


def test_errors_before_the_first_sentence_have_a_status() -> None:
    with holding(StubEngine([*b"It is", ModelFault("the model broke")])) as daemon:
        body = {"messages": MESSAGES, "edged": {**EDGED, "answer": "generate"}}
        for stream in (False, True):
            assert error_of(daemon.post(CHAT, {**body, "stream": stream}))[:2] == (500, "model_fault")
