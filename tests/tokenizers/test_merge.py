"""merge() against the rule spelled out: join the best pair of the whole list, again and again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edged.tokenizers.merge import Priority, merge


def naive(symbols: list[bytes], priority: Priority) -> list[bytes]:
    symbols = list(symbols)
    while True:
        costs = [
            (cost, i) for i in range(len(symbols) - 1) if (cost := priority(symbols[i], symbols[i + 1])) is not None
        ]
        if not costs:
            return symbols
        _, i = min(costs)
        symbols[i : i + 2] = [symbols[i] + symbols[i + 1]]


letters = st.lists(st.sampled_from([b"a", b"b", b"c"]), max_size=40)
costs = st.dictionaries(st.text("abc", min_size=2, max_size=6).map(str.encode), st.integers(0, 5), max_size=40)


@given(letters, costs)
def test_equals_the_naive_rule(symbols: list[bytes], costs: dict[bytes, int]) -> None:
    def by_joined_text(left: bytes, right: bytes) -> float | None:
        return costs.get(left + right)

    assert merge(symbols, by_joined_text) == naive(symbols, by_joined_text)


@given(letters, costs)
def test_equals_the_naive_rule_for_pairs(symbols: list[bytes], costs: dict[bytes, int]) -> None:
    def by_pair(left: bytes, right: bytes) -> float | None:
        return costs.get(left[-1:] + right)

    assert merge(symbols, by_pair) == naive(symbols, by_pair)


@pytest.mark.parametrize("length", [1000, 8000])
@pytest.mark.parametrize("pattern", [b"a", b"ab", b"abcab"])
def test_b08_asks_for_at_most_three_pairs_a_symbol(length: int, pattern: bytes) -> None:
    asked = 0

    def everything_up_to_64(left: bytes, right: bytes) -> float | None:
        nonlocal asked
        asked += 1
        return -len(left + right) if len(left + right) <= 64 else None

    symbols = [bytes((byte,)) for byte in (pattern * length)[:length]]
    assert b"".join(merge(symbols, everything_up_to_64)) == b"".join(symbols)
    assert length - 1 <= asked <= 3 * length
