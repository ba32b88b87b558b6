"""Byte-pair encoding on bytes, as in GPT-2 (`tokenizer.ggml.model` = gpt2).

Pieces and merges are written with one printable character a byte. A word's bytes are merged in the order of the merge
list; a merge is looked up by its own text, "left right", so no rule is ever parsed.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

from edged.errors import BadModel
from edged.tokenizers.base import Tokenizer
from edged.tokenizers.index import Memo, StringIndex
from edged.tokenizers.merge import merge
from edged.tokenizers.pretokenizers import PRETOKENIZERS
from edged.tokenizers.vocab import PREFIX, Vocabulary, strings, warn


def _byte_characters() -> list[str]:
    """The character each byte is written with. Source: openai/gpt-2, encoder.py, bytes_to_unicode."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


_CHARACTERS = _byte_characters()
_ENCODED = [character.encode() for character in _CHARACTERS]
_BYTES = {ord(character): byte for byte, character in enumerate(_CHARACTERS)}


class Bpe(Tokenizer):
    """Byte-level BPE."""

    def __init__(self, meta: Mapping[str, Any]) -> None:
        name = meta.get(PREFIX + "pre")
        if name is None:
            warn("the model names no pretokenizer (%spre): the default one is used", PREFIX)
            name = "default"
        if not isinstance(name, str) or name not in PRETOKENIZERS:
            known = ", ".join(sorted(PRETOKENIZERS))
            raise BadModel(f"{PREFIX}pre: unknown pretokenizer {name!r}", hint=f"known: {known}")
        self._pretokenizer = PRETOKENIZERS[name]
        self._rules = strings(meta, "merges")
        super().__init__(Vocabulary(meta, default_ids={}, add_bos=self._pretokenizer.add_bos))

    @cached_property
    def _ranks(self) -> Memo[bytes, float | None]:
        """By "left right"."""
        find = StringIndex(self._rules).find

        def rank(rule: bytes) -> float | None:
            found = find(rule)
            return None if found < 0 else found

        return Memo(rank)

    def _encode_plain(self, text: str, after_special: bool) -> list[int]:
        return [id for word in self._pretokenizer.split(text) for id in self._encode_word(word)]

    def _merge_word(self, word: str) -> list[int]:
        symbols = [_ENCODED[byte] for byte in word.encode("utf-8", "surrogateescape")]
        if self._pretokenizer.ignore_merges:
            whole = self._plain_ids[b"".join(symbols)]
            if whole >= 0:
                return [whole]
        return self._ids(merge(symbols, b" ", self._ranks))

    def _fallback(self, symbol: bytes) -> list[int]:
        return [self._plain_ids[character.encode()] for character in symbol.decode()]

    def _piece_bytes(self, piece: bytes) -> bytes:
        out = bytearray()
        for character in piece.decode("utf-8", "replace"):
            byte = _BYTES.get(ord(character))
            out += character.encode() if byte is None else bytes((byte,))
        return bytes(out)
