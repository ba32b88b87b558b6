"""Tables on a page: which lines are rows of one, and what stands in its cells. Nothing here raises."""

from __future__ import annotations

import re
from bisect import bisect
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from edged.rag.formats.clean import join
from edged.rag.formats.layout import THIN, Line, Rule, Word, spaced

Span = tuple[float, float]
# what stands before a heading or an item of a list, with a gap, and makes no column
MARK = re.compile(
    r"(?:[-*+\u2022\u2013\u2014\u25aa\u25cf\u25e6\u00b7]|\(?(?:\d{1,2}|[a-z])[.)]|"
    r"(?:\d{1,2}|[A-Z])(?:\.\d{1,2})+\.?|\d{1,2})$"
)


@dataclass(frozen=True)
class Table:
    """Rows of cells, made of lines[start:end]; `columns` are where they lie on the page."""

    start: int
    end: int
    rows: list[list[str]]
    columns: list[Span]


def find(lines: Sequence[Line], rules: Sequence[Rule]) -> list[Table]:
    """The tables of a page: lines between rules of one width, or lines with gaps at the same places."""
    found, at = [], 0
    while at < len(lines):
        end = _ruled(lines, at, rules) or _spaced(lines, at)
        table = _table(lines, at, end, rules) if end else None
        if table:
            found.append(table)
        at = table.end if table else at + 1
    return found


def _ruled(lines: Sequence[Line], at: int, rules: Sequence[Rule]) -> int:
    """The end of a table that rules begin above line `at`: at least three of one width; 0 if there is none."""
    across = _across(lines[at], rules)
    if across is None:
        return 0
    left, right, heights = across
    end, strips = at, 0
    grid = bool(_bars(lines[at : at + 1], rules))
    while end < len(lines) and lines[end].x0 >= left - 3 and lines[end].x1 <= right + 3:
        below = bisect(heights, _height(lines[end]))
        stop = end + 1
        while stop < len(lines) and bisect(heights, _height(lines[stop])) == below:
            stop += 1
        strip = lines[end:stop]
        # between two tables of one width is text, without bars or cells
        if below == len(heights) or not (_bars(strip, rules) if grid else any(len(line.cells) > 1 for line in strip)):
            break
        end, strips = stop, strips + 1
    return end if strips > 1 or end - at > 2 else 0


def _height(line: Line) -> float:
    return (line.y0 + line.y1) / 2


def _across(line: Line, rules: Sequence[Rule]) -> tuple[float, float, list[float]] | None:
    """The left and right end of the horizontal rules around a line, and their heights, top first."""
    flat = [rule for rule in rules if rule.y1 - rule.y0 < THIN]
    over = [rule for rule in flat if rule.x0 <= line.x0 + 3 and rule.x1 >= line.x1 - 3 and rule.y0 <= line.y0 + 3]
    if not over:
        return None
    nearest = max(over, key=lambda rule: rule.y0)
    same = [rule for rule in flat if abs(rule.x0 - nearest.x0) < 4 and abs(rule.x1 - nearest.x1) < 4]
    heights = sorted({round(rule.y0, 1) for rule in same if rule.y0 >= nearest.y0 - 1})
    return (nearest.x0, nearest.x1, heights) if len(heights) >= 3 else None


def _spaced(lines: Sequence[Line], at: int) -> int:
    """The end of a table that begins with line `at` and is drawn without rules; 0 if there is none."""
    first = lines[at]
    if not _tabular(first) and not first.pitch and at + 1 < len(lines):
        first = lines[at + 1]  # line `at` may be a header whose cells are close
    starts = [cell[0].x0 for cell in first.cells]
    if not _tabular(first) or not (first is lines[at] or _aligned(lines[at], starts)):
        return 0
    spans = [_span(cell) for cell in first.cells]
    end, rows = at + 1, 1
    while end < len(lines):
        line, before = lines[end], lines[end - 1]
        if not 0 <= line.y0 - before.y0 < 3 * first.size or abs(line.size - first.size) > 0.25 * first.size:
            break
        below = [_overlapped(_span(cell), spans) for cell in line.cells]
        known = [columns[0] for columns in below if len(columns) == 1]
        orderly = all(len(columns) < 2 for columns in below) and known == sorted(set(known))
        if orderly and len(known) >= 2 and not line.pitch:
            for cell, columns in zip(line.cells, below, strict=True):
                for n in columns:
                    spans[n] = (min(spans[n][0], cell[0].x0), max(spans[n][1], cell[-1].x1))
            rows += 1
        elif orderly and known and known[0] > 0 and len(line.cells) <= 2:
            pass  # a cell of more lines
        elif _aligned(line, starts):
            rows += 1
        else:
            break
        end += 1
    return end if rows >= 2 and _in_columns(lines[at:end], spans) else 0


def _in_columns(lines: Sequence[Line], spans: Sequence[Span]) -> bool:
    """Whether most cells of each column but the first begin, end or have their middle at one place: no lines of prose
    with a wide gap by chance."""
    for x0, x1 in spans[1:]:
        cells = [_span(cell) for line in lines for cell in line.cells if cell[0].x0 < x1 and cell[-1].x1 > x0]
        places = [Counter(round(at(cell) / 3) for cell in cells) for at in (_start, _end, _middle)]
        if max(place.most_common(1)[0][1] for place in places) < 0.6 * len(cells):
            return False
    return True


def _start(span: Span) -> float:
    return span[0]


def _end(span: Span) -> float:
    return span[1]


def _middle(span: Span) -> float:
    return (span[0] + span[1]) / 2


def _span(cell: Sequence[Word]) -> Span:
    return cell[0].x0, max(word.x1 for word in cell)


def _overlapped(span: Span, columns: Sequence[Span]) -> list[int]:
    return [n for n, (x0, x1) in enumerate(columns) if span[0] < x1 and span[1] > x0]


def _aligned(line: Line, starts: Sequence[float]) -> bool:
    """Whether words begin where all columns do, though gaps between them are small: a header, or a long cell."""
    return all(any(abs(word.x0 - start) < 0.4 * line.size for word in line.words) for start in starts)


def _tabular(line: Line) -> bool:
    """Whether a line looks like a row: two cells, of which the first is no mark of an item or a heading."""
    cells = line.cells
    return len(cells) > (2 if MARK.match(spaced(cells[0])) else 1) and not line.pitch


def _table(lines: Sequence[Line], at: int, end: int, rules: Sequence[Rule]) -> Table | None:
    columns = _columns(lines[at:end], rules)
    if len(columns) < 2:
        return None
    bars = sorted(rule.y0 for rule in rules if rule.y1 - rule.y0 < THIN)
    strips: list[list[Line]] = [[]]
    for line in lines[at:end]:
        above = strips[-1][-1:]
        if above and any(above[0].y0 + 3 < bar < line.y1 - 2 and _covers(bar, line, rules) for bar in bars):
            strips.append([])
        strips[-1].append(line)
    grid = len(strips) > 2 and len(_bars(lines[at:end], rules)) > 2
    rows = [row for strip in strips for row in _rows(strip, columns, one=grid)]
    return Table(at, end, rows, columns)


def _covers(height: float, line: Line, rules: Sequence[Rule]) -> bool:
    """Whether a rule at this height is above the line, not beside it."""
    return any(rule.y0 == height and rule.x0 < line.x1 and rule.x1 > line.x0 for rule in rules)


def _columns(lines: Sequence[Line], rules: Sequence[Rule]) -> list[Span]:
    """Where the columns lie: between vertical rules, else where the cells of the fullest lines lie."""
    bars = _bars(lines, rules)
    if len(bars) > 2:
        return list(pairwise(bars))
    most = max(len(line.cells) for line in lines)
    spans: list[Span] = []
    for line in lines:
        if len(line.cells) == most:
            new = [_span(cell) for cell in line.cells]
            if not spans:
                spans = new
            else:
                spans = [(min(a, c), max(b, d)) for (a, b), (c, d) in zip(spans, new, strict=True)]
    if any(b > c for (_, b), (c, _) in pairwise(spans)):
        return []  # the cells do not lie below each other
    return spans


def _bars(lines: Sequence[Line], rules: Sequence[Rule]) -> list[int]:
    """Where vertical rules stand between the lines of a table."""
    top, bottom = lines[0].y0 + 2, lines[-1].y1 - 2
    found = sorted({
        round(rule.x0) for rule in rules if rule.x1 - rule.x0 < THIN and rule.y0 < bottom and rule.y1 > top
    })
    return [bar for n, bar in enumerate(found) if not n or bar - found[n - 1] > 4]


def _rows(lines: Sequence[Line], columns: Sequence[Span], *, one: bool) -> list[list[str]]:
    """The rows that lines between two rules make: `one`, where rules are drawn around each cell.

    Else a line with something in the first column begins a row, and one without it goes on with the cells above.
    """
    rows: list[list[list[str]]] = []
    for line in lines:
        cells: list[list[Word]] = [[] for _ in columns]
        for cell in _cells(line, columns):
            cells[_column(cell, columns)] += cell
        if not rows or (cells[0] and not one):
            rows.append([[] for _ in columns])
        for text, cell in zip(rows[-1], cells, strict=True):
            text += [spaced(cell)] if cell else []
    return [[join(text) for text in row] for row in rows]


def _cells(line: Line, columns: Sequence[Span]) -> list[list[Word]]:
    """The cells of a line, cut again where a column begins with one of its words."""
    starts = [start for start, _ in columns[1:]]
    cells: list[list[Word]] = []
    for cell in line.cells:
        cells.append([])
        for word in cell:
            if cells[-1] and any(abs(word.x0 - start) < 0.4 * line.size for start in starts):
                cells.append([])
            cells[-1].append(word)
    return cells


def _column(cell: Sequence[Word], columns: Sequence[Span]) -> int:
    """The column that a cell shares most with, or is nearest to."""
    x0, x1 = cell[0].x0, cell[-1].x1
    return max(range(len(columns)), key=lambda n: min(x1, columns[n][1]) - max(x0, columns[n][0]))
