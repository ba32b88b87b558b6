"""Collects the blocks of a document, in reading order, and its canonical text with them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from edged.errors import BadDocument
from edged.rag.document import Block, Document, Kind

MAX_CHARACTERS = 16 << 20  # of canonical text: ten times the longest manuals of microcontrollers
MAX_BLOCKS = 200_000
MAX_HEADING = 500  # characters; every chunk repeats the headings above it


class Builder:
    """`heading`, `add` and `table` in reading order, then `document`.

    Blocks are an empty line apart. Only items of a list and rows of one table follow each other line by line: that is
    how rows tell the table they belong to. The first row of a table is its header. Raises BadDocument over
    MAX_CHARACTERS or MAX_BLOCKS.
    """

    def __init__(self) -> None:
        self._text: list[str] = []
        self._length = 0
        self._blocks: list[Block] = []
        self._path: list[tuple[int, str]] = []  # level and text of the headings above

    def heading(self, level: int, text: str, page: int | None = None) -> None:
        """Open a section; those of this level and below it end. What is longer than MAX_HEADING is text."""
        if len(text) > MAX_HEADING:
            self.add("text", text, page)
        elif text:
            self._path = [above for above in self._path if above[0] < level]
            self._put("heading", text, page, "\n\n")
            self._path.append((level, text))

    def add(self, kind: Kind, text: str, page: int | None = None) -> None:
        """Add a block of text, list or code, if there is text."""
        if text.strip():
            follows = kind == "list" and self._blocks and self._blocks[-1].kind == "list"
            self._put(kind, text, page, "\n" if follows else "\n\n")

    def table(self, rows: Iterable[Sequence[str]], page: int | None = None) -> None:
        """Add a table, row by row, cells between bars."""
        opens = True
        for cells in rows:
            if any(cells):
                self.row(cells, page, opens=opens)
                opens = False

    def row(self, cells: Sequence[str], page: int | None = None, *, opens: bool) -> None:
        """Add a row; `opens`: a table begins with it."""
        self._put("table_row", " | ".join(cells), page, "\n\n" if opens else "\n")

    def document(self, title: str, pages_without_text: Iterable[int] = ()) -> Document:
        """The document. Without a `title` its first heading is it; of either, MAX_HEADING characters."""
        first = next((block.text for block in self._blocks if block.kind == "heading"), "")
        title = (title or first)[:MAX_HEADING]
        return Document(title, "".join(self._text), tuple(self._blocks), tuple(pages_without_text))

    def _put(self, kind: Kind, text: str, page: int | None, gap: str) -> None:
        if self._blocks:
            self._text.append(gap)
            self._length += len(gap)
        start, self._length = self._length, self._length + len(text)
        if self._length > MAX_CHARACTERS:
            raise BadDocument(f"more than {MAX_CHARACTERS} characters of text", hint="split it")
        if len(self._blocks) >= MAX_BLOCKS:
            raise BadDocument(f"more than {MAX_BLOCKS} paragraphs, items and rows", hint="split it")
        self._text.append(text)
        self._blocks.append(Block(kind, text, page, tuple(above for _, above in self._path), start, self._length))
