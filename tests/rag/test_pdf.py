"""The reader of PDF, on files written here and on the demo manual."""

from __future__ import annotations

import importlib.util
import sys
import zlib
from itertools import pairwise
from pathlib import Path

import pytest

from edged.errors import BadDocument
from edged.rag import formats
from edged.rag.chunk import split
from edged.rag.document import Document
from edged.rag.evaluate import read as questions
from edged.rag.formats import markdown, pdf
from edged.rag.words import contains, words
from tests.rag import pdfs
from tests.rag.pdfs import lines, text

MANUAL = Path(__file__).resolve().parents[2] / "packaging" / "manual"
PROSE = [
    "This is a line of the text that fills a page and says",
    "nothing of note, so that it only shows which size is that",
    "of the text.",
]


def read(*pages: bytes, **parts: object) -> Document:
    document = pdf.read(pdfs.pdf(pages, **parts), "m.pdf")  # type: ignore[arg-type]
    for block in document.blocks:
        assert document.text[block.start : block.end] == block.text
    return document


def shape(document: Document) -> list[tuple[str, str]]:
    return [(block.kind, block.text) for block in document.blocks]


@pytest.fixture(scope="module")
def manual() -> Document:
    """The demo manual, made as PDF and read from it."""
    spec = importlib.util.spec_from_file_location("make_pdf", MANUAL / "make_pdf.py")
    assert spec and spec.loader
    maker = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(maker)
    source = markdown.read((MANUAL / "controller.md").read_bytes(), "controller.md")
    made = maker.make(source)
    assert made == maker.make(source)
    return formats.parse("controller.pdf", made)


def test_the_demo_manual_is_read_as_its_source(manual: Document) -> None:
    source = markdown.read((MANUAL / "controller.md").read_bytes(), "controller.md")
    assert manual.title == source.title and not manual.pages_without_text
    made, meant = ([(b.kind, b.text, b.headings) for b in document.blocks] for document in (manual, source))
    assert made == meant
    pages = [block.page or 0 for block in manual.blocks]
    assert pages == sorted(pages) and pages[-1] >= 20


def test_K07_rows_of_a_table_over_two_pages_keep_header_section_and_page(manual: Document) -> None:
    chunks = split(manual, lambda text: len(words(text)), 200)
    faults = [chunk for chunk in chunks if chunk.headings[-1].startswith("10.2")]
    assert len(faults) > 1 and all("Code | Class | Cause | Remedy" in chunk.text for chunk in faults)
    rows = [b for b in manual.blocks if b.kind == "table_row" and b.headings[-1].startswith("8.")]
    assert any(a.page != b.page and manual.text[a.end : b.start] == "\n" for a, b in pairwise(rows))


def test_every_question_about_the_demo_manual_names_the_page_of_its_answer(manual: Document) -> None:
    placed = [asked for asked in questions(MANUAL / "qa.jsonl") if asked.section]
    assert len(placed) >= 40
    for asked in placed:
        blocks = [b for b in manual.blocks if b.page == asked.page and asked.section in b.headings]
        assert asked.gold and any(contains(words(b.text), words(asked.gold)) for b in blocks), asked


def test_K01_ligatures_are_letters_and_unreadable_pages_are_reported() -> None:
    glyphs = b"/F9<</Type/Font/Subtype/Type1/BaseFont/Helvetica/Encoding<</Differences[1/fi/ffi]>>/ToUnicode 10 0 R>>"
    names = b"/CIDInit/ProcSet findresource begin begincmap 1 begincodespacerange<00><FF>endcodespacerange %s endcmap"
    page = b"BT /F9 10 Tf 50 700 Td (con\1g of an e\2cient pump) Tj ET"

    def read_with(map_: bytes) -> Document:
        source = pdfs.pdf([page], objects=[pdfs.stream(names % map_)])
        return pdf.read(source.replace(b"/F1<<", glyphs + b"/F1<<", 1), "m.pdf")

    letters = b"1 beginbfrange<20><7e><0020>endbfrange 2 beginbfchar<01><FB01><02><FB03>endbfchar"
    assert read_with(letters).text == "config of an efficient pump"
    private = read_with(b"2 beginbfrange<20><7e><E020><01><02><E001>endbfrange")
    assert private.pages_without_text == (1,) and not private.blocks


def test_K02_words_broken_at_a_line_end_are_whole() -> None:
    broken = ["Write it to the regis-", "ter of the STM32-", "F407 by an I2C-", "compatible con\xad", "troller"]
    found = read(lines(50, 700, *broken))
    assert found.text == "Write it to the register of the STM32-F407 by an I2C-compatible controller"


def test_K04_pages_without_text_are_reported_and_blank_ones_are_not() -> None:
    image = b"q 600 0 0 800 0 0 cm BI /W 1 /H 1 /BPC 8 /CS /G ID \x80 EI Q"
    found = read(lines(50, 700, *PROSE), image, b"", lines(50, 700, "More of it."))
    assert found.pages_without_text == (2,)
    assert [block.page for block in found.blocks] == [1, 4]
    assert read(image, image).pages_without_text == (1, 2)


def test_K08_a_cell_of_two_lines_is_one_word() -> None:
    table = b"".join(
        text(50, y, a) + text(200, y, b) + text(350, y, c)
        for y, a, b, c in [
            (700, "Signal", "Pin", "Meaning"),
            (685, "TIM1_", "PA8", "First channel of the"),
            (673, "", "", "timer"),
            (658, "GND", "VSS", "Zero volts"),
        ]
    )
    assert shape(read(lines(50, 780, *PROSE) + table))[1:] == [
        ("table_row", "Signal | Pin | Meaning"),
        ("table_row", "TIM1_ | PA8 | First channel of the timer"),
        ("table_row", "GND | VSS | Zero volts"),
    ]
    rules = b"".join(b"50 %d m 500 %d l S " % (y, y) for y in (712, 697, 670, 655))
    rules += b"".join(b"%d 655 m %d 712 l S " % (x, x) for x in (50, 195, 345, 500))
    wrapped = text(52, 675, "CH1")
    assert ("table_row", "TIM1_CH1 | PA8 | First channel of the timer") in shape(read(table + wrapped + rules))


def test_headings_are_larger_and_their_numbers_say_how_deep() -> None:
    page = text(50, 760, "Chapter 3", size=20) + text(50, 735, "Pumps", size=20) + lines(50, 700, *PROSE)
    page += text(50, 640, "3.1 Wiring", size=14) + lines(50, 620, *PROSE) + text(50, 560, "Fuses", size=14)
    found = read(page + lines(50, 540, *PROSE))
    assert [(b.text, b.headings) for b in found.blocks if b.kind == "heading"] == [
        ("Chapter 3 Pumps", ()),
        ("3.1 Wiring", ("Chapter 3 Pumps",)),
        ("Fuses", ("Chapter 3 Pumps",)),
    ]


def test_headings_of_the_outline_are_found_in_any_size() -> None:
    outline = [
        b"<</First 11 0 R/Last 12 0 R>>",
        b"<</Title(Pumps)/Next 12 0 R/First 13 0 R/Last 13 0 R/Dest[14 0 R/Fit]>>",
        b"<</Title(Faults)/Dest[16 0 R/Fit]>>",
        b"<</Title(Wiring)/Dest[14 0 R/Fit]>>",
    ]
    first = lines(50, 700, "1 Pumps") + lines(50, 680, *PROSE) + lines(50, 630, "1.1 Wiring") + lines(50, 610, *PROSE)
    second = lines(50, 700, "2 Faults") + lines(50, 680, *PROSE)
    found = read(first, second, catalog=b"/Outlines 10 0 R", objects=outline)
    assert [block.headings for block in found.blocks if block.kind == "text"] == [
        ("1 Pumps",), ("1 Pumps", "1.1 Wiring"), ("2 Faults",)
    ]  # fmt: skip


def test_headers_and_footers_go_although_numbers_and_chapters_in_them_change() -> None:
    pages = []
    for n in range(12):
        chapter = "CHAPTER 1. PUMPS" if n < 8 else "CHAPTER 2. VALVES" if n < 11 else "CHAPTER 3. ONE PAGE"
        top = text(50, 770, chapter) + text(500, 770, str(n + 5))
        letter = "abcdefghijkl"[n]
        body = [f"The {name} {letter} has {n} faults and" for name in ("pump", "valve", "tank", "line")]
        pages.append(top + lines(50, 700, *body, f"nothing else {letter}.") + text(280, 30, f"Page {n + 1} of 12"))
    found = read(*pages)
    assert [block.page for block in found.blocks] == list(range(1, 13))
    for n, block in enumerate(found.blocks):
        letter = "abcdefghijkl"[n]
        assert block.text.startswith(f"The pump {letter} has {n} faults and") and block.text.endswith(f"else {letter}.")


def test_rotated_pages_and_turned_text_are_read() -> None:
    page = lines(50, 700, *PROSE)
    whole = read(page).text
    assert read(page, attributes=b"/Rotate 90").text == whole
    for matrix in (b"0 1 -1 0 800 0", b"0 -1 1 0 -100 800", b"-1 0 0 -1 600 1000"):
        assert read(b"q " + matrix + b" cm " + page + b"Q").text == whole


def test_two_columns_are_read_one_after_the_other() -> None:
    left = [f"Left line {n} goes on until it is at its very end" for n in range(20)]
    right = [f"right line {n} goes on until it is at its very end" for n in range(20)]
    page = text(50, 760, "A heading that goes across both of the columns", size=16)
    page += lines(50, 700, *left) + lines(320, 705, *right)  # not at the same heights
    found = read(page)
    assert [block.kind for block in found.blocks] == ["heading", "text", "text"]
    assert found.blocks[1].text == " ".join(left) and found.blocks[2].text == " ".join(right)


def test_program_text_keeps_its_lines() -> None:
    program = ["int main(void) {", "  return CR2;", "}"]
    found = read(lines(50, 700, *PROSE) + lines(80, 600, *program, font=3))
    assert shape(found)[1] == ("code", "\n".join(program))


def test_contents_with_leaders_are_left_out() -> None:
    contents = [f"{n} Chapter of that number . . . . . . . . . . . {n}" for n in range(1, 9)]
    found = read(text(50, 760, "Contents", size=16) + lines(50, 700, *contents), lines(50, 700, *PROSE))
    assert [block.kind for block in found.blocks] == ["heading", "text"]


def bomb() -> bytes:
    """One page of a gigabyte of blanks, in one megabyte."""
    packer = zlib.compressobj(9)
    packed = b"".join(packer.compress(bytes(1 << 20)) for _ in range(1 << 10)) + packer.flush()
    content = b"<</Filter/FlateDecode/Length %d>>stream\n%s\nendstream" % (len(packed), packed)
    return pdfs.pdf([b"x"]).replace(pdfs.stream(b"x"), content)


LOOP = pdfs.stream(b"/X Do", b"/Type/XObject/Subtype/Form/BBox[0 0 9 9]/Resources<</XObject<</X 10 0 R>>>>")
DEEP = [b"<</First 11 0 R>>", *(b"<</Title(t)/First %d 0 R>>" % (12 + n) for n in range(5000))]
ROUND = [b"<</First 11 0 R>>", b"<</Title(t)/First 11 0 R/Next 11 0 R>>"]
TEXT = lines(50, 700, *PROSE)


@pytest.mark.parametrize(
    "data",
    [
        pdfs.pdf([TEXT + b"/X Do"], resources=b"/XObject<</X 10 0 R>>", objects=[LOOP]),
        pdfs.pdf([TEXT + b"BI /W 9999 /H 9999 /BPC 8 /CS /G ID " + bytes(99)]),
        pdfs.pdf([TEXT], catalog=b"/Outlines 10 0 R", objects=DEEP),
        pdfs.pdf([TEXT], catalog=b"/Outlines 10 0 R", objects=ROUND),
    ],
    ids=["form in itself", "image without end", "deep outline", "outline in itself"],
)
def test_K05_what_has_no_end_is_read_within_limits(data: bytes) -> None:
    assert formats.parse("a.pdf", data, seconds=10).text.startswith("This is a line of the text")


@pytest.mark.parametrize(
    ("data", "cause"),
    [
        (b"", "an empty file"),
        (b"<!doctype html><p>not found", "no PDF: begins with '<!doctype html>"),
        (pdfs.pdf([TEXT])[:300], "damaged PDF"),
        (b"%PDF-1.7\n1 0 obj<</Type/Catalog/Pages 2 0 R>>endobj 2 0 obj<</Type/Pages/Kids[2 0 R]/Count 9>>endobj "
         b"trailer<</Root 1 0 R>>", "damaged PDF"),
        (bomb(), "its reader died|too much memory"),
    ],
    ids=["empty", "HTML", "cut off", "pages in themselves", "deflate bomb"],
)  # fmt: skip
def test_K05_hostile_files_are_refused_within_limits(data: bytes, cause: str) -> None:
    with pytest.raises(BadDocument, match=cause):
        formats.parse("a.pdf", data, memory=500 << 20, seconds=10)


def test_K05_an_encrypted_file_says_so() -> None:
    import fpdf

    for password, refused in [("secret", True), ("", False)]:
        made = fpdf.FPDF()
        made.set_encryption("owner", password)
        made.add_page()
        made.set_font("Helvetica")
        made.cell(text="Readable")
        data = bytes(made.output())
        if refused:
            with pytest.raises(BadDocument, match="encrypted with a password"):
                formats.parse("a.pdf", data)
        else:
            assert formats.parse("a.pdf", data).text == "Readable"


def test_without_pypdfium2_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pypdfium2", None)
    with pytest.raises(BadDocument, match="PDF needs pypdfium2") as caught:
        pdf.read(pdfs.pdf([TEXT]), "m.pdf")
    assert caught.value.hint == "pip install 'pypdfium2>=5'"
