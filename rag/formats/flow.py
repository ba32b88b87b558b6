"""Lines of pages to the blocks of a document: headings, paragraphs, lists, program text and tables."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from edged.rag.formats import tables
from edged.rag.formats.builder import Builder
from edged.rag.formats.clean import join
from edged.rag.formats.layout import BIG, Line, Rule

LONGEST = 160  # characters of a heading
NUMBERED = re.compile(r"(?:[A-Za-z]+ )?(\d{1,2}(?:\.\d{1,2}){0,4}|[A-Z](?:\.\d{1,2}){0,3})[.:]?\s+[^\W\d]")
LABEL = re.compile(r"\w+ (?:\d{1,2}|[A-Z]|[IVX]{1,6})[.:]?$")  # 'Chapter 3', with the title in the next line
ITEM = re.compile(r"(?:[-*+\u2022\u2013\u25aa\u25cf\u25e6\u00b7]|\(?(?:\d{1,2}|[a-z])[.)])\s+\S")
LEADER = re.compile(r"(?:[.\u2026\u00b7]\s*){4,}(?:\d{1,4}|[ivxlc]{1,7})$")  # a line of a table of contents


@dataclass(frozen=True)
class Entry:
    """A heading that the document's outline names: level from 1."""

    level: int
    title: str
    page: int


@dataclass
class Flow:
    """Gives the lines of one page after the other to the builder. Raises what the builder raises."""

    builder: Builder
    size: float  # of the text
    levels: dict[int, int]  # of the sizes of headings, rounded
    outline: Sequence[Entry]
    _columns: list[tables.Span] = field(default_factory=list)  # of the table that the last page ended with
    _header: list[str] = field(default_factory=list)

    def page(self, number: int, lines: Sequence[Line], rules: Sequence[Rule]) -> None:
        """Add a page."""
        lines = without_contents(lines)
        entries = [entry for entry in self.outline if entry.page == number]
        headings = {at: found for at in range(len(lines)) if (found := self._heading(lines, at, entries))}
        found_tables = {table.start: table for table in tables.find(lines, rules)}
        stops = {*headings, *found_tables}
        at, columns = 0, self._columns
        self._columns = []
        while at < len(lines):
            if at in headings:
                level, end = headings[at]
                self.builder.heading(level, join(line.text for line in lines[at:end]), number)
            elif at in found_tables:
                end = found_tables[at].end
                self._table(found_tables[at], number, columns if at == 0 else [])
                self._columns = found_tables[at].columns if end == len(lines) else []
            else:
                end = self._block(lines, at, number, stops)
            at = end

    def _heading(self, lines: Sequence[Line], at: int, entries: Sequence[Entry]) -> tuple[int, int] | None:
        """The level of the heading in line `at`, and the line behind it."""
        first = lines[at]
        end = at + 1
        while end < len(lines) and end < at + 4 and _goes_on(lines[end - 1], lines[end]):
            end += 1
        for last in range(end, at, -1):
            text = " ".join(line.text for line in lines[at:last])
            for entry in entries:
                if _same(text, entry.title) and first.size >= 0.95 * self.size:
                    return entry.level, last
        text = " ".join(line.text for line in lines[at:end])
        if first.size < BIG * self.size or len(text) > LONGEST or not re.search(r"[^\W\d]", text):
            return None
        numbered = NUMBERED.match(text)
        if self.outline:  # what it does not name is below all that it names
            if first.pitch or text.endswith((".", ";", ",")):
                return None
            return 1 + max(entry.level for entry in self.outline), end
        if numbered:
            return 1 + numbered[1].count("."), end
        return self.levels.get(round(first.size), 1), end

    def _table(self, table: tables.Table, number: int, columns: Sequence[tables.Span]) -> None:
        """Add a table; with the `columns` of the one that the page before ended with, it is the rest of that."""
        rows = [row for row in table.rows if any(row)]
        same = len(columns) == len(table.columns)
        if same and all(abs(a[0] - b[0]) < 12 for a, b in zip(columns, table.columns, strict=True)):
            for row in rows[1:] if rows and rows[0] == self._header else rows:
                self.builder.row(row, number, opens=False)
        else:
            self.builder.table(rows, number)
            self._header = rows[0] if rows else []

    def _block(self, lines: Sequence[Line], at: int, number: int, stops: set[int]) -> int:
        """Add the paragraph, item or program text that begins in line `at`; returns the line behind it."""
        end = at + 1
        if lines[at].pitch:
            while end < len(lines) and end not in stops and _same_code(lines[at], lines[end - 1], lines[end]):
                end += 1
            self.builder.add("code", code(lines[at:end]), number)
            return end
        while end < len(lines) and end not in stops and _same_paragraph(lines, at, end):
            end += 1
        text = join(line.text for line in lines[at:end])
        self.builder.add("list" if ITEM.match(text) else "text", text, number)
        return end


def without_contents(lines: Sequence[Line]) -> list[Line]:
    """A page without the lines of a table of contents: they name what they do not say."""
    leaders = sum(bool(LEADER.search(line.text)) for line in lines)
    if leaders >= 5:
        return [line for line in lines if not re.search(r"(?:^|\s)(?:\d{1,4}|[ivxlc]{1,7})$", line.text)]
    return [line for line in lines if not LEADER.search(line.text)]


def _goes_on(before: Line, line: Line) -> bool:
    """Whether a heading of two lines goes on with this one: the same type below it, or the title below a label."""
    gap = line.y0 - before.y1
    if before.page != line.page or not -1 <= gap < 2.5 * before.size:
        return False
    alike = abs(before.size - line.size) < 0.5 and before.weight == line.weight and gap < 0.7 * before.size
    return alike or (bool(LABEL.match(before.text)) and line.size >= before.size - 0.5)


def _same(text: str, title: str) -> bool:
    """Whether a heading on the page is that of the outline, which may lack its number: 'Chapter 1', '2.3.1'."""
    text, title = _letters(text), _letters(title)
    return bool(title) and text.endswith(title) and len(text) - len(title) < 12


def _letters(text: str) -> str:
    return re.sub(r"[\W_]+", "", text.casefold())


def _same_code(first: Line, before: Line, line: Line) -> bool:
    return bool(line.pitch) and abs(line.size - first.size) < 0.3 and 0 < line.y0 - before.y0 < 3.2 * first.size


def code(lines: Sequence[Line]) -> str:
    """Program text with its indentation and its blank lines."""
    left = min(line.x0 for line in lines)
    pitch = next(line.pitch for line in lines if line.pitch)
    done: list[str] = []
    for n, line in enumerate(lines):
        if n and line.y0 - lines[n - 1].y0 > 1.8 * line.size:
            done.append("")
        text = ""
        for word in line.words:
            at = round((word.x0 - left) / pitch)
            text += " " * max(at - len(text), bool(text.strip()) and word.x0 - left > (len(text) + 0.4) * pitch)
            text += word.text
        done.append(text)
    return "\n".join(done)


def _same_paragraph(lines: Sequence[Line], at: int, n: int) -> bool:
    """Whether line `n` goes on with the paragraph that begins in line `at`."""
    first, before, line = lines[at], lines[n - 1], lines[n]
    if not 0 < line.y0 - before.y0 < 1.7 * max(before.size, line.size) or abs(line.size - before.size) > 1.2:
        return False
    if line.pitch or ITEM.match(line.text):
        return False
    left, right = before.column
    listed = ITEM.match(first.text)
    margin = lines[at + 1].x0 if n > at + 1 else first.x0
    if not listed and n > at + 1 and abs(line.x0 - margin) > 0.8 * line.size:
        return False  # the first line of the next paragraph is set in
    if not listed and n == at + 1 and line.x0 > first.x0 + 1.2 * line.size and first.x1 < right - 2 * line.size:
        return False  # what is set in below a line that had room left is no part of it
    short = before.x1 < right - 0.25 * (right - left)
    if listed:  # items of one line each may be followed by text below their mark
        return line.x0 > first.x0 + 2 or (line.x0 > first.x0 - 2 and not short)
    return not (short and before.text.endswith((".", ":", "!", "?")))


def type_sizes(pages: Iterable[Sequence[Line]]) -> tuple[float, dict[int, int]]:
    """The size of the text, and the level of each larger size: the largest is 1."""
    sizes: Counter[float] = Counter()
    for line in (line for lines in pages for line in lines):
        sizes[line.size] += len(line.text)
    size = sizes.most_common(1)[0][0] if sizes else 10.0
    larger = sorted({round(each) for each in sizes if each >= BIG * size}, reverse=True)
    return size, {each: min(level, 6) for level, each in enumerate(larger, 1)}
