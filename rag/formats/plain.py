"""Plain text: paragraphs between empty lines, pages between form feeds, headings by underline or number."""

from __future__ import annotations

import re
from pathlib import Path

from edged.rag.document import Document
from edged.rag.formats.builder import Builder
from edged.rag.formats.clean import decode, join

UNDERLINE = re.compile(r"([=\-~^*])\1{2,}\s*$")
NUMBERED = re.compile(r"(\d{1,2}(?:\.\d{1,2}){0,4})\.?\s+[^\W\d].{0,78}(?<![.:;,])$")
ITEM = re.compile(r"\s*(?:[-*+\u2022]|\d{1,2}[.)])\s+\S")


def read(data: bytes, name: str) -> Document:
    """Raises BadDocument if it is no UTF-8 text."""
    builder = Builder()
    pages = decode(data).split("\f")
    for number, page in enumerate(pages, 1):
        for paragraph in re.split(r"\n(?:[ \t]*\n)+", page.expandtabs()):
            lines = [line.rstrip() for line in paragraph.split("\n") if line.strip()]
            if lines:
                _add(builder, lines, number if len(pages) > 1 else None)
    return builder.document(Path(name).stem)


def _add(builder: Builder, lines: list[str], page: int | None) -> None:
    """Add a paragraph as what it looks like."""
    if len(lines) > 1 and UNDERLINE.match(lines[1]) and not lines[0].startswith(" "):
        builder.heading(1 if lines[1][0] == "=" else 2, lines[0].strip(), page)
        lines = lines[2:]
    elif len(lines) == 1 and (match := NUMBERED.match(lines[0])):
        builder.heading(1 + match[1].count("."), lines[0], page)
        return
    if not lines:
        return
    if ITEM.match(lines[0]):
        starts = [at for at, line in enumerate(lines) if ITEM.match(line)]
        for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
            builder.add("list", join(lines[start:end]), page)
    elif sum("  " in line.strip().replace(".  ", ". ") for line in lines) * 2 > len(lines) and len(lines) > 1:
        builder.add("code", "\n".join(lines), page)  # columns: the line ends say something
    else:
        builder.add("text", join(lines), page)
