"""Readers of text formats, and the child that they run in."""

from __future__ import annotations

import pytest

from edged.errors import BadDocument
from edged.rag import formats
from edged.rag.document import Document
from edged.rag.formats import builder, html, markdown, plain
from edged.rag.formats.builder import MAX_HEADING
from edged.rag.formats.clean import clean, join


def shape(document: Document) -> list[tuple[str, str, tuple[str, ...]]]:
    for block in document.blocks:
        assert document.text[block.start : block.end] == block.text
    return [(block.kind, block.text, block.headings) for block in document.blocks]


def test_K01_ligatures_are_letters_and_marks_without_meaning_go() -> None:
    source = "con\ufb01g o\ufb00set e\ufb03cient\0\ue000 3\u2011phase \u22125"
    assert clean(source) == "config offset efficient 3-phase -5"


@pytest.mark.parametrize(
    ("lines", "whole"),
    [
        ("the regis-\nter", "the register"),
        ("STM32-\nF407", "STM32-F407"),
        ("an I2C-\ncompatible bus", "an I2C-compatible bus"),
        ("TIM1_\nCH1", "TIM1_CH1"),
        ("\u6301\u80a1\u6bd4\n\u4f8b", "\u6301\u80a1\u6bd4\u4f8b"),
        ("from 1 -\n2", "from 1 - 2"),
        ("two\nwords", "two words"),
    ],
)
def test_K02_K08_lines_join_as_the_words_were(lines: str, whole: str) -> None:
    assert join(lines.split("\n")) == whole


def test_K02_a_soft_hyphen_goes_with_its_line_end() -> None:
    assert clean("regis\u00ad\nter a\u00adb") == "register ab"


def test_markdown() -> None:
    source = """---\nx: y\n---\n# The *pump*\n\nUse `HAL_UART_Init`, see [wiring](#w)\nand TIM1_CH1 \\* now.\n
- first\n  goes on\n- **second**\n\nCodes\n-----\n| Code | Cause |\n|:--|--:|\n| `E-0x1F` | a \\| b |\n
```c\nx = "# no heading";\n\ny;\n```\n> quoted\n\n***\n\n1. step <!-- hidden -->\n"""
    document = markdown.read(source.encode(), "m.md")
    assert document.title == "The pump"
    top, codes = ("The pump",), ("The pump", "Codes")
    assert shape(document) == [
        ("heading", "The pump", ()),
        ("text", "Use HAL_UART_Init, see wiring and TIM1_CH1 * now.", top),
        ("list", "- first goes on", top),
        ("list", "- second", top),
        ("heading", "Codes", top),
        ("table_row", "Code | Cause", codes),
        ("table_row", "E-0x1F | a | b", codes),
        ("code", 'x = "# no heading";\n\ny;', codes),
        ("text", "quoted", codes),
        ("list", "1. step", codes),
    ]


def test_html() -> None:
    source = """<!doctype html><title>Pump&shy; book</title><style>p{}</style><nav>menu</nav><h1>Pump</h1><p>An
<b>e&#xFB03;cient</b> one<br>here<ul><li>red<li>blue</ul><h2>Codes</h2><table><tr><th>Code<th>Cause
<tr><td>E-0x1F<td><table><tr><td>in</td><td>side</td></tr></table></table><pre>a\n  b</pre>after"""
    document = html.read(source.encode(), "m.html")
    assert document.title == "Pump book"
    assert shape(document) == [
        ("heading", "Pump", ()),
        ("text", "An efficient one here", ("Pump",)),
        ("list", "red", ("Pump",)),
        ("list", "blue", ("Pump",)),
        ("heading", "Codes", ("Pump",)),
        ("table_row", "Code | Cause", ("Pump", "Codes")),
        ("table_row", "E-0x1F | in side", ("Pump", "Codes")),
        ("code", "a\n  b", ("Pump", "Codes")),
        ("text", "after", ("Pump", "Codes")),
    ]


def test_html_says_its_encoding() -> None:
    assert html.read(b"<meta charset=latin1><p>gr\xfcn", "m.html").text == "gr\u00fcn"
    with pytest.raises(BadDocument, match=r"not utf-8: byte 5 is 0xfc"):
        html.read(b"<p>gr\xfcn", "m.html")


def test_plain_text() -> None:
    source = "Pump\n====\n\nOne para-\ngraph.\n\n1.2 Codes of faults\n\n* a\n  b\n* c\n\n"
    source += "R1   0x00   x\nR2   0x04   y\n\fNext."
    document = plain.read(source.encode(), "m.txt")
    assert document.title == "m"
    assert shape(document) == [
        ("heading", "Pump", ()),
        ("text", "One paragraph.", ("Pump",)),
        ("heading", "1.2 Codes of faults", ("Pump",)),
        ("list", "* a b", ("Pump", "1.2 Codes of faults")),
        ("list", "* c", ("Pump", "1.2 Codes of faults")),
        ("code", "R1   0x00   x\nR2   0x04   y", ("Pump", "1.2 Codes of faults")),
        ("text", "Next.", ("Pump", "1.2 Codes of faults")),
    ]
    assert [block.page for block in document.blocks] == [1] * 6 + [2]


def test_a_file_is_read_by_its_name() -> None:
    document = formats.parse("Manual.MD", "# T\n\ngrün".encode())
    assert document == markdown.read("# T\n\ngrün".encode(), "Manual.MD")


@pytest.mark.parametrize(
    ("name", "data", "cause"),
    [
        ("a.xyz", b"x", "no reader"),
        ("a.txt", b"gr\xfcn", "not utf-8: byte 2 is 0xfc"),
        ("a.md", b"\x7fELF\0\0", "zero bytes"),
        ("a.txt", b"x" * ((16 << 20) + 1), "larger than 16 MiB"),
    ],
)
def test_K05_a_file_that_cannot_be_read_says_why(name: str, data: bytes, cause: str) -> None:
    with pytest.raises(BadDocument, match=cause):
        formats.parse(name, data)


def test_K05_nesting_without_end_is_read() -> None:
    assert formats.parse("a.html", b"<div><table><tr><td>" * 5_000 + b"core").text.strip() == "core"


def test_K05_a_reader_has_a_limit_on_memory() -> None:
    with pytest.raises(BadDocument, match=r"a\.txt: (reading it takes too much memory|its reader died)"):
        formats.parse("a.txt", b"x" * (12 << 20), memory=50 << 20)


def test_K05_a_reader_has_a_limit_on_time() -> None:
    with pytest.raises(BadDocument, match=r"not read after (1 s of processor time|10 s)"):
        formats.parse("a.html", b"<b>x" * (1 << 22), seconds=1)


def test_K05_a_reader_has_a_limit_on_what_it_says() -> None:
    with pytest.raises(BadDocument, match=r"a\.txt: its reader said more than 1 MiB"):
        formats.parse("a.txt", b"x" * (2 << 20), most=1 << 20)


def test_K05_a_path_of_headings_is_told_once() -> None:
    source = f"# {'a' * MAX_HEADING}\n\n## {'b' * MAX_HEADING}\n\n" + "x\n\n" * 5_000 + "# c\n\nx"
    document = formats.parse("a.md", source.encode(), most=1 << 20)
    assert document == markdown.read(source.encode(), "a.md")
    assert document.blocks[2].headings is document.blocks[5_000].headings


def test_K05_what_is_longer_than_a_heading_is_text() -> None:
    long = "a" * (MAX_HEADING + 1)
    source = f"<title>{long}</title><h1>Pump</h1><h2>{long}</h2><p>one</p>".encode()
    document = html.read(source, "a.html")
    assert document.title == "a" * MAX_HEADING
    assert shape(document)[1:] == [("text", long, ("Pump",)), ("text", "one", ("Pump",))]


def test_K05_more_blocks_than_any_manual_has_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builder, "MAX_BLOCKS", 3)
    assert len(plain.read(b"a\n\nb\n\nc", "a.txt").blocks) == 3
    with pytest.raises(BadDocument, match="more than 3 paragraphs"):
        plain.read(b"a\n\nb\n\nc\n\nd", "a.txt")


def test_a_reading_ends_when_nobody_waits_for_it() -> None:
    class GoneError(Exception):
        pass

    def alive() -> None:
        raise GoneError

    with pytest.raises(GoneError):
        formats.parse("a/b/c.md", b"# T", alive=alive)
    assert formats.parse("a/b/c.txt", b"x").title == "c"
