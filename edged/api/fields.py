"""Typed reading of a JSON object's fields: every wrong type or range is a BadRequest that names the field.

A field that is absent or null has its default. True is not a number and '0.5' is not either: bool is an int to Python,
not to a caller.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, overload

from edged.errors import BadRequest


class Fields:
    """The fields of one request body. Each reader returns a checked value or raises BadRequest."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values

    def get(self, name: str) -> Any:
        """The value as it came, None if absent."""
        return self._values.get(name)

    def present(self, name: str) -> bool:
        """Whether the field is given and not null."""
        return self._values.get(name) is not None

    def flag(self, name: str, default: bool = False) -> bool:
        """true or false."""
        value = self._values.get(name)
        if value is None:
            return default
        if type(value) is not bool:
            raise wrong_type(name, "true or false", value)
        return value

    @overload
    def integer(self, name: str, default: int, low: int, high: int) -> int: ...
    @overload
    def integer(self, name: str, default: None, low: int, high: int) -> int | None: ...
    def integer(self, name: str, default: int | None, low: int, high: int) -> int | None:
        """A whole number in low..high."""
        value = self._values.get(name)
        return default if value is None else integer(value, name, low, high)

    def number(self, name: str, default: float, low: float, high: float) -> float:
        """A number in low..high."""
        value = self._values.get(name)
        return default if value is None else number(value, name, low, high)

    def text(self, name: str, default: str = "") -> str:
        """A string."""
        value = self._values.get(name)
        if value is None:
            return default
        if not isinstance(value, str):
            raise wrong_type(name, "a string", value)
        return value

    def choice(self, name: str, default: str, choices: tuple[str, ...]) -> str:
        """One of several strings."""
        value = self._values.get(name)
        if value is None:
            return default
        if not isinstance(value, str) or value not in choices:
            raise wrong_type(name, " or ".join(repr(choice) for choice in choices), value)
        return value


def refuse(fields: Fields, unsupported: Mapping[str, tuple[Any, ...]]) -> None:
    """Raise BadRequest for a field that would change the answer if it were honoured.

    unsupported: name -> the values with which it asks for nothing.
    """
    for name, harmless in unsupported.items():
        if fields.present(name) and fields.get(name) not in harmless:
            raise BadRequest(f"{name} is not supported", param=name, code="unsupported_parameter",
                             hint="it is refused because the answer would not be what it asks for")


def integer(value: Any, name: str, low: int, high: int) -> int:
    """`value` if it is a whole number in low..high; raises BadRequest naming the field `name`."""
    if type(value) is not int:
        raise wrong_type(name, "an integer", value)
    if not low <= value <= high:
        raise BadRequest(f"{name} is {value}; it must be between {low} and {high}", param=name)
    return value


def number(value: Any, name: str, low: float, high: float) -> float:
    """`value` as a float if it is a number in low..high; raises BadRequest naming the field `name`."""
    if type(value) is not int and type(value) is not float:
        raise wrong_type(name, "a number", value)
    if not low <= value <= high:  # NaN fails this too
        raise BadRequest(f"{name} is {value}; it must be between {low:g} and {high:g}", param=name)
    return float(value)


def token_ids(value: Any, name: str, n_vocab: int) -> tuple[int, ...]:
    """`value` as token ids below `n_vocab`; raises BadRequest naming the field `name` and the first bad place."""
    if not isinstance(value, list):
        raise wrong_type(name, "a list of token ids", value)
    for place, token in enumerate(value):
        if type(token) is not int or not 0 <= token < n_vocab:
            raise BadRequest(f"{name}[{place}] is {_shown(token)}; a token id must be an integer between 0 and "
                             f"{n_vocab - 1}", param=name)
    return tuple(value)


def strings(values: list[Any], name: str) -> list[str]:
    """`values` if all are strings; raises BadRequest naming the field `name` and the first bad place."""
    for place, value in enumerate(values):
        if not isinstance(value, str):
            raise BadRequest(f"{name}[{place}] is {_shown(value)}; it must be a string", param=name)
    return values


def wrong_type(name: str, wanted: str, value: Any) -> BadRequest:
    """The error for a field of a wrong type."""
    return BadRequest(f"{name} must be {wanted}, not {_shown(value)}", param=name)


def _shown(value: Any) -> str:
    """A short, always printable form of a JSON value."""
    if isinstance(value, (dict, list)):
        return "an object" if isinstance(value, dict) else "a list"
    text = {None: "null", True: "true", False: "false"}.get(value) if value is None or type(value) is bool else None
    return text or ascii(value)[:60]
