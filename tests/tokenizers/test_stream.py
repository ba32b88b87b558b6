"""Streams: whole characters, nothing of a stop string, nothing lost."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edged.tokenizers.stream import TextStream

CAT = "\U0001f638".encode()  # four bytes


def stream_of(pieces: list[bytes], stops: tuple[str, ...] = ()) -> tuple[list[str], TextStream]:
    """Deltas of these tokens, the last one from finish()."""
    stream = TextStream(pieces.__getitem__, stops)
    return [*map(stream.push, range(len(pieces))), stream.finish()], stream


@pytest.mark.parametrize("cuts", [(2, 2), (3, 1), (1, 1, 1, 1)])
def test_b04_a_character_over_several_tokens(cuts: tuple[int, ...]) -> None:
    pieces, at = [], 0
    for cut in cuts:
        pieces.append(CAT[at : at + cut])
        at += cut
    deltas, _ = stream_of(pieces)
    assert deltas == [""] * (len(cuts) - 1) + ["\U0001f638", ""]


def test_b04_the_first_of_two_is_not_held_back() -> None:
    deltas, _ = stream_of([CAT + CAT[:1], CAT[1:3], CAT[3:]])
    assert deltas == ["\U0001f638", "", "\U0001f638", ""]


@pytest.mark.parametrize("invalid", [b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\x80"])
@pytest.mark.parametrize("whole", [True, False])
def test_b05_invalid_bytes_are_replaced(invalid: bytes, whole: bool) -> None:
    middle = [invalid] if whole else [bytes((byte,)) for byte in invalid]
    deltas, _ = stream_of([b"a", *middle, b"b"])
    text = "".join(deltas)
    assert text[0] == "a" and text[-1] == "b"
    assert set(text[1:-1]) == {"\ufffd"}


def test_b05_an_unfinished_character_at_the_end() -> None:
    deltas, _ = stream_of([b"a", CAT[:3]])
    assert "".join(deltas) == "a\ufffd"


def test_d04_stop_over_several_tokens() -> None:
    deltas, stream = stream_of([b"N", b" O", b" P", b" Q", b" R"], ("O P Q",))
    assert "".join(deltas) == "N "
    assert stream.stopped
    assert not any("O" in delta for delta in deltas)


def test_d04_stop_inside_one_token() -> None:
    deltas, stream = stream_of([b"xENDy"], ("END",))
    assert "".join(deltas) == "x"
    assert stream.stopped


def test_d05_held_text_is_flushed() -> None:
    deltas, stream = stream_of([b"a", b"b"], ("bc",))
    assert deltas == ["a", "", "b"]
    assert not stream.stopped


def test_a_stop_that_repeats_its_own_beginning() -> None:
    deltas, stream = stream_of([b"aab", b"aab", b"aac", b"x"], ("aabaac",))
    assert "".join(deltas) == "aab"
    assert stream.stopped


def test_of_two_stops_the_one_complete_first() -> None:
    deltas, _ = stream_of([b"abcd"], ("abcd", "bc"))
    assert "".join(deltas) == "a"


def test_empty_stops_are_none() -> None:
    deltas, stream = stream_of([b"abc"], ("",))
    assert deltas == ["abc", ""]
    assert not stream.stopped


@given(st.text("ab\u00e9", max_size=30), st.lists(st.text("ab\u00e9", max_size=4), max_size=3), st.data())
def test_text_does_not_depend_on_how_it_is_cut(text: str, stops: list[str], data: st.DataObject) -> None:
    encoded = text.encode()
    cuts = sorted(data.draw(st.sets(st.integers(0, len(encoded)))) | {0, len(encoded)})
    pieces = [encoded[start:end] for start, end in pairwise(cuts)]
    deltas, stream = stream_of(pieces, tuple(stops))
    ends = [(at + len(stop), at) for stop in stops if stop for at in [text.find(stop)] if at >= 0]
    expected = text[: min(ends)[1]] if ends else text
    assert "".join(deltas) == expected
    assert stream.stopped == bool(ends)
