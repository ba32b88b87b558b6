"""SpecialTokens against llama.cpp's procedure spelled out: each token, longest first, cuts what is still text."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from edged.tokenizers.special import SpecialTokens


def naive(ids: dict[str, int], text: str) -> list[str | int]:
    parts: list[str | int] = [text] if text else []
    for piece in sorted(ids, key=lambda piece: (-len(piece), ids[piece])):
        cut: list[str | int] = []
        for part in parts:
            if isinstance(part, int):
                cut.append(part)
                continue
            for i, between in enumerate(part.split(piece)):
                cut += [ids[piece]] * (i > 0) + [between] * bool(between)
        parts = cut
    return parts


pieces = st.lists(st.text("ab<>", min_size=1, max_size=5), max_size=8, unique=True)


@given(pieces, st.text("ab<> ", max_size=30))
def test_equals_the_naive_rule(pieces: list[str], text: str) -> None:
    ids = {piece: id for id, piece in enumerate(pieces)}
    assert SpecialTokens(ids).split(text) == naive(ids, text)


def test_longest_first_even_if_a_shorter_one_begins_earlier() -> None:
    assert SpecialTokens({"ab": 1, "bcd": 2}).split("abcd") == ["a", 2]


def test_runs() -> None:
    tokens = SpecialTokens({"\n" * n: n for n in range(1, 32)})
    assert tokens.split("\n" * 70 + "x") == [31, 31, 8, "x"]


def test_no_tokens() -> None:
    assert SpecialTokens({}).split("text") == ["text"]
    assert SpecialTokens({"a": 1}).split("") == []
