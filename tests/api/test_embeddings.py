"""Embeddings over a stub: every shape and refusal, and what happens when a client leaves."""

from __future__ import annotations

import asyncio
import base64
import json
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from edged.api.embeddings import FEW, MAX_INPUTS, SLICE, SMALL
from edged.api.router import answer
from edged.errors import ModelChanged
from edged.protocol.http import HttpRequest
from tests.api.stub_context import Answer, StubContext
from tests.service.running import Running, request_bytes
from tests.stub_engine import BOS, EOS, StubEmbedder, StubTokenizer, stub_embedding

PATH = "/v1/embeddings"
PATIENCE = 20.0


@pytest.fixture(scope="module")
def embedder() -> Iterator[StubEmbedder]:
    made = StubEmbedder()
    yield made
    made.close()


@pytest.fixture
def context(embedder: StubEmbedder) -> StubContext:
    return StubContext(embedder=stub_embedding(embedder))


def vectors_of(answer: Answer) -> np.ndarray:
    """The vectors of an answer, f32, after a look at its shape."""
    assert answer.status == 200, answer.body
    assert answer.headers["Content-Type"] == "application/json"
    found = answer.json()
    assert set(found) == {"object", "data", "model", "usage"}
    assert (found["object"], found["model"]) == ("list", "stub-embedding")
    assert [item["index"] for item in found["data"]] == list(range(len(found["data"])))
    assert {item["object"] for item in found["data"]} == {"embedding"}
    return np.array([item["embedding"] for item in found["data"]], np.float32)


ids_of = StubTokenizer().encode


@pytest.mark.parametrize(("given", "ids"), [
    ("ab", [[BOS, 97, 98]]),
    (" ", [[BOS, 32]]),
    (["ab", "\u00e4", "ab"], [[BOS, 97, 98], [BOS, 0xC3, 0xA4], [BOS, 97, 98]]),
    ([5, 300], [[5, 300]]),
    ([[5], [6, 7]], [[5], [6, 7]]),
    ("<s>", [[BOS, *b"<s>"]]),
], ids=repr)  # fmt: skip
def test_input(context: StubContext, embedder: StubEmbedder, given: Any, ids: list[list[int]]) -> None:
    """Texts get what the model puts around them and their control tokens are text; ids are taken as they are."""
    answer = context.post(PATH, {"input": given, "model": "any", "user": "u"})
    assert np.array_equal(vectors_of(answer), [embedder.vector(text) for text in ids])
    n_tokens = sum(map(len, ids))
    assert answer.json()["usage"] == {"prompt_tokens": n_tokens, "total_tokens": n_tokens}
    assert embedder.requests[-1].texts == ids
    assert not embedder.requests[-1].background


@pytest.mark.parametrize("n", [1, FEW, FEW + 1])
def test_many_texts_give_way_to_other_work(context: StubContext, embedder: StubEmbedder, n: int) -> None:
    assert context.post(PATH, {"input": ["x"] * n}).status == 200
    assert embedder.requests[-1].background == (n > FEW)


@pytest.mark.parametrize("more", [{}, {"encoding_format": None}, {"encoding_format": "float"}, {"dimensions": 8},
                                  {"truncate": False, "normalize": True}, {"dimensions": None}], ids=repr)  # fmt: skip
def test_harmless_fields(context: StubContext, embedder: StubEmbedder, more: dict[str, Any]) -> None:
    assert np.array_equal(vectors_of(context.post(PATH, {"input": "ab", **more})), [embedder.vector([BOS, 97, 98])])


def test_base64_is_little_endian_f32(context: StubContext, embedder: StubEmbedder) -> None:
    answer = context.post(PATH, {"input": ["a", "b"], "encoding_format": "base64"})
    assert answer.status == 200
    for item, text in zip(answer.json()["data"], "ab", strict=True):
        vector = np.frombuffer(base64.b64decode(item["embedding"], validate=True), "<f4")
        assert np.array_equal(vector, embedder.vector(ids_of(text, add_special=True)))


def test_numbers_are_short_and_give_the_same_floats_back() -> None:
    """Of every size that a float can have, also those that json would write as an integer."""
    numbers = np.random.default_rng(1).standard_normal(500).astype(np.float32)
    odd = [1.0, -1.0, 0.0, -0.0, 0.1, 1e-5, 1.1754944e-38, 1e-45, -3.4028235e38]
    vector = np.concatenate([np.array(odd, np.float32), numbers])
    embedder = StubEmbedder(lambda ids: vector, dim=len(vector))
    answer = StubContext(embedder=stub_embedding(embedder)).post(PATH, {"input": "x"})
    assert vectors_of(answer).tobytes() == vector.tobytes()
    assert all(type(number) is float for number in answer.json()["data"][0]["embedding"])
    assert len(answer.body) < 14 * len(vector)
    embedder.close()


@pytest.mark.parametrize("encoding", ["float", "base64"])
def test_much_is_written_beside_the_loop_and_in_slices(encoding: str) -> None:
    """Also tokenised so; the answer is the same."""
    texts = [f"{i} " + "x" * 90 for i in range(1000)]
    embedder = StubEmbedder(n_ctx=100, dim=90)
    context = StubContext(embedder=stub_embedding(embedder))
    few = context.post(PATH, {"input": texts[: SMALL // 90], "encoding_format": encoding})
    assert context.n_aside == 3  # read, tokenise, submit
    context.n_aside = 0
    many = context.post(PATH, {"input": texts, "encoding_format": encoding})
    n_slices = -(-sum(map(len, texts)) // SLICE) + -(-90 * len(texts) // SLICE)
    assert context.n_aside == 3 + n_slices  # the body, too, is read beside the loop
    assert many.json()["data"][: SMALL // 90] == few.json()["data"]
    assert [item["index"] for item in many.json()["data"]] == list(range(1000))
    embedder.close()


LONG = "x" * 64  # one token more than there is room for, with that before it
HUGE = "x" * (64 * StubTokenizer.longest + 1)


@pytest.mark.parametrize(("body", "param", "words"), [
    ({}, "input", ["null"]),
    ({"input": None}, "input", ["null"]),
    ({"input": 5}, "input", ["5"]),
    ({"input": {"text": "a"}}, "input", ["an object"]),
    ({"input": ""}, "input", ["input is empty"]),
    ({"input": []}, "input", ["input is empty"]),
    ({"input": ["a", ""]}, "input[1]", ["input[1] is empty"]),
    ({"input": [[1], []]}, "input[1]", ["input[1] is empty"]),
    ({"input": ["a", 1]}, "input", ["input[1] is 1", "string"]),
    ({"input": ["a", ["b"]]}, "input", ["input[1] is a list", "string"]),
    ({"input": [None]}, "input", ["input[0] is null"]),
    ({"input": [True]}, "input", ["input[0] is true"]),
    ({"input": [1.0]}, "input", ["input[0] is 1.0"]),
    ({"input": [1, "a"]}, "input", ["input[1] is 'a'", "399"]),
    ({"input": [1, 400]}, "input", ["input[1] is 400", "399"]),
    ({"input": [[1], [2, -1]]}, "input[1]", ["input[1][1] is -1"]),
    ({"input": [[1], 2]}, "input[1]", ["input[1] must be a list of token ids"]),
    ({"input": ["a"] * (MAX_INPUTS + 1)}, "input", [str(MAX_INPUTS), str(MAX_INPUTS + 1)]),
    ({"input": "a", "encoding_format": "int8"}, "encoding_format", ["float", "base64", "int8"]),
    ({"input": "a", "encoding_format": ["float"]}, "encoding_format", ["a list"]),
    ({"input": "a", "dimensions": 4}, "dimensions", ["dimensions is 4", "have 8"]),
    ({"input": "a", "dimensions": 0}, "dimensions", ["0"]),
    ({"input": "a", "dimensions": "8"}, "dimensions", ["an integer"]),
    ({"input": "a", "model": 1}, "model", ["a string"]),
    ({"input": "a", "truncate": True}, "truncate", ["not supported"]),
    ({"input": "a", "normalize": False}, "normalize", ["not supported"]),
], ids=lambda value: repr(value)[:40])  # fmt: skip
def test_refused(context: StubContext, embedder: StubEmbedder, body: dict[str, Any], param: str, words: list[str]
                 ) -> None:
    before = len(embedder.requests)
    answer = context.post(PATH, body)
    assert answer.status == 400, answer.body
    assert (answer.error["type"], answer.error["param"]) == ("invalid_request_error", param)
    assert all(word in answer.error["message"] for word in words), answer.error
    assert len(embedder.requests) == before


@pytest.mark.parametrize(("given", "name"), [
    (LONG, "input"), (["a", "b", "c", LONG], "input[3]"), ([1] * 65, "input"), ([[1], [1] * 65], "input[1]"),
], ids=["text", "texts", "ids", "lists"])  # fmt: skip
def test_f04_a_text_that_is_too_long_is_refused_by_its_index(context: StubContext, given: Any, name: str) -> None:
    """With both numbers; never cut."""
    answer = context.post(PATH, {"input": given})
    assert answer.status == 400
    assert (answer.error["code"], answer.error["param"]) == ("context_length_exceeded", name)
    assert answer.error["message"].startswith(f"{name} has 65 tokens; stub-embedding takes at most 64")


def test_f04_the_longest_text_is_taken_and_its_end_counts(context: StubContext) -> None:
    longest = LONG[:-1]
    first, second = vectors_of(context.post(PATH, {"input": [longest, longest[:-1] + "y"]}))
    assert not np.array_equal(first, second)


@pytest.mark.parametrize(("given", "name"), [(HUGE, "input"), (["a", HUGE], "input[1]")], ids=["text", "texts"])
def test_f04_text_past_any_context_is_not_even_tokenised(context: StubContext, monkeypatch: pytest.MonkeyPatch,
                                                         given: Any, name: str) -> None:
    monkeypatch.setattr(StubTokenizer, "encode", None)
    answer = context.post(PATH, {"input": given})
    assert answer.status == 400
    assert (answer.error["code"], answer.error["param"]) == ("context_length_exceeded", name)
    assert str(len(HUGE)) in answer.error["message"]


def test_f01_a_list_gives_what_its_texts_give_alone_in_their_order(context: StubContext) -> None:
    texts = ["x" * (1 + i * 7 % 60) + str(i) for i in range(31)] + ["x0"]
    alone = {text: vectors_of(context.post(PATH, {"input": text}))[0] for text in texts}
    random.Random(5).shuffle(texts)
    assert np.array_equal(vectors_of(context.post(PATH, {"input": texts})), [alone[text] for text in texts])


@pytest.mark.parametrize("encoding", ["float", "base64"])
def test_f02_a_vector_that_is_none_fails_the_call_by_its_index(encoding: str) -> None:
    """No answer holds NaN, and the next call is answered."""
    embedder = StubEmbedder()
    embedder._vector = lambda ids: embedder.vector(ids) * (np.nan if ids == [BOS, 100] else 1)
    context = StubContext(embedder=stub_embedding(embedder))
    body = {"input": ["a", "b", "c", "d", "e"], "encoding_format": encoding}
    answer = context.post(PATH, body)
    assert answer.status == 500
    assert (answer.error["code"], answer.error["type"]) == ("model_fault", "server_error")
    assert "index 3" in answer.error["message"]
    assert b"NaN" not in answer.body
    assert context.post(PATH, {**body, "input": ["a", "b", "c"]}).status == 200
    embedder.close()


@pytest.mark.parametrize(("pooling", "ids"), [("mean", [BOS, 97]), ("cls", [BOS, 97]), ("last", [BOS, 97, EOS])])
def test_f05_a_model_that_pools_the_last_token_gets_one(pooling: str, ids: list[int]) -> None:
    embedder = StubEmbedder(pooling=pooling)
    vectors_of(StubContext(embedder=stub_embedding(embedder)).post(PATH, {"input": "a"}))
    assert embedder.requests[0].texts == [ids]
    embedder.close()


def test_f07_a_client_can_tell_whose_vectors_it_gets(context: StubContext) -> None:
    """A store of its own can be refused when the model is another one of the same name and size."""
    model = context.get("/v1/models/stub-embedding").json()
    assert model["edged"] == {"kind": "embed", "fingerprint": "0" * 64}
    assert (model["meta"]["n_embd"], model["meta"]["pooling"]) == (8, "mean")


def test_without_an_embedding_model() -> None:
    answer = StubContext().post(PATH, {"input": "a"})
    assert answer.status == 404
    assert (answer.error["code"], answer.error["type"]) == ("model_not_found", "invalid_request_error")
    assert "set embedding.model" in answer.error["message"]


def test_busy() -> None:
    embedder = StubEmbedder(queue=0)
    answer = StubContext(embedder=stub_embedding(embedder)).post(PATH, {"input": "a"})
    assert (answer.status, answer.headers["Retry-After"]) == (503, "1")
    assert answer.error["code"] == "busy"
    embedder.close()


def test_a_model_whose_file_has_changed_gives_no_vectors() -> None:
    embedder = StubEmbedder()

    def check() -> None:
        if embedder.requests:
            raise ModelChanged("the file has changed")

    answer = StubContext(embedder=stub_embedding(embedder, check=check)).post(PATH, {"input": "a"})
    assert answer.status == 503
    assert answer.error["code"] == "model_changed"
    embedder.close()


def leave(embedder: StubEmbedder, context: StubContext, when: Callable[[], object]) -> None:
    """Ask, and leave after `when` has returned."""
    async def main() -> None:
        request = HttpRequest("POST", PATH, {}, json.dumps({"input": ["a", "b"]}).encode())
        task = asyncio.ensure_future(answer(request, context))
        await asyncio.to_thread(when)
        task.cancel()
        await asyncio.wait([task], timeout=PATIENCE)
        assert task.cancelled()
        await asyncio.to_thread(embedder.wait, lambda stats: stats["waiting"] == 0)

    asyncio.run(main())


def test_g01_a_client_that_leaves_cancels_what_waits(embedder: StubEmbedder, context: StubContext) -> None:
    cancelled = embedder.stats()["cancelled_total"]
    embedder.hold()
    leave(embedder, context, lambda: embedder.wait(lambda stats: stats["waiting"] == 1))
    assert embedder.stats()["cancelled_total"] == cancelled + 1
    embedder.step()
    assert context.post(PATH, {"input": "a"}).status == 200


def test_g01_a_client_that_leaves_while_its_texts_are_handed_over() -> None:
    """Nobody has the handle yet: whoever gets it cancels."""
    embedder = StubEmbedder()
    embedder.hold()
    context = StubContext(embedder=stub_embedding(embedder))
    begun: list[Callable[[], None]] = []

    async def main() -> None:
        asked = asyncio.Event()

        async def aside(work: Any, *args: Any) -> Any:
            if work.__name__ == "submit":
                begun.append(work)
                asked.set()
                await asyncio.sleep(PATIENCE)
            return work(*args)

        context.aside = aside  # type: ignore[method-assign]
        task = asyncio.ensure_future(answer(HttpRequest("POST", PATH, {}, b'{"input":"a"}'), context))
        await asyncio.wait_for(asked.wait(), PATIENCE)
        task.cancel()
        await asyncio.wait([task])
        begun[0]()  # as the thread does that is just at it

    asyncio.run(main())
    assert embedder.wait(lambda stats: stats["waiting"] == 0)["cancelled_total"] == 1
    embedder.close()


def test_over_a_socket() -> None:
    """Chat and embeddings side by side; a client that hangs up cancels its texts and nobody else's."""
    embedder = StubEmbedder()
    with Running(embedder=embedder) as running:
        assert running.post("/v1/completions", {"prompt": "x"}).json()["choices"][0]["text"] == "Hi"
        embedder.hold()
        before = embedder.stats()
        with running.connect() as gone, running.connect() as stays:
            gone.sendall(request_bytes(PATH, {"input": ["a"] * 3}))
            embedder.wait(lambda stats: stats["waiting"] == 1)
            stays.sendall(request_bytes(PATH, {"input": "b"}))
            embedder.wait(lambda stats: stats["waiting"] == 2)
            gone.close()
            stats = embedder.wait(lambda stats: stats["waiting"] == 1)
            assert stats["cancelled_total"] == before["cancelled_total"] + 1
            embedder.step()
            assert stays.recv(65536).startswith(b"HTTP/1.1 200 OK\r\n")
        assert embedder.stats()["texts_total"] == before["texts_total"] + 1


def test_a_daemon_with_an_embedding_model_alone() -> None:
    with Running(embedder=StubEmbedder(), generates=False) as running:
        assert running.post(PATH, {"input": "a"}).status_code == 200
        refused = running.post("/v1/completions", {"prompt": "x"})
    assert refused.status_code == 404
    assert refused.json()["error"]["code"] == "model_not_found"
    assert "set model.path" in refused.json()["error"]["message"]
