"""SentencePiece BPE with scores and byte fallback (`tokenizer.ggml.model` = llama): the Llama 2 and Gemma families.

A space is written as "▁". Neighbours are joined where the joined text is a piece, the one with the best score first.
There are no words in this model; but where no piece spans a place before a "▁", no merge ever does, so the text is cut
there, and each cut part is merged (and remembered) on its own with the same result.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from edged.tokenizers.base import Tokenizer
from edged.tokenizers.index import Memo
from edged.tokenizers.merge import merge
from edged.tokenizers.vocab import Vocabulary, flag

_SPACE = "▁"  # U+2581
_SPACE_BYTES = _SPACE.encode()
# Ids of a model that does not name them. Source: llama.cpp, llama-vocab.cpp, LLAMA_VOCAB_TYPE_SPM.
_DEFAULT_IDS = {"bos": 1, "eos": 2, "unk": 0}


class Spm(Tokenizer):
    """SentencePiece with byte fallback."""

    def __init__(self, meta: Mapping[str, Any]) -> None:
        super().__init__(Vocabulary(meta, default_ids=_DEFAULT_IDS, add_bos=True))
        self._space_prefix = flag(meta, "add_space_prefix", True)

    @cached_property
    def _cut(self) -> re.Pattern[str]:
        """Places that no piece spans: before a space mark, unless a piece has it after the same character."""
        joined = "".join(sorted({_SPACE, *self.vocab.preceding(_SPACE_BYTES)}))
        return re.compile(f"(?<=[^{re.escape(joined)}])(?={_SPACE})", re.DOTALL)

    def _encode_plain(self, text: str, after_special: bool) -> list[int]:
        if self._space_prefix and after_special:
            text = " " + text
        return [id for part in self._cut.split(text.replace(" ", _SPACE)) for id in self._encode_word(part)]

    def _merge_word(self, word: str) -> list[int]:
        symbols = [character.encode("utf-8", "surrogateescape") for character in word]
        return self._ids(merge(symbols, b"", self._costs))

    @cached_property
    def _costs(self) -> Memo[bytes, float | None]:
        """By joined piece."""
        score = self.vocab.scores.item

        def cost(piece: bytes) -> float | None:
            id = self._plain_ids[piece]
            return None if id < 0 else -score(id)

        return Memo(cost)

    def _fallback(self, symbol: bytes) -> list[int]:
        ids = []
        for byte in symbol:
            id = self._plain_ids[b"<0x%02X>" % byte]
            ids.append(id if id >= 0 else self._plain_ids[bytes((byte,))])
        return ids

    def _piece_bytes(self, piece: bytes) -> bytes:
        return piece.replace(_SPACE_BYTES, b" ")

    def _strip_prefix(self, data: bytes) -> bytes:
        return data.removeprefix(b" ") if self._space_prefix else data
