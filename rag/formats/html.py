"""HTML: headings, paragraphs, lists, preformatted text and tables, by the parser of the standard library.

Tags may be nested to any depth and need not be closed: the parser keeps no tree, this reader only counts.
"""

from __future__ import annotations

import codecs
import re
from html.parser import HTMLParser
from pathlib import Path

from edged.rag.document import Document, Kind
from edged.rag.formats.builder import Builder
from edged.rag.formats.clean import clean, decode, join

HIDDEN = {"script", "style", "template", "noscript", "nav", "svg"}
HEADINGS = {f"h{level}": level for level in range(1, 7)}
INLINE = {
    "a", "abbr", "b", "bdi", "bdo", "big", "cite", "code", "data", "dfn", "em", "font", "i", "img", "input", "kbd",
    "label", "mark", "q", "s", "samp", "small", "span", "strike", "strong", "sub", "sup", "time", "tt", "u", "var",
    "wbr",
}  # fmt: skip
CHARSET = re.compile(rb"<meta[^>]{0,200}charset\s*=\s*[\"']?\s*([\w.:-]+)", re.IGNORECASE)


def read(data: bytes, name: str) -> Document:
    """Raises BadDocument if it is no text, or not in the encoding it says (without one: UTF-8)."""
    declared = CHARSET.search(data[:4096])
    encoding = declared[1].decode("ascii", "replace") if declared else "utf-8"
    try:
        codecs.lookup(encoding)
    except LookupError:
        encoding = "utf-8"
    reader = _Reader()
    reader.feed(decode(data, encoding))
    reader.close()
    reader.flush()
    reader.end_table()
    document = reader.builder.document(join([clean(reader.title)]))
    return document if document.title else reader.builder.document(Path(name).stem)


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.builder = Builder()
        self.title = ""
        self.text: list[str] = []
        self.kind: Kind = "text"
        self.hidden = 0  # depth of tags whose text is not shown
        self.in_title = False
        self.level = 0  # of the heading that is open
        self.pre = 0
        self.tables = 0
        self.rows: list[list[str]] = []  # of the outermost table; an inner one is text of a cell

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "img":
            self.text.append(dict(attrs).get("alt") or "")
        if tag in INLINE:
            return
        if tag in HIDDEN:
            self.hidden += 1
        elif tag == "title":
            self.in_title = not self.title
        elif self.tables and tag != "table":
            self._in_table(tag)
        elif tag == "br":
            self.text.append("\n")
        else:
            self.flush()
            self.level = HEADINGS.get(tag, 0)
            self.pre += tag == "pre"
            self.tables += tag == "table"
            if tag in {"li", "dt", "dd"}:
                self.kind = "list"

    def _in_table(self, tag: str) -> None:
        if self.tables == 1 and tag in {"tr", "td", "th", "caption"}:
            self.end_cell()
            if tag == "tr" or not self.rows:
                self.rows.append([])
            if tag != "tr":
                self.rows[-1].append("")
        else:
            self.text.append("\n")

    def handle_endtag(self, tag: str) -> None:
        if tag in HIDDEN:
            self.hidden = max(0, self.hidden - 1)
        elif tag == "title":
            self.in_title = False
        elif tag == "table" and self.tables:
            self.end_cell() if self.tables == 1 else self.text.append(" ")
            self.tables -= 1
            if not self.tables:
                self.end_table()
        elif self.tables and tag not in INLINE:
            self.text.append("\n")
        elif tag not in INLINE:
            self.flush()
            self.pre = max(0, self.pre - (tag == "pre"))

    def handle_data(self, data: str) -> None:
        if self.in_title:
            self.title += data
        elif not self.hidden:
            # outside <pre> a line end is a space; those of <br> are added as such
            self.text.append(data if self.pre else re.sub(r"\s+", " ", data))

    def flush(self) -> None:
        """End the block that is open."""
        text, self.text = clean("".join(self.text)), []  # cleaned again: character references come resolved
        if self.level:
            self.builder.heading(self.level, join(text.split("\n")))
        elif self.pre:
            self.builder.add("code", text.strip("\n"))
        else:
            self.builder.add(self.kind, join(text.split("\n")))
        if text.strip():
            self.level, self.kind = 0, "text"

    def end_cell(self) -> None:
        """Give the text so far to the cell that is open."""
        text, self.text = join(clean("".join(self.text)).split("\n")), []
        if text and self.rows and self.rows[-1]:
            self.rows[-1][-1] = text
        elif text:
            self.rows.append([text])

    def end_table(self) -> None:
        """Add the table. One of a single column or row serves the layout: its cells are text."""
        rows, self.rows = [row for row in self.rows if any(row)], []
        if len(rows) > 1 and max(map(len, rows)) > 1:
            self.builder.table(rows)
        else:
            for row in rows:
                self.builder.add("text", " ".join(filter(None, row)))
