"""Answers as bytes of a charset, in pages split at words."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edged.protocol.pages import CHARSETS, encode, pages


@pytest.mark.parametrize(
    ("text", "charset", "expected"),
    [
        ("5 µA – „ok“", "ascii", b'5 uA - "ok"'),
        ("Größe\n\tél\0è", "ascii", b"Grosse el e"),
        ("Größe", "latin-1", "Größe".encode("latin-1")),
        ("Ω", "latin-1", b"Ohm"),
        ("é", "cp437", b"\x82"),
        ("中", "ascii", b"?"),
        ("中", "utf-8", "中".encode()),
        ("a\ud800b", "utf-8", b"a?b"),
        (" \r\n ", "ascii", b""),
    ],
)
def test_encode(text: str, charset: str, expected: bytes) -> None:
    assert encode(text, charset) == expected


def test_pages_end_at_words() -> None:
    assert pages("the pump stops", "ascii", 8) == [b"the pump", b"stops"]
    assert pages("a " + "x" * 20 + " b", "ascii", 8) == [b"a", b"x" * 8, b"x" * 8, b"xxxx b"]
    assert pages("", "ascii", 8) == [b""]
    with pytest.raises(ValueError, match="least is 8"):
        pages("a", "ascii", 7)


@given(st.text(), st.sampled_from(CHARSETS), st.integers(8, 90))
def test_pages_hold_the_text(text: str, charset: str, room: int) -> None:
    """Pages fit, are whole characters, hold no line end, and together are the text without its blanks."""
    parts = pages(text, charset, room)
    assert all(len(part) <= room for part in parts)
    for part in parts:
        assert not {0, 10, 13} & set(part)
        part.decode(charset)
    assert b"".join(parts).replace(b" ", b"") == encode(text, charset).replace(b" ", b"")
