"""Text as a PLC can hold it: bytes of one charset, on one line, in pages of a given number of bytes.

    encode("5 µA – „ok“", "ascii")      -> b'5 uA - "ok"'
    pages("the pump stops", "ascii", 8) -> [b"the pump", b"stops"]

Nothing is lost without a trace: what a charset lacks is written with its letters (ascii: é as e, ß as ss), else as `?`.
"""

from __future__ import annotations

import unicodedata

CHARSETS = ("ascii", "latin-1", "cp437", "utf-8")

_SPELLED = str.maketrans({
    "‐": "-", "‑": "-", "‒": "-", "–": "-", "—": "-", "−": "-", "‘": "'", "’": "'", "‚": "'", "“": '"', "”": '"',
    "„": '"', "«": '"', "»": '"', "•": "*", "·": ".", "×": "x", "÷": "/", "±": "+/-", "≤": "<=", "≥": ">=", "≠": "!=",
    "≈": "~", "→": "->", "←": "<-", "°": " deg ", "ß": "ss", "æ": "ae", "Æ": "AE", "œ": "oe", "Œ": "OE", "ø": "o",
    "Ø": "O", "đ": "d", "Đ": "D", "ł": "l", "Ł": "L", "µ": "u", "μ": "u", "Ω": "Ohm", "€": "EUR", "£": "GBP",
})  # fmt: skip


def encode(text: str, charset: str) -> bytes:
    """`text` on one line: runs of blanks, line ends and control characters become one space.

    charset: one of CHARSETS; LookupError otherwise. A lone surrogate is written as `?`.
    """
    return _spell(text, charset).encode(charset)


def pages(text: str, charset: str, room: int) -> list[bytes]:
    """`text` in pages of at most `room` bytes, split at words; a word longer than a page is split between characters.

    room: at least 8, so that any character fits. At least one page is returned; an empty text is one empty page.
    """
    if room < 8:
        raise ValueError(f"a page of {room} bytes is too small, the least is 8")
    done = [b""]
    for word in _spell(text, charset).split(" "):
        first, *rest = _split(word, charset, room)
        if done[-1] and len(done[-1]) + 1 + len(first) > room:
            done.append(first)
        else:
            done[-1] += b" " + first if done[-1] else first
        done += rest
    return done


def _split(word: str, charset: str, room: int) -> list[bytes]:
    """One word as parts of at most `room` bytes, never inside a character."""
    parts = [b""]
    for character in word:
        encoded = character.encode(charset)
        if len(parts[-1]) + len(encoded) > room:
            parts.append(b"")
        parts[-1] += encoded
    return parts


def _spell(text: str, charset: str) -> str:
    """`text` in characters that the charset has, words parted by one space."""
    plain = "".join(" " if unicodedata.category(character) == "Cc" else character for character in text)
    return " ".join("".join(_letters(character, charset) for character in plain).split())


def _letters(character: str, charset: str) -> str:
    """One character; what the charset lacks is spelled with letters that it has."""
    try:
        character.encode(charset)
        return character
    except UnicodeEncodeError:
        spelled = unicodedata.normalize("NFKD", character.translate(_SPELLED))
        plain = "".join(c for c in spelled if not unicodedata.combining(c))
        return plain.encode(charset, "replace").decode(charset)
