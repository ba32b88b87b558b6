"""Cuts a document into the pieces that are embedded and found."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from edged.rag.document import Block, Chunk, Document

Span = tuple[int, int]  # offsets into Document.text


@dataclass(frozen=True)
class _Part:
    """A stretch of a document that is, or becomes, a chunk."""

    start: int
    end: int
    page: int | None
    page_end: int | None
    headings: tuple[str, ...]
    header: Span | None = None  # the header of the table that the part begins in the middle of


def split(document: Document, count_tokens: Callable[[str], int], limit: int) -> list[Chunk]:
    """Cut `document` into chunks of at most `limit` tokens.

    A chunk ends where a section ends, and before what would make it too long. A table row stays whole, and a chunk that
    begins inside a table begins with a copy of its header, unless there is no room for both. Only what is longer than
    `limit` in itself is cut: behind a line, a sentence, a word, or anywhere. A character is never cut, so one
    that is more than `limit` tokens is a chunk of its own, the only case over the limit.
    """
    if limit < 1:
        raise ValueError(f"limit is {limit}, must be 1 or more")

    def text(part: _Part) -> str:
        body = document.text[part.start : part.end]
        return f"{document.text[slice(*part.header)]}\n{body}" if part.header else body

    def fits(part: _Part) -> bool:
        return count_tokens(text(part)) <= limit

    done: list[_Part] = []
    for section in _sections(document):
        first = len(done)
        for part in _parts(section, document.text):
            if len(done) > first:
                # the parts so far, and this one behind them; a header that they hold needs no copy
                longer = replace(done[-1], end=part.end, page_end=part.page_end, headings=part.headings)
                if fits(longer):
                    done[-1] = longer
                    continue
            if fits(part):
                done.append(part)
            else:
                done += _cut(replace(part, header=None), document.text, fits)
    return [Chunk(text(part), part.start, part.end, part.page, part.page_end, part.headings) for part in done]


def _sections(document: Document) -> Iterator[list[Block]]:
    """Runs of blocks under one heading; headings that follow each other stay with the text below them."""
    section: list[Block] = []
    for block in document.blocks:
        if block.kind == "heading" and section and section[-1].kind != "heading":
            yield section
            section = []
        section.append(block)
    if section:
        yield section


def _parts(section: list[Block], text: str) -> Iterator[_Part]:
    """A part for every block, knowing the header of its table."""
    header: Block | None = None
    before: Block | None = None
    for block in section:
        if block.kind != "table_row":
            header = None
        elif header is None or before is None or text[before.end : block.start] != "\n":
            header = block
        copy = (header.start, header.end) if header and header is not block else None
        yield _Part(block.start, block.end, block.page, block.page, section[-1].headings, copy)
        before = block


def _cut(part: _Part, text: str, fits: Callable[[_Part], bool]) -> Iterator[_Part]:
    """Pieces of a part that is too long."""
    start = part.start
    while start < part.end:
        piece = replace(part, start=start)
        piece = replace(piece, end=_longest(piece, fits))
        if piece.end < part.end:
            best = _boundary(text, start, piece.end)
            if best < piece.end and fits(replace(piece, end=best)):
                piece = replace(piece, end=best)
        yield piece
        start = piece.end
        while start < part.end and text[start].isspace():
            start += 1


def _longest(part: _Part, fits: Callable[[_Part], bool]) -> int:
    """The end of the longest beginning that fits, by doubling and halving; one character is always taken.

    Looks at a few times what fits, however long the part is.
    """
    good, bad, step = part.start + 1, part.end + 1, 4
    while bad > part.end > good:
        end = min(good + step, part.end)
        if fits(replace(part, end=end)):
            good, step = end, 2 * step
        else:
            bad = end
    while bad - good > 1 and good < part.end:
        middle = (good + bad) // 2
        if fits(replace(part, end=middle)):
            good = middle
        else:
            bad = middle
    return good


def _boundary(text: str, start: int, end: int) -> int:
    """The best place to cut in the second half of `text[start:end]`: behind a line, a sentence, a word; else `end`."""
    if text[end : end + 1].isspace():
        return end
    half = start + (end - start) // 2
    for mark in ("\n", ". ", "\u3002", "; ", " "):
        at = text.rfind(mark, half, end)
        if at > start:
            return at + len(mark.rstrip(" "))
    return end
