"""String arrays: found by guessing and proof, exactly where a walk from string to string finds them."""

from __future__ import annotations

import itertools
import struct
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edged.gguf import values
from edged.gguf.values import StringArray, scan_strings
from edged.gguf.writer import encode_string
from tests.gguf import raw

odd = st.binary(max_size=12) | st.sampled_from(
    [b"", b"\0", bytes(9), b"\1" + bytes(7), b"x" * 255, b"x" * 256, b"y" * 70000]
)


def concatenated(strings: list[bytes]) -> np.ndarray:
    return np.frombuffer(b"".join(encode_string(s) for s in strings), np.uint8)


@given(st.lists(odd, max_size=60), st.binary(max_size=20))
def test_scan_finds_every_string(strings: list[bytes], behind: bytes) -> None:
    data = concatenated(strings)
    bounds = scan_strings(np.concatenate([data, np.frombuffer(behind, np.uint8)]), len(strings))
    assert bounds is not None and bounds[-1] == len(data)
    array = StringArray(data, bounds)
    assert [array.raw(i) for i in range(len(array))] == strings
    assert list(array) == [s.decode("utf-8", "replace") for s in strings]


@given(st.lists(odd, min_size=1, max_size=60), st.data())
def test_scan_notices_every_cut(strings: list[bytes], data: st.DataObject) -> None:
    whole = concatenated(strings)
    cut = data.draw(st.integers(0, len(whole) - 1))
    assert scan_strings(whole[:cut], len(strings)) is None


@pytest.mark.parametrize("length", [1 << 63, (1 << 64) - 1, (1 << 64) - 8, (1 << 31) - 8])
def test_scan_refuses_lengths_that_would_wrap(length: int) -> None:
    data = np.frombuffer(encode_string("a") + struct.pack("<Q", length) + bytes(100), np.uint8)
    assert scan_strings(data, 2) is None


@pytest.mark.parametrize("at", range(40))
def test_scan_across_window_edges(monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    monkeypatch.setattr(values, "_WINDOW", 64)
    monkeypatch.setattr(values, "_WALK", 16)
    strings = [b"a" * at, b"", b"bc", b"\0\0", b"d" * 300, b"e" * 7, b"f"] * 5
    data = concatenated(strings)
    bounds = scan_strings(data, len(strings))
    assert bounds is not None
    assert [data[a + 8 : b].tobytes() for a, b in itertools.pairwise(bounds)] == strings


def test_string_array_is_a_sequence() -> None:
    strings = ["a", "", "über", "d"]
    data = concatenated([s.encode() for s in strings])
    array = StringArray(data, scan_strings(data, 4))  # type: ignore[arg-type]
    assert len(array) == 4 and list(array) == strings and array[-1] == "d" and array[1:3] == ["", "über"]
    assert array.lengths.tolist() == [1, 0, 5, 1]
    assert [data[o : o + n].tobytes() for o, n in zip(array.offsets, array.lengths, strict=True)] == [
        s.encode() for s in strings
    ]
    assert "über" in array and array.index("d") == 3
    with pytest.raises(IndexError):
        array[4]


def vocabulary(n: int, words: str) -> bytes:
    """The strings `words` + number, encoded."""
    return b"".join(encode_string(words + str(i)) for i in range(n))


def test_a13_a_large_vocabulary_makes_no_object_per_string(monkeypatch: pytest.MonkeyPatch) -> None:
    n_tokens, n_merges = 262_144, 500_000
    content = raw.gguf([
        raw.array("tokenizer.ggml.tokens", values.STRING, n_tokens, vocabulary(n_tokens, "t")),
        raw.array("tokenizer.ggml.merges", values.STRING, n_merges, vocabulary(n_merges, "m ")),
    ])  # fmt: skip
    # What takes long is to walk from string to string; on ordinary strings the guess must never fail.
    monkeypatch.setattr(values, "_walk", lambda *_: pytest.fail("walked"))
    before = sys.getallocatedblocks()
    meta = raw.read(content).meta
    assert sys.getallocatedblocks() - before < 1000
    tokens, merges = meta["tokenizer.ggml.tokens"], meta["tokenizer.ggml.merges"]
    assert isinstance(tokens, StringArray) and isinstance(merges, StringArray)
    assert (len(tokens), tokens[0], tokens[n_tokens - 1]) == (n_tokens, "t0", f"t{n_tokens - 1}")
    assert (len(merges), merges[12345], merges[-1]) == (n_merges, "m 12345", f"m {n_merges - 1}")
