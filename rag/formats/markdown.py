"""Markdown: headings, paragraphs, lists, code and GitHub's tables, as far as their text is concerned.

The block structure of CommonMark 0.31, without nesting: what stands in a quote or in a list is text of it.
"""

from __future__ import annotations

import html
import re
from pathlib import Path

from edged.rag.document import Document
from edged.rag.formats.builder import Builder
from edged.rag.formats.clean import decode, join

FENCE = re.compile(r" *(`{3,}|~{3,})")
HEADING = re.compile(r" {0,3}(#{1,6})(?:\s+(.*?))?(?:\s+#+)?\s*$")
UNDERLINE = re.compile(r" {0,3}(=+|-+)\s*$")
RULE = re.compile(r" {0,3}([-*_])(?:\s*\1){2,}\s*$")
ITEM = re.compile(r"\s*(?:[-*+]|\d{1,9}[.)])\s+\S")
DELIMITER = re.compile(r"\s*\|?\s*:?-+:?\s*(?:\|\s*:?-+:?\s*)*\|?\s*$")
CODE_SPAN = re.compile(r"(?<!`)(`+)(?!`)(.+?)(?<!`)\1(?!`)")


def read(data: bytes, name: str) -> Document:
    """Raises BadDocument if it is no UTF-8 text."""
    text = re.sub(r"\A---\n.*?\n---\n", "", decode(data), flags=re.DOTALL)  # front matter
    lines = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL).expandtabs(4).split("\n")
    builder, at = Builder(), 0
    while at < len(lines):
        at = _block(builder, lines, at)
    document = builder.document("")
    return document if document.title else builder.document(Path(name).stem)


def _block(builder: Builder, lines: list[str], at: int) -> int:
    """Add the block that begins in line `at`; returns the line behind it."""
    line = lines[at]
    if not line.strip() or RULE.match(line):
        return at + 1
    if fence := FENCE.match(line):
        end = at + 1
        while end < len(lines) and not lines[end].strip().startswith(fence[1]):
            end += 1
        builder.add("code", "\n".join(lines[at + 1 : end]))
        return end + 1
    if heading := HEADING.match(line):
        builder.heading(len(heading[1]), inline(heading[2] or ""))
        return at + 1
    if _is_table(lines, at):
        end = at + 2
        while end < len(lines) and "|" in lines[end]:
            end += 1
        builder.table(cells(row) for row in (line, *lines[at + 2 : end]))
        return end
    end = at + 1
    if line.startswith("    ") and not ITEM.match(line):
        while end < len(lines) and lines[end].startswith("    "):
            end += 1
        builder.add("code", "\n".join(each[4:] for each in lines[at:end]))
        return end
    while end < len(lines) and not _ends_paragraph(lines, end):
        end += 1
    paragraph = inline(join(re.sub(r"^ {0,3}(?:> ?)+", "", each) for each in lines[at:end]))
    if ITEM.match(line):
        builder.add("list", paragraph)
    elif end < len(lines) and (underline := UNDERLINE.match(lines[end])):
        builder.heading(1 if underline[1][0] == "=" else 2, paragraph)
        return end + 1
    else:
        builder.add("text", paragraph)
    return end


def _is_table(lines: list[str], at: int) -> bool:
    return "|" in lines[at] and at + 1 < len(lines) and "|" in lines[at + 1] and bool(DELIMITER.match(lines[at + 1]))


def _ends_paragraph(lines: list[str], at: int) -> bool:
    line = lines[at]
    starts = any(pattern.match(line) for pattern in (FENCE, HEADING, UNDERLINE, RULE, ITEM))
    return not line.strip() or starts or _is_table(lines, at)


def cells(row: str) -> list[str]:
    """The cells of a row; a bar is part of a cell behind a backslash."""
    row = row.strip().removeprefix("|")
    row = row[:-1] if row.endswith("|") and not row.endswith("\\|") else row
    return [inline(cell.strip().replace("\\|", "|")) for cell in re.split(r"(?<!\\)\|", row)]


def inline(text: str) -> str:
    """A line as it is shown: without marks, a link as its text, what is in a code span as it is."""
    done, at = [], 0
    for span in CODE_SPAN.finditer(text):
        done += [_shown(text[at : span.start()]), span[2].strip()]
        at = span.end()
    return "".join([*done, _shown(text[at:])]).strip()


def _shown(text: str) -> str:
    text = re.sub(r"!?\[([^\[\]]*)\](?:\([^()\s]*(?:\s+\"[^\"]*\")?\)|\[[^\[\]]*\])", r"\1", text)
    text = re.sub(r"<((?:https?|mailto):[^<>\s]+)>", r"\1", text)
    text = re.sub(r"</?[a-zA-Z][^<>]*>", "", text)
    text = re.sub(r"(?<!\\)(\*{1,3})(?=\S)([^*]*[^*\s\\])\1", r"\2", text)
    text = re.sub(r"(?<![\w\\])(_{1,2})(?=\S)([^_]*[^_\s\\])\1(?!\w)", r"\2", text)
    return html.unescape(re.sub(r"\\([!-/:-@\[-`{-~])", r"\1", text))
