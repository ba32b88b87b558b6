"""Bytes to text, and text to the letters and words that a reader sees in it."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable

from edged.errors import BadDocument

LETTERS = {
    "\ufb00": "ff", "\ufb01": "fi", "\ufb02": "fl", "\ufb03": "ffi", "\ufb04": "ffl", "\ufb05": "st", "\ufb06": "st",
    "\u2010": "-", "\u2011": "-", "\u2212": "-", "\u00a0": " ", "\u202f": " ", "\u2028": "\n", "\u2029": "\n",
}  # fmt: skip
TABLE = str.maketrans(LETTERS)
# soft hyphens (with the line end they stand at), zero-width marks, controls but \t \n \f, private use, lone surrogates
NOTHING = re.compile("\u00ad\n?|[\u200b\u2060\ufeff\x00-\x08\x0b\x0e-\x1f\x7f-\x9f\ue000-\uf8ff\ud800-\udfff]")
CJK = re.compile("[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff\uff00-\uffef]")
BOMS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))


def decode(data: bytes, encoding: str = "utf-8") -> str:
    """Text of a file, cleaned. A byte order mark goes before `encoding`.

    Raises BadDocument if the bytes are no text, or text in another encoding.
    """
    for mark, marked in BOMS:
        if data.startswith(mark):
            data, encoding = data[len(mark) :], marked
            break
    else:
        if b"\0" in data:
            raise BadDocument("holds zero bytes: no text file, whatever its name says")
    try:
        return clean(data.decode(encoding))
    except UnicodeDecodeError as error:
        hint = "convert it, such as with iconv -f latin1 -t utf-8"
        raise BadDocument(f"not {encoding}: byte {error.start} is 0x{data[error.start]:02x}", hint=hint) from error


def clean(text: str) -> str:
    """Ligatures as letters, all hyphens as "-", no marks without meaning; lines end with a newline."""
    return NOTHING.sub("", text.replace("\r\n", "\n").replace("\r", "\n").translate(TABLE))


def join(lines: Iterable[str]) -> str:
    """The lines of a paragraph as one; a word broken at a line end is whole again.

    A hyphen stays where it may be the word's own: after a capital, a digit, or before either (STM32-F407, I2C-bus).
    """
    text = ""
    for line in (" ".join(line.split()) for line in lines):
        if not line or not text:
            text += line
        elif re.search("(?<![^\\W\\d_])[^\\W\\d_A-Z]{2,}-$", text) and re.match("[^\\W\\d_A-Z]{2}", line):
            text = text[:-1] + line
        elif re.search("[\\w]-$|\\w_$", text) or (CJK.match(text[-1]) and CJK.match(line)):
            text += line
        else:
            text += " " + line
    return text
