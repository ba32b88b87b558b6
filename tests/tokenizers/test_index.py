"""StringIndex finds what a dict would find."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edged.tokenizers import index
from edged.tokenizers.index import PackedStrings, StringIndex

strings = st.lists(
    st.binary(max_size=30) | st.sampled_from([b"a", b"ab", b"12345678", b"123456789", bytes(8)]), max_size=60
)


def first_positions(items: list[bytes]) -> dict[bytes, int]:
    return {item: position for position, item in reversed(list(enumerate(items)))}


@given(strings, strings)
def test_finds_what_a_dict_finds(items: list[bytes], others: list[bytes]) -> None:
    positions = first_positions(items)
    built = StringIndex(PackedStrings(items))
    for piece in items + others:
        expected = positions.get(piece, -1) if piece else -1
        assert built.find(piece) == expected


def test_bytes_decide_when_all_hashes_are_equal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "_MULTIPLIER", 0)
    items = [b"one", b"two", b"six", b"three", b"one"]
    built = StringIndex(PackedStrings(items))
    assert [built.find(item) for item in items] == [0, 1, 2, 3, 0]
    assert built.find(b"ten") == -1


def test_many_strings_of_every_length() -> None:
    items = [bytes([i % 251]) * (i % 40 + 1) + i.to_bytes(3, "big") for i in range(40_000)]  # more than one chunk
    built = StringIndex(PackedStrings(items))
    assert all(built.find(item) == position for position, item in enumerate(items))


def test_memo_is_bounded() -> None:
    asked = []
    memo = index.Memo(lambda piece: asked.append(piece) or len(asked))
    assert (memo[b"x"], memo[b"x"], asked) == (1, 1, [b"x"])
    for i in range(3 * index._REMEMBERED):
        memo[b"%d" % i]
    assert len(memo) <= index._REMEMBERED
