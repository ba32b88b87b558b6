"""PDF files for tests, written object by object (ISO 32000-1, 7.5): also those that no program would write."""

from __future__ import annotations

import zlib
from collections.abc import Sequence


def stream(data: bytes, entries: bytes = b"") -> bytes:
    """The body of a stream object, compressed."""
    packed = zlib.compress(data)
    return b"<</Filter/FlateDecode/Length %d %s>>stream\n%s\nendstream" % (len(packed), entries, packed)


def pdf(pages: Sequence[bytes], *, attributes: bytes = b"", resources: bytes = b"", catalog: bytes = b"",
        objects: Sequence[bytes] = ()) -> bytes:
    """A file with one page per content stream.

    F1 is Helvetica, F2 Helvetica bold, F3 Courier. `objects` begin at number 10: what resources and catalog refer to.
    """
    first = 10 + len(objects)
    kids = b" ".join(b"%d 0 R" % (first + 2 * n) for n in range(len(pages)))
    fonts = b" ".join(
        b"/F%d<</Type/Font/Subtype/Type1/BaseFont/%s/Encoding/WinAnsiEncoding>>" % (n, name)
        for n, name in enumerate((b"Helvetica", b"Helvetica-Bold", b"Courier"), 1)
    )
    bodies = {
        1: b"<</Type/Catalog/Pages 2 0 R %s>>" % catalog,
        2: b"<</Type/Pages/Kids[%s]/Count %d/MediaBox[0 0 600 800]/Resources<</Font<<%s>>%s>>%s>>"
        % (kids, len(pages), fonts, resources, attributes),
    }
    bodies.update(enumerate(objects, 10))
    for n, content in enumerate(pages):
        bodies[first + 2 * n] = b"<</Type/Page/Parent 2 0 R/Contents %d 0 R>>" % (first + 2 * n + 1)
        bodies[first + 2 * n + 1] = stream(content)
    out = bytearray(b"%PDF-1.7\n")
    for number, body in bodies.items():
        out += b"%d 0 obj%s\nendobj\n" % (number, body)
    return bytes(out + b"trailer<</Root 1 0 R/Size %d>>\n%%%%EOF" % (max(bodies) + 1))


def text(x: float, y: float, words: str, *, size: float = 10, font: int = 1) -> bytes:
    """Words from the point x, y (up from the lower left corner)."""
    shown = words.encode("cp1252").replace(b"\\", b"\\\\").replace(b"(", b"\\(").replace(b")", b"\\)")
    return b"BT /F%d %g Tf %g %g Td (%s) Tj ET\n" % (font, size, x, y, shown)


def lines(x: float, y: float, *rows: str, size: float = 10, font: int = 1) -> bytes:
    """Rows of text, 12 points apart."""
    return b"".join(text(x, y - 12 * n, row, size=size, font=font) for n, row in enumerate(rows))
