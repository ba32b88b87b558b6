"""merge() against the rule spelled out: join the best pair of the whole list, again and again."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edged.tokenizers.merge import merge


class Priorities(dict[bytes, "float | None"]):
    """None for what is not in it; counts what is asked for."""

    asked = 0

    def __getitem__(self, pair: bytes) -> float | None:
        self.asked += 1
        return self.get(pair)


def naive(symbols: list[bytes], joiner: bytes, priorities: Priorities) -> list[bytes]:
    symbols = list(symbols)
    while True:
        pairs = [left + joiner + right for left, right in pairwise(symbols)]
        costs = [(cost, i) for i, pair in enumerate(pairs) if (cost := priorities[pair]) is not None]
        if not costs:
            return symbols
        _, i = min(costs)
        symbols[i : i + 2] = [symbols[i] + symbols[i + 1]]


letters = st.lists(st.sampled_from([b"a", b"b", b"c"]), max_size=40)
costs = st.dictionaries(st.text("abc", min_size=2, max_size=6).map(str.encode), st.integers(0, 5), max_size=40)
words = st.text("abc", min_size=1, max_size=3).map(str.encode)
pair_costs = st.dictionaries(st.tuples(words, words).map(b" ".join), st.integers(0, 5), max_size=60)


@given(letters, costs)
def test_equals_the_naive_rule(symbols: list[bytes], costs: dict[bytes, int]) -> None:
    priorities = Priorities(costs)
    assert merge(symbols, b"", priorities) == naive(symbols, b"", priorities)


@given(letters, pair_costs)
def test_equals_the_naive_rule_for_pairs(symbols: list[bytes], costs: dict[bytes, int]) -> None:
    priorities = Priorities(costs)
    assert merge(symbols, b" ", priorities) == naive(symbols, b" ", priorities)


@pytest.mark.parametrize("length", [1000, 8000])
@pytest.mark.parametrize("pattern", [b"a", b"ab", b"abcab"])
def test_b08_asks_for_at_most_three_pairs_a_symbol(length: int, pattern: bytes) -> None:
    class EverythingUpTo64(Priorities):
        def get(self, pair: bytes, default: object = None) -> int | None:  # type: ignore[override]
            return -len(pair) if len(pair) <= 64 else None

    priorities = EverythingUpTo64()
    symbols = [bytes((byte,)) for byte in (pattern * length)[:length]]
    assert b"".join(merge(symbols, b"", priorities)) == b"".join(symbols)
    assert length - 1 <= priorities.asked <= 3 * length
