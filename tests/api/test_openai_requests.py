"""What callers may ask for, and the name of the field in every refusal."""

from __future__ import annotations

import json
from typing import Any

import pytest

from edged.api.fields import Fields
from edged.api.openai_requests import (
    MAX_CHOICES,
    Options,
    check_size,
    read_chat_logprobs,
    read_completion_logprobs,
    read_messages,
    read_options,
    read_prompts,
)
from edged.config import ServerConfig
from edged.engine.request import Sampling
from edged.errors import BadRequest, ContextFull

N_VOCAB = 1000


def options(limits: ServerConfig | None = None, **fields: Any) -> Options:
    return read_options(Fields(fields), limits or ServerConfig(), N_VOCAB)


def refused(**fields: Any) -> BadRequest:
    with pytest.raises(BadRequest) as caught:
        options(**fields)
    assert caught.value.param in fields, caught.value
    return caught.value


def test_defaults() -> None:
    """Those of Sampling; null is the same as absent."""
    plain = options()
    assert plain.sampling == Sampling()
    assert (plain.n, plain.max_tokens, plain.stops, plain.stream) == (1, None, (), False)
    names = ["temperature", "top_p", "top_k", "min_p", "seed", "n", "max_tokens", "stop", "stream", "stream_options",
             "logit_bias", "presence_penalty", "tools", "response_format", "ignore_eos", "model"]
    assert options(**dict.fromkeys(names)) == plain


def test_sampling_fields() -> None:
    found = options(temperature=0, top_p=0.5, top_k=7, min_p=0, repeat_penalty=1.1, presence_penalty=-2,
                    frequency_penalty=2, repeat_last_n=-1, seed=5, logit_bias={"3": -100, "999": 1.5}).sampling
    assert found == Sampling(0.0, 7, 0.5, 0.0, 1.1, -2.0, 2.0, -1, ((3, -100.0), (999, 1.5)), 5)
    assert options(repetition_penalty=1.2).sampling.repeat_penalty == 1.2


NUMBERS = ["temperature", "top_p", "min_p", "repeat_penalty", "presence_penalty", "frequency_penalty"]
INTEGERS = ["top_k", "n", "max_tokens", "max_completion_tokens", "repeat_last_n", "seed"]
NOT_NUMBERS = [True, False, "0.5", "1", [], [1], {}, {"a": 1}]


@pytest.mark.parametrize("value", NOT_NUMBERS, ids=repr)
@pytest.mark.parametrize("name", NUMBERS + INTEGERS)
def test_d11_x3_not_a_number(name: str, value: Any) -> None:
    assert name in refused(**{name: value}).message


@pytest.mark.parametrize("value", [0.5, 1.0, float("nan"), float("inf")], ids=repr)
@pytest.mark.parametrize("name", INTEGERS)
def test_d11_x3_not_an_integer(name: str, value: Any) -> None:
    refused(**{name: value})


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf"), 10**30, -(10**30)], ids=repr)
@pytest.mark.parametrize("name", NUMBERS)
def test_d11_not_finite_or_absurd(name: str, value: Any) -> None:
    refused(**{name: value})


@pytest.mark.parametrize(("name", "value"), [
    ("temperature", -1e-9), ("temperature", -1), ("top_p", -0.1), ("top_p", 1.01), ("min_p", -0.1), ("min_p", 1.5),
    ("top_k", -1), ("top_k", 2**31), ("n", 0), ("n", -1), ("n", MAX_CHOICES + 1), ("repeat_penalty", 0),
    ("repeat_penalty", -1), ("presence_penalty", 2.1), ("frequency_penalty", -2.1), ("repeat_last_n", -2),
    ("seed", 2**64), ("seed", -(2**63) - 1), ("max_tokens", -2), ("max_completion_tokens", -2),
])  # fmt: skip
def test_d11_out_of_range(name: str, value: Any) -> None:
    assert str(value) in refused(**{name: value}).message


@pytest.mark.parametrize(("name", "value"), [
    ("temperature", 0), ("temperature", 1e-9), ("temperature", 1e-4), ("temperature", 100), ("top_p", 0),
    ("top_p", 1e-9), ("top_p", 1), ("top_k", 0), ("top_k", 1), ("top_k", 10**9),
])  # fmt: skip
def test_d11_extreme_but_valid(name: str, value: Any) -> None:
    assert getattr(options(**{name: value}).sampling, name) == value


@pytest.mark.parametrize(("given", "expected"), [
    ({}, None), ({"max_tokens": None}, None), ({"max_tokens": -1}, None), ({"max_tokens": 0}, 0),
    ({"max_tokens": 10**12}, 10**12), ({"max_completion_tokens": 3}, 3),
    ({"max_tokens": 5, "max_completion_tokens": 3}, 3), ({"max_tokens": 2, "max_completion_tokens": 3}, 2),
    ({"max_tokens": -1, "max_completion_tokens": 3}, 3),
])  # fmt: skip
def test_d01_d07_max_tokens(given: dict[str, Any], expected: int | None) -> None:
    assert options(**given).max_tokens == expected


def test_d01_cap_of_the_server() -> None:
    limits = ServerConfig(max_tokens=10)
    assert options(limits).max_tokens == 10
    assert options(limits, max_tokens=-1).max_tokens == 10
    assert options(limits, max_tokens=10**12).max_tokens == 10
    assert options(limits, max_tokens=4).max_tokens == 4


@pytest.mark.parametrize(("given", "expected"), [
    ("x", ("x",)), ("", ()), ([], ()), ([""], ()), (["", "a", "b"], ("a", "b")), (list("abcde"), tuple("abcde")),
])  # fmt: skip
def test_d07_stop(given: Any, expected: tuple[str, ...]) -> None:
    """A string or a list of up to 16; an empty one stops nothing."""
    assert options(stop=given).stops == expected


@pytest.mark.parametrize("value", [1, True, {"a": 1}, ["a", 1], [["a"]], ["a"] * 17, "a" * 257],
                         ids=lambda v: repr(v)[:20])  # fmt: skip
def test_d07_bad_stop(value: Any) -> None:
    refused(stop=value)


@pytest.mark.parametrize("value", [[], "a", {"-1": 1}, {"1000": 1}, {"a": 1}, {"1.0": 1}, {"\u0661": 1},
                                   {"5": 1, "05": -1}, {"9" * 5000: 1}], ids=lambda v: repr(v)[:20])  # fmt: skip
def test_bad_logit_bias(value: Any) -> None:
    refused(logit_bias=value)


@pytest.mark.parametrize("value", [101, -101, True, "1", None, float("nan")], ids=repr)
def test_bad_logit_bias_value(value: Any) -> None:
    with pytest.raises(BadRequest) as caught:
        options(logit_bias={"5": value})
    assert caught.value.param == "logit_bias[5]"


@pytest.mark.parametrize("name", ["stream", "ignore_eos", "deterministic", "speculate"])
@pytest.mark.parametrize("value", [1, 0, "true", []], ids=repr)
def test_not_a_flag(name: str, value: Any) -> None:
    refused(**{name: value})


@pytest.mark.parametrize("value", [1, ["m"], {}], ids=repr)
def test_model_must_be_a_name(value: Any) -> None:
    refused(model=value)


@pytest.mark.parametrize(("name", "value"), [
    ("tools", [{"type": "function", "function": {"name": "f"}}]), ("functions", [{}]), ("tool_choice", "required"),
    ("response_format", {"type": "json_object"}), ("response_format", {"type": "json_schema", "json_schema": {}}),
    ("grammar", 'root ::= "a"'), ("guided_json", {}), ("suffix", "end"), ("best_of", 3), ("modalities", ["audio"]),
])  # fmt: skip
def test_what_would_lose_its_meaning_is_refused(name: str, value: Any) -> None:
    assert refused(**{name: value}).code == "unsupported_parameter"


def test_what_asks_for_nothing_is_accepted() -> None:
    options(tools=[], tool_choice="none", response_format={"type": "text"}, suffix="", best_of=1, user="u",
            metadata={"a": "b"}, store=False, some_new_field=1)


def test_stream_options() -> None:
    assert options(stream=True, stream_options={"include_usage": True}).include_usage
    assert not options(stream=True, stream_options={}).include_usage
    refused(stream_options={"include_usage": True})
    refused(stream=True, stream_options=[1])
    with pytest.raises(BadRequest):
        options(stream=True, stream_options={"include_usage": "yes"})


def test_requests_of_all_choices() -> None:
    """n for each prompt in turn, with seeds that follow each other and start again with each prompt."""
    found = options(n=2, seed=2**64 - 1, max_tokens=4).requests([(1,), (2, 3)], frozenset({9}), 5, True)
    assert [request.prompt for request in found] == [(1,), (1,), (2, 3), (2, 3)]
    assert [request.sampling.seed for request in found] == [2**64 - 1, 0, 2**64 - 1, 0]
    assert {request.max_tokens for request in found} == {4}
    assert {request.stop_ids for request in found} == {frozenset({9})}
    assert {request.top_logprobs for request in found} == {5}
    assert all(request.prompt_logprobs for request in found)
    (request,) = options(ignore_eos=True).requests([(1,)], frozenset({9}), None)
    assert request.stop_ids == frozenset()
    assert request.sampling.seed is None
    assert options(seed=-1).sampling.seed == 2**64 - 1


def test_messages() -> None:
    found = read_messages(Fields({"messages": [
        {"role": "developer", "content": "d"},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "name": "n"},
        {"role": "assistant", "content": "", "tool_calls": []},
    ]}))  # fmt: skip
    assert found == [{"role": "system", "content": "d"}, {"role": "user", "content": "a\nb"},
                     {"role": "assistant", "content": ""}]  # fmt: skip


@pytest.mark.parametrize("fields", [{"content": None}, {}, {"content": ""}, {"content": []},
                                    {"content": None, "tool_calls": None}], ids=json.dumps)  # fmt: skip
def test_an_assistant_may_have_said_nothing(fields: dict[str, Any]) -> None:
    """Clients send back what they got; nobody else may leave out what they say."""
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", **fields}]
    assert read_messages(Fields({"messages": messages}))[1] == {"role": "assistant", "content": ""}


@pytest.mark.parametrize("role", ["system", "developer", "user"])
@pytest.mark.parametrize("fields", [{"content": None}, {}], ids=json.dumps)
def test_others_must_say_something(role: str, fields: dict[str, Any]) -> None:
    with pytest.raises(BadRequest, match=r"messages\[0\]\.content must be a string") as caught:
        read_messages(Fields({"messages": [{"role": role, **fields}]}))
    assert caught.value.param == "messages[0].content"


@pytest.mark.parametrize("messages", [
    None, [], "hi", {}, [1], [[]], [{}], [{"role": "user"}], [{"role": "user", "content": None}],
    [{"role": "tool", "content": "x"}], [{"role": 1, "content": "x"}], [{"role": "user", "content": 1}],
    [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
    [{"role": "user", "content": [{"type": "text"}]}], [{"role": "user", "content": ["x"]}],
    [{"role": "assistant", "content": "x", "tool_calls": [{}]}], [{"role": "assistant", "tool_calls": [{}]}],
    [{"role": "assistant", "content": 0}], [{"role": "assistant", "content": {}}],
], ids=lambda v: json.dumps(v)[:40])  # fmt: skip
def test_bad_messages(messages: Any) -> None:
    with pytest.raises(BadRequest) as caught:
        read_messages(Fields({"messages": messages}))
    assert (caught.value.param or "").startswith("messages")


@pytest.mark.parametrize(("prompt", "expected"), [
    ("", [""]), ("a", ["a"]), (["a", "b"], ["a", "b"]), ([1, 2], [(1, 2)]), ([[1], [2, 3]], [(1,), (2, 3)]),
])  # fmt: skip
def test_prompts(prompt: Any, expected: list[Any]) -> None:
    assert read_prompts(Fields({"prompt": prompt}), N_VOCAB) == expected


@pytest.mark.parametrize("prompt", [None, [], 1, True, {}, [1, "a"], ["a", 1], [[1], "a"], [1.0], [True], [-1], [1000],
                                    [[1], [1000]], [None]], ids=repr)  # fmt: skip
def test_bad_prompts(prompt: Any) -> None:
    with pytest.raises(BadRequest) as caught:
        read_prompts(Fields({"prompt": prompt}), N_VOCAB)
    assert (caught.value.param or "").startswith("prompt")


@pytest.mark.parametrize(("fields", "message"), [
    ({"messages": []}, "messages is empty; it must hold at least one message"),
    ({"messages": None}, "messages must be a list of messages, not null"),
    ({"messages": [{}]}, "messages[0].role must be one of system, developer, user, assistant, not null"),
    ({"messages": [{"role": ["x"] * 999}]}, "messages[0].role must be one of system, developer, user, assistant, "
                                            "not a list"),
    ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text must be a string, "
                                                                      "not null"),
    ({"prompt": []}, "prompt is empty; a list must hold at least one string or token id"),
    ({"prompt": ["a", 1]}, "prompt[1] is 1; it must be a string"),
    ({"prompt": [[1], "a"]}, "prompt[1] must be a list of token ids, not 'a'"),
    ({"stop": ["a", None]}, "stop[1] is null; it must be a string"),
    ({"stop": [["a"]]}, "stop[0] is a list; it must be a string"),
])  # fmt: skip
def test_a_refusal_says_what_is_wrong(fields: dict[str, Any], message: str) -> None:
    """Never "must be a list, not a list"."""
    read: dict[str, Any] = {"messages": read_messages, "prompt": lambda given: read_prompts(given, N_VOCAB),
                            "stop": lambda given: read_options(given, ServerConfig(), N_VOCAB)}  # fmt: skip
    ((name, _),) = fields.items()
    with pytest.raises(BadRequest) as caught:
        read[name](Fields(fields))
    assert caught.value.message == message


def test_sizes() -> None:
    check_size([(1,)] * 8, 8, ServerConfig())
    with pytest.raises(BadRequest, match="72 answers; at most 64"):
        check_size([(1,)] * 9, 8, ServerConfig())
    with pytest.raises(BadRequest, match="no tokens"):
        check_size([()], 1, ServerConfig())
    check_size([(1,) * 5], 1, ServerConfig(max_prompt_tokens=5))
    with pytest.raises(ContextFull, match=r"6 tokens; server\.max_prompt_tokens allows 5"):
        check_size([(1,) * 6], 1, ServerConfig(max_prompt_tokens=5))


def test_logprobs() -> None:
    assert read_chat_logprobs(Fields({})) is None
    assert read_chat_logprobs(Fields({"logprobs": True})) == 0
    assert read_chat_logprobs(Fields({"logprobs": True, "top_logprobs": 20})) == 20
    assert read_completion_logprobs(Fields({"logprobs": 3})) == 3
    for fields in ({"logprobs": 1}, {"top_logprobs": 3}, {"logprobs": True, "top_logprobs": 21}):
        with pytest.raises(BadRequest):
            read_chat_logprobs(Fields(fields))
    for value in (True, -1, 21, "1"):
        with pytest.raises(BadRequest):
            read_completion_logprobs(Fields({"logprobs": value}))
