"""Words at places of a page, put into lines in the order they are read. Knows nothing of PDF.

Coordinates are points, x to the right and y down, turned so that the text stands upright. Nothing here raises.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

BIG = 1.12  # times the size of the text: a heading
THIN = 2.0  # points: what is thinner is a rule, no box
EDGE = 3  # lines at the top and at the bottom of a page that may be headers and footers
WORD_GAP = 0.1  # of the font's size: words further apart have a space between them
CELL_GAP = 1.1  # of the font's size: what is further apart stands in two cells, or two columns
# a number that may be that of a page, at the beginning or the end of a line: '20', 'Page 3 of 24', '- iv -'
NUMBER = re.compile(
    r"^\W*(\d{1,4}|[ivxlc]{1,7})(?=\W*(?:\s|$))|(?<!\S)(\d{1,4}|[ivxlc]{1,7})\W*(?:\b[^\W\d]{1,4}\s+\d+\W*)?$", re.I
)

Place = tuple[str, int, int]  # words, and where they are: x in steps of 16 points, y in steps of 2


@dataclass(frozen=True)
class Word:
    """`pitch`: the width that all its letters and digits have, 0 if they differ, -1 if there are fewer than two."""

    text: str
    x0: float
    y0: float
    x1: float
    y1: float
    size: float
    weight: int
    pitch: float


@dataclass(frozen=True)
class Rule:
    """A line drawn on the page: horizontal or vertical, thin."""

    x0: float
    y0: float
    x1: float
    y1: float


def merged(rules: Iterable[Rule]) -> list[Rule]:
    """Rules drawn in pieces, such as cell by cell, as whole ones."""
    done: list[Rule] = []
    flat: dict[int, Rule] = {}  # the last one at each height
    for rule in sorted(rules, key=lambda rule: rule.x0):
        height = round(rule.y0)
        if rule.y1 - rule.y0 >= THIN:
            done.append(rule)
        elif height in flat and rule.x0 <= flat[height].x1 + 2:
            before = flat[height]
            flat[height] = Rule(before.x0, before.y0, max(before.x1, rule.x1), before.y1)
        else:
            done += [flat[height]] if height in flat else []
            flat[height] = rule
    return [*done, *flat.values()]


class Line:
    """Words side by side, and the cells that gaps and vertical rules make of them."""

    def __init__(self, words: Iterable[Word], page: int, rules: Sequence[Rule] = ()) -> None:
        self.words = sorted(words, key=lambda word: word.x0)
        self.page = page
        self.x0, self.x1 = self.words[0].x0, max(word.x1 for word in self.words)
        self.y0, self.y1 = min(word.y0 for word in self.words), max(word.y1 for word in self.words)
        sizes: Counter[tuple[float, int]] = Counter()
        for word in self.words:
            sizes[word.size, word.weight] += len(word.text)
        self.size, self.weight = sizes.most_common(1)[0][0]
        self.text = spaced(self.words)
        self.pitch = _pitch(self.words)
        self.cells = self._cells(rules)
        self.column: tuple[float, float] = (self.x0, self.x1)  # of the text around it

    def _cells(self, rules: Sequence[Rule]) -> list[list[Word]]:
        middle = (self.y0 + self.y1) / 2
        bars = [rule.x0 for rule in rules if rule.x1 - rule.x0 < THIN and rule.y0 <= middle <= rule.y1]
        cells, end = [[self.words[0]]], self.words[0].x1
        for word in self.words[1:]:
            barred = any(end - 2 <= bar <= word.x0 + 2 for bar in bars)
            if barred or word.x0 - end > CELL_GAP * self.size:
                cells.append([])
            cells[-1].append(word)
            end = max(end, word.x1)
        return cells


def spaced(words: Iterable[Word]) -> str:
    """The text of words that stand side by side."""
    text, end = "", 0.0
    for word in words:
        text += " " * bool(text and word.x0 - end > WORD_GAP * word.size) + word.text
        end = word.x1
    return text


def _pitch(words: Sequence[Word]) -> float:
    """The width of a character if all have the same, as in program text; else 0."""
    pitches = [word.pitch for word in words if word.pitch >= 0]
    letters = {letter for word in words for letter in word.text}
    if not pitches or min(pitches) == 0 or max(pitches) > 1.02 * min(pitches) or len(letters) < 4:
        return 0.0
    return pitches[0] if not "".join(letters).isdigit() else 0.0


def lines(words: Sequence[Word], page: int, rules: Sequence[Rule]) -> list[Line]:
    """The lines of a page in reading order: across, or down one column and then the other."""
    done: list[Line] = []
    for region in _regions(words, rules):
        found = [Line(row, page, rules) for row in _rows(region)]
        left, right = min(line.x0 for line in found), max(line.x1 for line in found)
        for line in found:
            line.column = (left, right)
        for line, other in [*pairwise(found), *((b, a) for a, b in pairwise(found))]:
            # of few letters, but beside program text: it has that pitch too
            if not line.pitch and all(word.pitch < 0 or _near(word.pitch, other.pitch) for word in line.words):
                line.pitch = other.pitch
        done += found
    return done


def _near(a: float, b: float) -> bool:
    return abs(a - b) <= 0.02 * b


def _rows(words: Iterable[Word]) -> list[list[Word]]:
    """Words grouped by height, top row first; a raised or lowered one belongs to the row it overlaps by half."""
    rows: list[list[Word]] = []
    tall: list[Word] = []  # of each row, its tallest word
    for word in sorted(words, key=lambda word: (word.y0, word.x0)):
        for at in range(len(rows) - 1, max(-1, len(rows) - 4), -1):
            other = tall[at]
            overlap = min(word.y1, other.y1) - max(word.y0, other.y0)
            if 2 * overlap >= min(word.y1 - word.y0, other.y1 - other.y0):
                rows[at].append(word)
                tall[at] = max(other, word, key=lambda each: each.y1 - each.y0)
                break
        else:
            rows.append([word])
            tall.append(word)
    return rows


def _regions(words: Sequence[Word], rules: Sequence[Rule]) -> list[list[Word]]:
    """The words of a page, cut where two columns begin and end."""
    rows = [Line(row, 0).cells for row in _rows(words)]
    gutter = _gutter([cell for row in rows for cell in row], rules)
    if gutter is None:
        return [list(words)]
    regions: list[list[Word]] = [[], []]
    for row in rows:
        if any(cell[0].x0 < gutter < cell[-1].x1 for cell in row):  # it goes across, and ends both columns
            regions += [[word for cell in row for word in cell], [], []]
        else:
            for cell in row:
                regions[-2 if cell[-1].x1 <= gutter else -1] += cell
    return [region for region in regions if region]


def _gutter(runs: Sequence[Sequence[Word]], rules: Sequence[Rule]) -> float | None:
    """Where the right one of two columns of prose begins, None if there are none.

    Both have at least six lines that fill most of them, and few lines go across. A table is drawn with rules across.
    """
    if len(runs) < 12:
        return None
    left = min(run[0].x0 for run in runs)
    right = max(run[-1].x1 for run in runs)
    width = right - left
    starts = Counter(round(run[0].x0) for run in runs if 0.35 < (run[0].x0 - left) / width < 0.65)
    if not starts:
        return None
    x = starts.most_common(1)[0][0] - 1.5
    first = [run for run in runs if run[-1].x1 <= x and run[-1].x1 - run[0].x0 > 0.6 * (x - left)]
    second = [run for run in runs if run[0].x0 >= x and run[-1].x1 - run[0].x0 > 0.6 * (right - x)]
    across = sum(run[0].x0 < x < run[-1].x1 for run in runs)
    ruled = sum(rule.x0 < x - 10 and rule.x1 > x + 10 for rule in rules)
    full = min(len(first), len(second))
    return x if full >= 6 and across <= full / 2 and ruled < 3 else None


def without_furniture(pages: Sequence[list[Line]], labels: Sequence[str], size: float) -> list[list[Line]]:
    """The pages without the headers and footers that several of them have.

    A header is told by its words and place; the outermost line also by the number of the page, which grows from page
    to page ('CHAPTER 2. GPASM    20'), and digits in it may differ in any way. None is larger than `size`, that of the
    text, as headings are.
    """
    edges = [_edges(page) for page in pages]
    several = max(3, round(0.3 * len(pages)))
    seen: Counter[Place] = Counter()
    shifts: Counter[int] = Counter()  # page number printed - number of the page
    for number, edge in enumerate(edges, 1):
        for side in edge:
            seen.update({place for n, line in enumerate(side) for place in _places(line, outermost=n == 0)})
        shifts.update({value - number for side in edge for line in side[:1] for value in _numbers(line.text)})
    known = {shift for shift, count in shifts.items() if count >= several}

    def repeated(line: Line, outermost: bool) -> bool:
        for text, x, y in _places(line, outermost=outermost):
            often = sum(seen[text, x, y + shift] for shift in (-1, 0, 1))
            if often >= (3 if re.search(r"[^\W\d_]{3}", text) else several):
                return True
        own = line.text == labels[line.page - 1]
        return own or (outermost and not known.isdisjoint(value - line.page for value in _numbers(line.text)))

    outer = [(line, n) for edge in edges for n, side in enumerate(edge) for line in side[:1] if line.size < BIG * size]
    heights = Counter((n, round(line.y0 / 4)) for line, n in outer)
    headers = Counter((n, round(line.y0 / 4)) for line, n in outer if repeated(line, True))
    usual = {place for place, count in headers.items() if count >= 0.7 * heights[place]}

    def furniture(line: Line, n: int, outermost: bool) -> bool:
        # where nearly all pages have a header, the others have one too, that of a short chapter
        return line.size < BIG * size and (repeated(line, outermost) or (n, round(line.y0 / 4)) in usual)

    done = []
    for page, edge in zip(pages, edges, strict=True):
        gone: set[int] = set()
        for n, side in enumerate(edge):  # from the edge inwards: below a line of the text there is no header
            for at, line in enumerate(side):
                if not furniture(line, n, at == 0):
                    break
                gone.add(id(line))
        done.append([line for line in page if id(line) not in gone])
    return done


def _places(line: Line, *, outermost: bool) -> list[Place]:
    """What is compared from page to page: the words of each cell that is a good part of the line, and its place."""
    total = sum(len(word.text) for word in line.words)
    places = []
    for cell in line.cells:
        text = spaced(cell).casefold()
        if len(text) >= 0.3 * total and (outermost or re.search(r"[^\W\d_]{3}", text)):
            text = re.sub(r"\d+", "#", text) if outermost else text
            places.append((text, round(cell[0].x0 / 16), round(line.y0 / 2)))
    return places


def _edges(page: Sequence[Line]) -> tuple[list[Line], list[Line]]:
    """The lines at the top and at the bottom of a page, each from the edge inwards."""
    down = sorted(page, key=lambda line: line.y0)
    return down[:EDGE], down[EDGE:][-EDGE:][::-1]


def _numbers(text: str) -> list[int]:
    """The numbers that may be that of the page, roman ones too."""
    found = (first or last for first, last in NUMBER.findall(text))
    return [int(number) if number.isdigit() else roman(number) for number in found]


def roman(text: str) -> int:
    """The value of a roman number."""
    values = [{"i": 1, "v": 5, "x": 10, "l": 50, "c": 100}[letter] for letter in text.lower()]
    return sum(-a if a < b else a for a, b in zip(values, [*values[1:], 0], strict=True))
