"""The work a template may cause: every operation pays for the text it handles from one budget.

What costs too much ends in BadTemplate, at the same place on every machine, without a clock. Where a result may be
larger than the operands, it is paid for ahead.
"""

from __future__ import annotations

from collections.abc import Callable, ItemsView, Iterable, Iterator, KeysView, Mapping, Sized, ValuesView
from typing import Any

from jinja2.runtime import LoopContext, Namespace

from edged.errors import BadTemplate

BUDGET = 400_000  # units: one for an operation, and one for each UNIT characters it handles
INPUT_SHARE = 32  # ... and so many times what handling the input once takes
UNIT = 64
_LARGEST_INT = 4096  # bits
_FREE = 8  # operands that an operation's own price covers; each so many cost another
_DEEPEST = 64  # containers inside each other

# Characters or elements of a result that its operands do not pay for; filters and str methods of these names.
_GROWTH: dict[str, Callable[..., int]] = {
    "replace": lambda text, old, new, *_, **__: (str(text).count(str(old)) + 1) * len(str(new)),
    "join": lambda items, d="", *_, **__: len(items) * len(str(d)),
    "indent": lambda text, width=4, *_, **__: (
        (text.count("\n") + 1) * (width if isinstance(width, int) else len(width))
    ),
}


class Meter:
    """What one rendering may still spend."""

    def __init__(self, variables: Mapping[str, Any]) -> None:
        # sizes of the containers of the input, which are looked at many times; they outlive the meter
        self._known: dict[int, int] = {}
        size = sum(self._size(value, 0, self._known) for value in variables.values())
        self._left = BUDGET + INPUT_SHARE * size // UNIT

    def pay(self, characters: int) -> None:
        """Take the price of one operation on so many characters."""
        self._left -= 1 + max(characters, 0) // UNIT
        if self._left < 0:
            raise BadTemplate("the chat template takes too many steps or makes too much text")

    def charge(self, *values: Any) -> None:
        """Take the price of one operation on these values."""
        self.pay(UNIT * (len(values) // _FREE) + sum(self._size(value, 0) for value in values))

    def kept(self, value: Any) -> Any:
        """Charge for a result and return it; a lazy one is made real, or nobody would pay for its items."""
        if isinstance(value, Iterator | KeysView | ValuesView | ItemsView) and not isinstance(value, LoopContext):
            value = [self.kept(item) for item in value]
        elif isinstance(value, str) and type(value) is not str:
            value = str.__str__(value)  # markup: there is no HTML here
        self.charge(value)
        return value

    def grow(self, name: str, *args: Any, **kwargs: Any) -> None:
        """Pay ahead for what the filter or str method `name` adds to its operands."""
        if name in _GROWTH:
            self.pay(_GROWTH[name](*args, **kwargs))

    def binary(self, operator: str, left: Any, right: Any) -> None:
        """Pay ahead for an operator. Raises BadTemplate for what would be too large."""
        self.charge(left, right)
        if operator == "*":
            for sequence, times in ((left, right), (right, left)):
                if isinstance(sequence, Sized) and isinstance(times, int):
                    self.pay(len(sequence) * times * (1 if isinstance(sequence, str) else UNIT))
        elif operator == "**" and isinstance(left, int) and isinstance(right, int):
            if left.bit_length() * abs(right) > _LARGEST_INT:
                raise BadTemplate(f"the chat template computes a power of more than {_LARGEST_INT} bits")
        elif operator == "%" and isinstance(left, str):
            raise BadTemplate("the chat template formats text with %, which is not supported")

    def output(self, pieces: Iterable[str]) -> Iterator[str]:
        """Pay for finished text."""
        for piece in pieces:
            self.pay(len(piece))
            yield piece

    def _size(self, value: Any, depth: int, sizes: dict[int, int] | None = None) -> int:
        """Characters of a value and of all inside it, an element counting as a unit; remembered in `sizes`."""
        if isinstance(value, str):
            return len(value)
        if isinstance(value, int) and value.bit_length() > _LARGEST_INT:
            raise BadTemplate(f"the chat template makes a number of more than {_LARGEST_INT} bits")
        if depth:
            refuse_namespaces((value,))
        if isinstance(value, range):
            return UNIT * len(value)
        if not isinstance(value, list | tuple | dict):
            return 0
        if id(value) in self._known:
            return self._known[id(value)]
        if depth == _DEEPEST:
            raise BadTemplate(f"the chat template or its input nests deeper than {_DEEPEST}")
        if sizes is None:
            self.pay(UNIT * len(value))  # for this walk
        members = (*value, *value.values()) if isinstance(value, dict) else value
        size = UNIT * len(value) + sum(self._size(member, depth + 1, sizes) for member in members)
        if sizes is not None:
            sizes[id(value)] = size
        return size


def refuse_namespaces(values: Iterable[Any]) -> None:
    """Raise BadTemplate for a namespace where it might become text or an element: it may hold itself."""
    if any(isinstance(value, Namespace) for value in values):
        raise BadTemplate("the chat template uses a namespace as a value")


class Rounds:
    """What a `for` loop runs over: each round pays for itself and for the template's own text in it."""

    def __init__(self, iterable: Iterable[Any], meter: Meter, text: int) -> None:
        self._iterable = iterable
        self._meter = meter
        self._text = text

    def __iter__(self) -> Iterator[Any]:
        for item in self._iterable:
            self._meter.pay(self._text)
            yield item

    def __len__(self) -> int:
        return len(self._iterable)  # type: ignore[arg-type]  # TypeError is what a loop expects of a lazy one
