"""What all tokenizers share: special tokens, BOS and EOS, decoding, streaming.

A tokenizer model (bpe.py, spm.py) adds how plain text becomes ids, and what bytes a normal piece stands for.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from functools import cached_property, partial

from edged.tokenizers.index import Memo
from edged.tokenizers.special import SpecialTokens
from edged.tokenizers.stream import TextStream
from edged.tokenizers.vocab import TokenType, Vocabulary

_CACHED_WORDS = 16384  # words kept with their ids
_CACHED_LENGTH = 32  # longest word kept, in characters
_LONE_SURROGATES = re.compile("[\ud800-\udfff]")


class Tokenizer(ABC):
    """Text to ids and back, for one vocabulary. Safe to share between threads.

    n_vocab; longest: bytes of the longest piece; bos_id, eos_id: int or None; eog_ids: ids that end an answer; add_bos,
    add_eos: what `add_special` adds
    """

    def __init__(self, vocab: Vocabulary) -> None:
        self.vocab = vocab
        self.n_vocab, self.longest = vocab.size, vocab.longest
        self.bos_id, self.eos_id, self.eog_ids = vocab.bos_id, vocab.eos_id, vocab.eog_ids
        self.add_bos, self.add_eos = vocab.add_bos, vocab.add_eos
        self._words: dict[str, list[int]] = {}

    def encode(
        self,
        text: str | bytes,
        *,
        special: bool = False,
        add_special: bool = False,
        literal: Mapping[int, str] | None = None,
    ) -> list[int]:
        """Ids of `text`.

        special: the text of a control token becomes that token; otherwise only user-defined tokens are matched.
        add_special: BOS and EOS are added as the model asks.
        literal: a table as for str.translate, applied to what is left when special tokens have been found.
        Bytes that are no UTF-8 become byte tokens; a lone surrogate in a str is U+FFFD.
        """
        ids = [self.bos_id] if add_special and self.add_bos and self.bos_id is not None else []
        after_special = True
        for part in (self._all_special if special else self._user_defined).split(as_text(text)):
            if isinstance(part, int):
                ids.append(part)
                after_special = True
            else:
                ids += self._encode_plain(part.translate(literal) if literal else part, after_special)
                after_special = False
        if add_special and self.add_eos and self.eos_id is not None:
            ids.append(self.eos_id)
        return ids

    def decode(self, ids: Iterable[int], *, special: bool = False) -> str:
        """Text of `ids`; control tokens only with `special`. Raises IndexError for an id outside the vocabulary."""
        return self._strip_prefix(b"".join(self._shown(id, special) for id in ids)).decode("utf-8", "replace")

    def token_bytes(self, id: int) -> bytes:
        """Bytes a token stands for, control tokens by their text. Raises IndexError."""
        piece = self.vocab.piece(id)
        type = self.vocab.types.item(id)
        if type == TokenType.NORMAL:
            return self._piece_bytes(piece)
        if type == TokenType.BYTE:
            return _byte_of(piece)
        return b"" if type == TokenType.UNUSED else piece

    def stream(self, stops: Iterable[str] = (), *, special: bool = False) -> TextStream:
        """A stream of text deltas for one answer; control tokens only with `special`."""
        return TextStream(partial(self._shown, special=special), stops)

    def token_id(self, text: str | bytes) -> int | None:
        """Id of the token whose piece is exactly `text`, or None."""
        id = self.vocab.find(text.encode("utf-8", "replace") if isinstance(text, str) else text)
        return None if id < 0 else id

    def is_control(self, id: int) -> bool:
        """Whether a token is a mark for the model, not text. Raises IndexError."""
        return self.vocab.types.item(id) in (TokenType.CONTROL, TokenType.UNKNOWN)

    def control_beginnings(self) -> frozenset[str]:
        """First characters of the texts that `special` turns into control tokens."""
        return self.vocab.beginnings(TokenType.CONTROL, TokenType.UNKNOWN)

    def special_parts(self, text: str) -> list[str | int]:
        """Text and the ids of the special tokens in it, as `encode(text, special=True)` finds them."""
        return self._all_special.split(as_text(text))

    @abstractmethod
    def _encode_plain(self, text: str, after_special: bool) -> list[int]:
        """Ids of text without special tokens; invalid bytes come as surrogates (PEP 383)."""

    @abstractmethod
    def _piece_bytes(self, piece: bytes) -> bytes:
        """What a normal piece stands for."""

    def _strip_prefix(self, data: bytes) -> bytes:
        """Undo what encoding adds at the start of a text."""
        return data

    def _shown(self, id: int, special: bool) -> bytes:
        return b"" if not special and self.is_control(id) else self.token_bytes(id)

    @cached_property
    def _user_defined(self) -> SpecialTokens:
        return self._special_tokens(TokenType.USER_DEFINED)

    @cached_property
    def _all_special(self) -> SpecialTokens:
        return self._special_tokens(TokenType.USER_DEFINED, TokenType.CONTROL, TokenType.UNKNOWN)

    def _special_tokens(self, *types: int) -> SpecialTokens:
        pieces = self.vocab.pieces_of_type(*types)
        return SpecialTokens({piece.decode("utf-8", "surrogateescape"): id for piece, id in pieces.items()})

    def _encode_word(self, word: str) -> list[int]:
        """Ids of one word, remembered for short ones."""
        ids = self._words.get(word)
        if ids is None:
            ids = self._merge_word(word)
            if len(word) <= _CACHED_LENGTH:
                if len(self._words) >= _CACHED_WORDS:
                    self._words.clear()
                self._words[word] = ids
        return ids

    def _ids(self, symbols: list[bytes]) -> list[int]:
        """Ids of merged symbols; bytes that no piece stands for are the unknown token, or nothing if there is none."""
        ids, find = [], self._plain_ids.__getitem__
        for symbol in symbols:
            id = find(symbol)
            ids += [id] if id >= 0 else self._fallback(symbol)
        return self._known(ids)

    def _known(self, ids: list[int]) -> list[int]:
        """`ids` with -1 replaced by the unknown token, or left out if there is none."""
        if -1 in ids:
            unknown = [] if self.vocab.unk_id is None else [self.vocab.unk_id]
            ids = [known for id in ids for known in ([id] if id >= 0 else unknown)]
        return ids

    @cached_property
    def _plain_ids(self) -> Memo[bytes, int]:
        """Ids that plain text may become, -1 for other pieces: merges must not end in a control token either."""

        def find(piece: bytes) -> int:
            id = self.vocab.find(piece)
            return -1 if id >= 0 and self.is_control(id) else id

        return Memo(find)

    @abstractmethod
    def _merge_word(self, word: str) -> list[int]:
        """Ids of one word, by merging."""

    def _fallback(self, symbol: bytes) -> list[int]:
        """Ids of the bytes of a symbol that is no piece; -1 where there is none."""
        return [-1]


def as_text(text: str | bytes) -> str:
    """Bytes as a str in which invalid ones are surrogates (PEP 383); a str with its lone surrogates replaced."""
    if isinstance(text, bytes):
        return text.decode("utf-8", "surrogateescape")
    return text if text.isascii() else _LONE_SURROGATES.sub("\ufffd", text)


def _byte_of(piece: bytes) -> bytes:
    """The byte of a piece such as <0x0A>; the piece itself if it is not written so."""
    try:
        return bytes((int(piece[3:5], 16),))
    except ValueError:
        return piece
