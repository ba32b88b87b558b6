"""WordPiece, as in BERT (`tokenizer.ggml.model` = bert).

Text is normalised and cut into words at white space, punctuation and CJK characters; a word becomes the longest piece
that begins it, then the longest that goes on, and so forth. A word that cannot be covered, or is longer than 100
characters, is one unknown token. In the file a piece that begins a word is written with U+2581 in front, one that goes
on without BERT's "##". `bos` is [CLS], `eos` is [SEP].

Metadata of its own: normalizer.lowercase (default true), normalizer.strip_accents (default: as lowercase).
Decoding gives words separated by spaces: what normalisation took does not come back.

Source: google-research/bert, tokenization.py (BasicTokenizer, WordpieceTokenizer).
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from typing import Any

from edged.tokenizers.base import Tokenizer
from edged.tokenizers.index import Memo
from edged.tokenizers.vocab import PREFIX, Vocabulary, flag

_BEGIN = "▁"  # U+2581
_BEGIN_BYTES = _BEGIN.encode()
_LONGEST_WORD = 100  # characters
# Ids of a model that does not name them: those of BERT's own vocabularies. Source: llama.cpp, LLAMA_VOCAB_TYPE_WPM.
_DEFAULT_IDS = {"bos": 101, "eos": 102, "unk": 100}
# CJK ideographs, which are words by themselves; kana and hangul are not. Source: BasicTokenizer._is_chinese_char.
_IDEOGRAPHS = (
    (0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F), (0x2B740, 0x2B81F), (0x2B820, 0x2CEAF),
    (0xF900, 0xFAFF), (0x2F800, 0x2FA1F),
)  # fmt: skip
_DROPPED = ("Cc", "Cf", "Cs", "Co")  # controls and the like; surrogates are bytes that are no UTF-8
_ASCII_MARKS = frozenset("$+<=>^`|~")  # punctuation to BERT, symbols to Unicode


class Wpm(Tokenizer):
    """WordPiece with BERT's basic tokenizer before it."""

    def __init__(self, meta: Mapping[str, Any]) -> None:
        # Files name the two tokens around a text cls and seperator (so spelt), newer ones bos and eos.
        named = {
            f"{PREFIX}{ours}_token_id": meta[f"{PREFIX}{theirs}_token_id"]
            for ours, theirs in (("bos", "cls"), ("eos", "seperator"))
            if f"{PREFIX}{theirs}_token_id" in meta
        }
        around = {f"{PREFIX}add_eos_token": meta.get(f"{PREFIX}add_sep_token", True)}
        super().__init__(Vocabulary({**meta, **named, **around}, default_ids=_DEFAULT_IDS, add_bos=True))
        self._lowercase = flag(meta, "normalizer.lowercase", True)
        self._strip_accents = flag(meta, "normalizer.strip_accents", self._lowercase)

    def _encode_plain(self, text: str, after_special: bool) -> list[int]:
        text = text.translate(_CLEANED)
        if self._strip_accents:
            text = unicodedata.normalize("NFD", text).translate(_BARE)
        if self._lowercase:
            text = text.translate(_LOWER)
        return [id for word in text.translate(_SEPARATED).split() for id in self._encode_word(word)]

    def _merge_word(self, word: str) -> list[int]:
        ids = self._cover(word) if len(word) <= _LONGEST_WORD else [-1]
        return self._known(ids if -1 not in ids else [-1])

    def _cover(self, word: str) -> list[int]:
        """Ids of the longest pieces one after the other; ends in -1 where none goes on."""
        ids: list[int] = []
        rest = _BEGIN + word
        while rest and (not ids or ids[-1] >= 0):
            end = len(rest)
            shortest = 0 if ids else len(_BEGIN)  # the mark alone begins no word
            while (id := self._plain_id(rest[:end])) < 0 and end > shortest + 1:
                end -= 1
            ids.append(id)
            rest = rest[end:]
        return ids

    def _plain_id(self, piece: str) -> int:
        """Not `_plain_ids`, which would keep every part of every word."""
        id = self.vocab.find(piece.encode())
        return -1 if id >= 0 and self.is_control(id) else id

    def _piece_bytes(self, piece: bytes) -> bytes:
        return piece.replace(_BEGIN_BYTES, b" ")

    def _strip_prefix(self, data: bytes) -> bytes:
        return data.removeprefix(b" ")


# Tables for str.translate, filled as characters come up


def _clean(code: int) -> str:
    character = chr(code)
    if character in "\t\n\r" or unicodedata.category(character) == "Zs":
        return " "
    if code == 0xFFFD or unicodedata.category(character) in _DROPPED:
        return ""
    return f" {character} " if any(first <= code <= last for first, last in _IDEOGRAPHS) else character


def _bare(code: int) -> str:
    return "" if unicodedata.category(chr(code)) == "Mn" else chr(code)


def _lower(code: int) -> str:
    """One by one, as the tokenizers library does: str.lower would write a sigma that ends a word as another letter."""
    return chr(code).lower()


def _separated(code: int) -> str:
    character = chr(code)
    mark = character in _ASCII_MARKS or unicodedata.category(character)[0] == "P"
    return f" {character} " if mark else character


_CLEANED, _BARE, _LOWER, _SEPARATED = Memo(_clean), Memo(_bare), Memo(_lower), Memo(_separated)
