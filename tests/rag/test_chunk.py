"""Chunks: along headings, whole rows under their header, never over the limit."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edged.rag.chunk import split
from edged.rag.document import Document
from edged.rag.formats import markdown
from edged.rag.formats.builder import Builder


def words(text: str) -> int:
    return len(re.findall(r"\w+|[^\w\s]", text))


def document(*paragraphs: str) -> Document:
    builder = Builder()
    for paragraph in paragraphs:
        builder.add("text", paragraph)
    return builder.document("t")


def test_a_chunk_ends_with_its_section() -> None:
    source = b"# Pump\n\nIntro.\n\n## Wiring\n\nRed.\n\nBlue.\n\n## Faults\n\n### Codes\n\nE-0x1F."
    chunks = split(markdown.read(source, "m.md"), words, 100)
    texts = [chunk.text for chunk in chunks]
    assert texts == ["Pump\n\nIntro.", "Wiring\n\nRed.\n\nBlue.", "Faults\n\nCodes\n\nE-0x1F."]
    assert [chunk.headings for chunk in chunks] == [("Pump",), ("Pump", "Wiring"), ("Pump", "Faults", "Codes")]


def test_K07_every_chunk_of_a_table_has_its_header_and_section() -> None:
    builder = Builder()
    builder.heading(1, "Registers", 4)
    rows = [(f"CR{n}", f"0x{n:04X}", f"Control {n}") for n in range(60)]
    builder.table([("Register", "Reset value", "Meaning"), *rows[:30]], 4)
    for row in rows[30:]:  # the table goes on on the next page
        builder.row(row, 5, opens=False)
    chunks = split(builder.document("t"), words, 60)
    assert len(chunks) > 5
    lines = [line for chunk in chunks for line in chunk.text.splitlines() if line.startswith("CR")]
    assert lines == [" | ".join(row) for row in rows], "every row once and whole"
    for chunk in chunks:
        assert "Register | Reset value | Meaning" in chunk.text and chunk.headings == ("Registers",)
        assert words(chunk.text) <= 60
    assert {chunk.page for chunk in chunks} == {4, 5}
    assert any((chunk.page, chunk.page_end) == (4, 5) for chunk in chunks)


def test_a_row_too_long_for_its_header_stands_alone() -> None:
    builder = Builder()
    builder.table([("a " * 8, "b"), ("c " * 12, "d")])
    chunks = split(builder.document("t"), words, 15)
    assert [words(chunk.text) for chunk in chunks] == [10, 14]


def test_F04_a_long_paragraph_is_cut_at_sentences_and_nothing_is_lost() -> None:
    text = " ".join(f"Sentence number {n} says this." for n in range(100))
    chunks = split(document(text), words, 40)
    assert all(chunk.text.endswith(".") for chunk in chunks)
    assert " ".join(chunk.text for chunk in chunks) == text


PIECES = ["a" * 10_000, "QUJD" * 500, "short\nlines\n" * 50, "\u6e29\u5ea6\u904e\u9ad8" * 300, "http://x/" + "y" * 5000]


@given(st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=200)), max_size=3), st.integers(1, 64))
@settings(deadline=None, max_examples=60)
def test_K06_any_text_ends_in_chunks_that_cover_it(paragraphs: list[str], limit: int) -> None:
    def tokens(text: str) -> int:  # long words are several tokens
        return sum(-(-len(word) // 4) for word in text.split())

    whole = document(*paragraphs)
    chunks = split(whole, tokens, limit)
    at = 0
    for chunk in chunks:
        assert chunk.start < chunk.end and tokens(chunk.text) <= limit
        assert chunk.text == whole.text[chunk.start : chunk.end]
        assert not whole.text[at : chunk.start].strip()
        at = chunk.end
    assert not whole.text[at:].strip()


def test_a_character_over_the_limit_is_taken_whole() -> None:
    chunks = split(document("\U0001f600" * 3), lambda text: 4 * len(text), 2)
    assert [chunk.text for chunk in chunks] == ["\U0001f600"] * 3


def test_K06_a_limit_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="limit is 0"):
        split(document("x"), words, 0)
