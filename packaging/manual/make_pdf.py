"""Makes the demo manual's PDF from its Markdown: python packaging/manual/make_pdf.py OUT.pdf

The same bytes every time. Needs fpdf2.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import datetime, timezone
from itertools import groupby
from pathlib import Path

from fpdf import FPDF, FontFace
from fpdf.enums import XPos, YPos

from edged.rag.document import Block, Document
from edged.rag.formats import markdown

SOURCE = Path(__file__).with_name("controller.md")
SIZES = (20, 16, 12)  # of headings, in points; text has 10
DATE = datetime(2026, 1, 1, tzinfo=timezone.utc)


class Manual(FPDF):
    """Pages with a header and a numbered footer, as manuals have them."""

    def header(self) -> None:
        self.set_font("Helvetica", size=8)
        self.cell(0, 6, "QV-310 operating manual", border="B")
        self.ln(12)

    def footer(self) -> None:
        self.set_y(-15)
        self.set_font("Helvetica", size=8)
        self.cell(90, 6, "QV-310-OM-EN, revision 3")
        self.cell(0, 6, f"Page {self.page_no()} of {{nb}}", align="R")


def make(document: Document) -> bytes:
    """The PDF of a document; a chapter, which is a heading of the second level, begins a page."""
    pdf = Manual()
    pdf.set_creation_date(DATE)
    pdf.set_title(document.title)
    pdf.set_margin(20)
    pdf.add_page()
    chapters = 0
    for _, group in groupby(document.blocks, key=lambda block: block.start if block.kind != "table_row" else -1):
        blocks = list(group)
        if blocks[0].kind == "table_row":
            _table(pdf, blocks)
            continue
        block = blocks[0]
        level = len(block.headings)
        if block.kind == "heading" and level == 1:
            chapters += 1
            if chapters > 1:
                pdf.add_page()
        _block(pdf, block)
    return bytes(pdf.output())


def _block(pdf: FPDF, block: Block) -> None:
    if block.kind == "heading":
        level = len(block.headings)
        if pdf.will_page_break(30):
            pdf.add_page()
        pdf.ln(4)
        pdf.start_section(block.text, level)
        pdf.set_font("Helvetica", "B", SIZES[level])
    else:
        pdf.set_font("Courier" if block.kind == "code" else "Helvetica", size=10)
    pdf.multi_cell(0, 1.25 * pdf.font_size, block.text, align="L", new_x=XPos.LMARGIN, new_y=YPos.NEXT)
    pdf.ln(1 if block.kind == "list" else 3)


def _table(pdf: FPDF, blocks: Sequence[Block]) -> None:
    rows = [[cell.strip() for cell in block.text.split(" |")] for block in blocks]
    pdf.set_font("Helvetica", size=9)
    longest = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    widths = tuple(min(max(length, 12), 45) for length in longest)
    with pdf.table(rows, col_widths=widths, text_align="LEFT", line_height=5, padding=1,
                   headings_style=FontFace(emphasis="BOLD")):  # fmt: skip
        pass
    pdf.ln(4)


if __name__ == "__main__":
    document = markdown.read(SOURCE.read_bytes(), SOURCE.name)
    Path(sys.argv[1]).write_bytes(make(document))
