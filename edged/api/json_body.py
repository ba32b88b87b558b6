"""JSON in and out, in one place.

`loads(body)` returns an object whose values can be used without surprise, or raises BadRequest; never anything else.
Refused, although Python's json takes them: NaN, Infinity and numbers that overflow to it, integers of more than
MAX_DIGITS digits, lone surrogates, a key twice in one object, and nesting deeper than MAX_DEPTH (RFC 8259 section 4
leaves repeated keys open: here neither value is guessed). `dumps` never writes NaN or Infinity.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, NoReturn

from edged.errors import BadRequest

MAX_DEPTH = 64
MAX_DIGITS = 32

_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_NOT_BRACKETS = bytes(set(range(256)) - set(b'"[]{}'))
_AS_SQUARE = bytes.maketrans(b"{}", b"[]")


def loads(body: bytes) -> dict[str, Any]:
    """Parse a request body, which must be one JSON object in UTF-8."""
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _bad(f"not UTF-8: byte {body[error.start]:#04x} at offset {error.start}") from None
    _check_depth(body)
    try:
        value = json.loads(text, object_pairs_hook=_pairs, parse_constant=_constant, parse_float=_float, parse_int=_int)
    except ValueError as error:
        raise _bad(str(error)) from None
    if _SURROGATE.search(body):
        try:
            json.dumps(value, ensure_ascii=False).encode("utf-8")
        except UnicodeEncodeError as error:
            raise _bad(f"holds half of a surrogate pair: {error.object[error.start]!a}") from None
    if not isinstance(value, dict):
        raise _bad("not an object")
    return value


def dumps(value: Any) -> bytes:
    """Compact UTF-8. Raises ValueError for NaN and infinity: a reply must not hold what no other parser reads."""
    return _ENCODER.encode(value).encode("utf-8")


def _check_depth(body: bytes) -> None:
    """Raise BadRequest if brackets nest too deep; linear, without recursion.

    Strings are cut out first (an escaped quote does not end one); then each round removes the innermost pairs.
    """
    bare = body.replace(b"\\\\", b"").replace(b'\\"', b"").translate(None, _NOT_BRACKETS)
    brackets = b"".join(bare.split(b'"')[::2]).translate(_AS_SQUARE)
    for _ in range(MAX_DEPTH):
        if not brackets:
            return
        brackets = brackets.replace(b"[]", b"")
    if brackets:
        raise _bad(f"brackets do not match or nest deeper than {MAX_DEPTH}")


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key {key[:40]!r} is given twice")
        found[key] = value
    return found


def _constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a JSON number")


def _float(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"the number {text[:20]} is too large")
    return value


def _int(text: str) -> int:
    if len(text) > MAX_DIGITS:
        raise ValueError(f"an integer of {len(text)} digits; at most {MAX_DIGITS} are read")
    return int(text)


def _bad(reason: str) -> BadRequest:
    return BadRequest(f"the request body is not usable JSON: {reason}", code="invalid_json")
