"""PDF, read with PDFium (pypdfium2), which is loaded in the worker only: text by its place on the page.

What PDFium gives are characters with boxes, in the order they were drawn. Here they become words; `layout` puts them
into lines in the order they are read, and `flow` the lines into blocks. Pages that show something but hold no text, or
text without letters, are reported: they are scanned, or their fonts do not say what their shapes mean.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any
from unicodedata import normalize

from edged.errors import BadDocument
from edged.rag.document import Document
from edged.rag.formats import flow, layout
from edged.rag.formats.builder import Builder
from edged.rag.formats.clean import clean

MAX_PAGES = 5_000
MAX_CHARACTERS = 200_000  # of a page
MAX_OBJECTS = 50_000  # of a page, looked at for rules
MAX_OUTLINE = 20_000  # entries
OUTLINE_DEPTH = 6
BAD = 0.05  # part of a page's characters that may be unreadable
HYPHENS = {"\x02": "-", "\ufffe": "-"}  # what PDFium says for a hyphen at a line's end
# TeX draws an accent, then the letter below it
COMBINING = {
    "\u00a8": "\u0308", "\u00b4": "\u0301", "\u02c6": "\u0302", "\u02dc": "\u0303", "\u02da": "\u030a",
    "\u02c7": "\u030c", "\u00b8": "\u0327",
}  # fmt: skip
ACCENT = re.compile("([\u00a8\u00b4\u02c6\u02dc\u02da\u02c7\u00b8])([^\\W\\d_])")

Box = tuple[float, float, float, float]


def read(data: bytes, name: str) -> Document:
    """Raises BadDocument if it is no PDF, or damaged, encrypted, too large, or pypdfium2 is missing."""
    if b"%PDF-" not in data[:1024]:
        start = data[:16].decode("latin-1").split("\n")[0].strip()
        raise BadDocument(f"no PDF: begins with {start!r}" if data else "an empty file")
    try:
        import pypdfium2
    except ImportError as error:
        raise BadDocument("PDF needs pypdfium2", hint="pip install 'pypdfium2>=5'") from error
    try:
        document = pypdfium2.PdfDocument(data)
    except pypdfium2.PdfiumError as error:
        cause, remedy = _refusal(error)
        raise BadDocument(cause, hint=remedy) from error
    try:
        return _read(document, name)
    except pypdfium2.PdfiumError as error:
        raise BadDocument(f"damaged PDF: {error}", hint="print it to a new PDF") from error


def _refusal(error: Exception) -> tuple[str, str]:
    """What is wrong with a file that PDFium does not open, and the remedy. Codes: FPDF_ERR_* of fpdfview.h."""
    code = getattr(error, "err_code", None)
    if code == 4:
        return "encrypted with a password", "remove it, such as with qpdf --decrypt --password=..."
    if code == 5:
        return "encrypted in a way that PDFium does not know", "print it to a new PDF"
    return "damaged PDF", "print it to a new PDF"


def _read(document: Any, name: str) -> Document:
    count = len(document)
    if count > MAX_PAGES:
        raise BadDocument(f"{count} pages, more than {MAX_PAGES}", hint="split it")
    labels = [clean(document.get_page_label(at)) for at in range(count)]
    pages, rules, scanned = [], [], []
    for number in range(1, count + 1):
        page = document[number - 1]
        lines, drawn, readable = _page(page, number)
        page.close()
        pages.append(lines)
        rules.append(drawn)
        if not readable:
            scanned.append(number)
    size, levels = flow.type_sizes(pages)
    pages = layout.without_furniture(pages, labels, size)
    flowing = flow.Flow(Builder(), size, levels, list(_outline(document)))
    for number, (lines, drawn) in enumerate(zip(pages, rules, strict=True), 1):
        flowing.page(number, lines, drawn)
    title = clean(document.get_metadata_value("Title")).strip()
    if re.search(r"\.\w{2,4}$|^(?:untitled|microsoft word)", title, re.IGNORECASE):
        title = ""  # the name of the file it was made from
    found = flowing.builder.document(title, scanned)
    return found if found.title else flowing.builder.document(Path(name).stem, scanned)


def _page(page: Any, number: int) -> tuple[list[layout.Line], list[layout.Rule], bool]:
    """The lines of a page, the rules drawn on it, and whether all that it shows can be read."""
    words, bad = _words(page.get_textpage())
    total = sum(len(word.text) for turned in words.values() for word in turned)
    if bad > BAD * (bad + total):
        return [], [], False
    if not total:
        return [], [], next(page.get_objects(max_depth=1), None) is None
    lines: list[layout.Line] = []
    rules: list[layout.Rule] = []
    turns = sorted(words, key=lambda turn: -sum(len(word.text) for word in words[turn]))
    for turn in turns:  # most of the text first; notes in the margin may run another way
        turned = layout.merged(_rules(page, turn))
        lines += layout.lines(words[turn], number, turned)
        rules = rules or turned
    return lines, rules, True


def _words(text: Any) -> tuple[dict[int, list[layout.Word]], int]:
    """The words on a page by the quarter turns of their direction, and the count of characters that are none."""
    from pypdfium2 import raw

    handle, box, matrix = text.raw, raw.FS_RECTF(), raw.FS_MATRIX()
    found: dict[int, list[layout.Word]] = {}
    letters: list[str] = []
    boxes: list[Box] = []
    bad, turn, size, weight = 0, 0, 0.0, 0

    def close() -> None:
        if word := ACCENT.sub(lambda m: normalize("NFC", m[2] + COMBINING[m[1]]), clean("".join(letters))):
            found.setdefault(turn, []).append(_word(word, boxes, size, weight))
        letters.clear()
        boxes.clear()

    for at in range(min(text.count_chars(), MAX_CHARACTERS)):
        letter = chr(min(raw.FPDFText_GetUnicode(handle, at), sys.maxunicode))
        if letter.isspace():
            close()
            continue
        letter = HYPHENS.get(letter, letter)
        if not clean(letter) or letter == "\ufffd":
            bad += letter not in "\u00ad\u200b\u2060\ufeff"
            continue
        raw.FPDFText_GetLooseCharBox(handle, at, box)
        edges = (box.left, box.bottom, box.right, box.top)
        if boxes and _apart(boxes[-1], _turned(edges, turn), size):
            close()
        if not boxes:
            turn = round(raw.FPDFText_GetCharAngle(handle, at) / (math.pi / 2)) % 4
            raw.FPDFText_GetMatrix(handle, at, matrix)
            size = round(raw.FPDFText_GetFontSize(handle, at) * math.hypot(matrix.c, matrix.d), 1)
            weight = raw.FPDFText_GetFontWeight(handle, at)
        letters.append(letter)
        boxes.append(_turned(edges, turn))
    close()
    return found, bad


def _turned(edges: Box, turn: int) -> Box:
    """Left, bottom, right, top in a page's coordinates as x0, y0, x1, y1 with y down and the text upright.

    `turn`: quarter turns of the text, clockwise, as PDFium counts them.
    """
    left, bottom, right, top = edges
    return (
        (left, -top, right, -bottom),
        (-top, -right, -bottom, -left),
        (-right, bottom, -left, top),
        (bottom, left, top, right),
    )[turn]


def _apart(before: Box, box: Box, size: float) -> bool:
    """Whether a character begins another word, though there is no space: far to the right, further left, or off."""
    off = abs(before[1] + before[3] - box[1] - box[3]) / 2
    return box[0] - before[2] > 0.5 * size or box[0] < before[0] - 0.5 * size or off > 0.6 * size


def _word(text: str, boxes: list[Box], size: float, weight: int) -> layout.Word:
    # only these: TeX makes the underscore of a rule
    widths = [box[2] - box[0] for letter, box in zip(text, boxes, strict=False) if letter.isalnum()]
    pitch = -1.0
    if len(widths) > 1:
        pitch = sum(widths) / len(widths) if max(widths) <= 1.03 * min(widths) else 0.0
    return layout.Word(
        text, min(b[0] for b in boxes), min(b[1] for b in boxes), max(b[2] for b in boxes), max(b[3] for b in boxes),
        size, weight, pitch,
    )  # fmt: skip


def _rules(page: Any, turn: int) -> Iterator[layout.Rule]:
    """The thin lines drawn on a page (by some programs as images), and the edges of its boxes."""
    from pypdfium2 import raw

    kinds = [raw.FPDF_PAGEOBJ_PATH, raw.FPDF_PAGEOBJ_IMAGE]
    for drawn in islice(page.get_objects(filter=kinds, max_depth=1), MAX_OBJECTS):
        x0, y0, x1, y1 = _turned(drawn.get_bounds(), turn)
        if min(x1 - x0, y1 - y0) < layout.THIN:
            yield layout.Rule(x0, y0, x1, y1)
        elif drawn.type == raw.FPDF_PAGEOBJ_PATH:
            yield from (layout.Rule(x0, y, x1, y) for y in (y0, y1))
            yield from (layout.Rule(x, y0, x, y1) for x in (x0, x1))


def _outline(document: Any) -> Iterator[flow.Entry]:
    for mark in islice(document.get_toc(max_depth=OUTLINE_DEPTH), MAX_OUTLINE):
        goal = mark.get_dest()
        page = goal.get_index() if goal else None
        if page is not None:
            yield flow.Entry(mark.level + 1, clean(mark.get_title()), page + 1)
