"""JSON in and out: X1 to X5, B02 and E05."""

from __future__ import annotations

import json
import math
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edged.api.json_body import MAX_DEPTH, MAX_DIGITS, dumps, loads
from edged.errors import BadRequest

REFUSED = {
    "b02 not utf-8": (b'{"a":"\xe6\xad"}', "not UTF-8: byte 0xe6 at offset 6"),
    "b02 utf-16": ('{"a":1}'.encode("utf-16"), "not UTF-8"),
    "byte order mark": (b"\xef\xbb\xbf{}", "BOM"),
    "x1 lone surrogate": (rb'{"a":"\ud83d"}', "surrogate"),
    "x1 low one first": (rb'{"a":["\uDE00\uD83D"]}', "surrogate"),
    "x1 in a key": (rb'{"\udfff":1}', "surrogate"),
    "x2 e05 open brackets": (b"[" * 200_000, "nest deeper than 64"),
    "x2 e05 open objects": (b'{"a":' * 200_000, "nest deeper than 64"),
    "x2 e05 closed": (b'{"a":' + b"[" * 50_000 + b"]" * 50_000 + b"}", "nest deeper than 64"),
    "x2 one too deep": (b'{"a":' + b"[" * MAX_DEPTH + b"]" * MAX_DEPTH + b"}", "nest deeper than 64"),
    "x3 long integer": (b'{"a":' + b"9" * 5000 + b"}", "an integer of 5000 digits"),
    "x3 overflow": (b'{"a":1e999}', "1e999 is too large"),
    "x3 NaN": (b'{"a":NaN}', "NaN is not a JSON number"),
    "x3 Infinity": (b'{"a":-Infinity}', "-Infinity is not a JSON number"),
    "x4 repeated key": (b'{"max_tokens":1,"max_tokens":9999}', "the key 'max_tokens' is given twice"),
    "x4 repeated key inside": (b'{"a":[{"b":1,"c":2,"b":1}]}', "the key 'b' is given twice"),
    "x4 repeated by escape": (rb'{"a":1,"\u0061":1}', "the key 'a' is given twice"),
    "empty": (b"", "Expecting value"),
    "list": (b"[]", "not an object"),
    "string": (b'"a"', "not an object"),
    "trailing": (b"{} {}", "Extra data"),
    "unmatched": (b"[}{", "brackets do not match"),
    "wrong order": (b"}{", "brackets do not match"),
    "single quotes": (b"{'a':1}", "double quotes"),
    "control character": (b'{"a":"\n"}', "Invalid control character"),
    "bracket after escaped quote": (rb'{"a":"\"]"', "brackets do not match"),
}

ACCEPTED: dict[str, tuple[bytes, Any]] = {
    "pair": (rb'{"a":"\ud83d\ude00"}', {"a": "\U0001f600"}),
    "escaped backslash before u": (rb'{"a":"\\ud83d"}', {"a": r"\ud83d"}),
    "deepest": (b'{"a":' + b"[" * (MAX_DEPTH - 1) + b"]" * (MAX_DEPTH - 1) + b"}", None),
    "brackets in strings": (b'{"a":"' + b"[{" * 200_000 + b'"}', {"a": "[{" * 200_000}),
    "quotes and brackets in strings": (rb'{"a":"\"[\\","b":["\\\"]"]}', {"a": '"[\\', "b": ['\\"]']}),
    "longest integer": (b'{"a":' + b"9" * MAX_DIGITS + b"}", {"a": int("9" * MAX_DIGITS)}),
    "numbers": (b'{"a":[0,-0.0,1e308,-1e-400]}', {"a": [0, -0.0, 1e308, 0.0]}),
    "same key in two objects": (b'[{"a":1},{"a":2}]'.join([b'{"x":', b"}"]), {"x": [{"a": 1}, {"a": 2}]}),
    "space": (b' \r\n\t{ "a" : null } ', {"a": None}),
    "nul character": (rb'{"a":"\u0000"}', {"a": "\0"}),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    body, reason = REFUSED[name]
    with pytest.raises(BadRequest) as caught:
        loads(body)
    assert reason in caught.value.message
    assert caught.value.code == "invalid_json"
    caught.value.message.encode()  # can be sent


@pytest.mark.parametrize("name", ACCEPTED)
def test_accepted(name: str) -> None:
    body, value = ACCEPTED[name]
    found = loads(body)
    assert value is None or found == value


LEAVES = (st.none() | st.booleans() | st.integers(-(10**30), 10**30) | st.text(max_size=8)
          | st.floats(allow_nan=False, allow_infinity=False))  # fmt: skip
VALUES = st.recursive(LEAVES, lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=4), inner), max_leaves=8)


@settings(max_examples=30)
@given(st.dictionaries(st.text(max_size=4), VALUES, max_size=4))
def test_round_trip(value: dict[str, Any]) -> None:
    assert loads(dumps(value)) == value
    assert loads(json.dumps(value, indent=1).encode()) == value


@given(st.binary())
def test_any_bytes(body: bytes) -> None:
    """Gives an object or raises BadRequest; never anything else."""
    with suppress(BadRequest):
        assert isinstance(loads(body), dict)


@given(st.text(alphabet='{}[]",:\\u0a1 '))
def test_any_json_like_text(text: str) -> None:
    """Accepts nothing that json refuses."""
    try:
        found = loads(text.encode())
    except BadRequest:
        return
    assert found == json.loads(text)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, [{"a": math.nan}]])
def test_x5_no_reply_holds_nan(value: Any) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        dumps(value)
