"""The vocabulary of a model: pieces, token types, scores and special ids, read from GGUF metadata and checked.

`Vocabulary(meta, defaults)` raises BadModel where the file cannot be used. What can be done without is disabled with a
warning instead: a special id outside the vocabulary, or an automatic BOS/EOS without its id. Equal pieces: the lowest
id is the one that text encodes to; the others still decode.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from edged.errors import BadModel
from edged.tokenizers.index import PackedStrings, StringIndex, Strings

PREFIX = "tokenizer.ggml."


def warn(message: str, *values: object) -> None:
    """Log a warning about the model."""
    import logging  # only now: not needed for a first token

    logging.getLogger(__name__).warning(message, *values)


class TokenType:
    """gguf.md, tokenizer.ggml.token_type. Plain numbers: an Enum member costs more to look up than a piece."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


# Pieces that end an answer whatever ids the metadata names, and are control tokens whatever type it gives them: "</s>"
# of Gemma is then no HTML tag in text. Source: llama.cpp, llama-vocab.cpp, special_eog_ids.
END_PIECES = (
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "</s>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    "<｜end▁of▁sentence｜>",
    "[e~[",
    # fill-in-the-middle: padding, next repository, next file
    "<|fim_pad|>",
    "<fim-pad>",
    "<fim_pad>",
    "<PAD>",
    "[PAD]",
    "<|fim_repo|>",
    "<|repo_name|>",
    "<fim-repo>",
    "<REPO>",
    "<reponame>",
    "<|file_sep|>",
)
END_KEYS = ("eos", "eot", "eom", "fim_pad", "fim_rep", "fim_sep")
# Pieces that take another off that list again, and the type it has then. Same source.
NOT_END_PIECES = (
    ({"<|return|>", "<|call|>"}, "<|end|>", TokenType.USER_DEFINED),
    ({"<|calls|>", "<|flush|>"}, "<|end|>", TokenType.USER_DEFINED),
    ({"<|tool_response>"}, "</s>", TokenType.NORMAL),
)
# Channel marks that are shown as text. Same source.
SHOWN_PIECES = ("<|channel|>", "<|message|>", "<|start|>", "<|constrain|>")


class Vocabulary:
    """Pieces by id and ids by piece.

    types: u8 (n,) of TokenType; scores: f32 (n,), zeros where the model has none; longest: bytes of a piece
    bos_id, eos_id, unk_id: int or None; eog_ids: ids that end an answer; add_bos, add_eos: as the model asks
    """

    def __init__(self, meta: Mapping[str, Any], *, default_ids: Mapping[str, int], add_bos: bool) -> None:
        self._strings = strings(meta, "tokens")
        self.size = len(self._strings)
        if not self.size:
            raise BadModel(f"{PREFIX}tokens is empty: the model has no vocabulary")
        self.types = _types(meta, self.size)
        self.scores = _numbers(meta, "scores", self.size, np.float32)
        self._index = StringIndex(self._strings)
        self.longest = self._index.longest

        ids = {name: self._special_id(meta, name, default_ids.get(name)) for name in ("bos", "unk", *END_KEYS)}
        self.bos_id, self.eos_id, self.unk_id = ids["bos"], ids["eos"], ids["unk"]
        self.add_bos = self._automatic(meta, "bos", add_bos, self.bos_id)
        self.add_eos = self._automatic(meta, "eos", False, self.eos_id)
        named = {id for key in END_KEYS if (id := ids[key]) is not None}
        self.eog_ids = frozenset(named | self._end_ids())

    def piece(self, id: int) -> bytes:
        """The piece as it is stored. Raises IndexError outside 0 <= id < size."""
        if not 0 <= id < self.size:
            raise IndexError(f"token id {id} is outside the vocabulary of {self.size}")
        return self._strings.raw(id)

    def pieces_of_type(self, *types: int) -> dict[bytes, int]:
        """Pieces with one of these types and their ids, the lowest of equal ones."""
        ids = self._ids_of_type(types)[::-1]
        starts = self._strings.offsets[ids]
        ends = starts + self._strings.lengths[ids]
        data = self._strings.buffer.data
        spans = zip(starts.tolist(), ends.tolist(), ids.tolist(), strict=True)
        return {bytes(data[start:end]): id for start, end, id in spans}

    def beginnings(self, *types: int) -> frozenset[str]:
        """First characters of the pieces with one of these types."""
        ids = self._ids_of_type(types)
        ids = ids[self._strings.lengths[ids] > 0]
        firsts = self._strings.buffer[self._strings.offsets[ids]]
        _, examples = np.unique(firsts, return_index=True)
        chosen = {*ids[examples].tolist(), *ids[firsts >= 0x80].tolist()}  # one for each ASCII character, all others
        return frozenset(self.piece(id).decode("utf-8", "replace")[0] for id in chosen)

    def _ids_of_type(self, types: tuple[int, ...]) -> np.ndarray:
        wanted = np.zeros(256, bool)
        wanted[list(types)] = True
        return np.flatnonzero(wanted[self.types])

    def find(self, piece: bytes) -> int:
        """Lowest id of a piece, or -1."""
        return self._index.find(piece)

    def preceding(self, mark: bytes) -> set[str]:
        """Characters that stand right before `mark` in any piece, other than `mark` itself."""
        buffer, offsets = self._strings.buffer, self._strings.offsets
        hits = np.ones(max(len(buffer) - len(mark) + 1, 0), bool)
        for i, byte in enumerate(mark):
            hits &= buffer[i : i + len(hits)] == byte
        hits[offsets[offsets < len(hits)]] = False  # at the start of a piece
        found = set()
        for at in np.flatnonzero(hits).tolist():
            id = int(np.searchsorted(offsets, at, "right")) - 1
            before = self.piece(id)[: at - offsets[id]]
            if not before.endswith(mark):
                found.add(before.decode("utf-8", "surrogateescape")[-1])
        return found

    def _special_id(self, meta: Mapping[str, Any], name: str, default: int | None) -> int | None:
        key = f"{PREFIX}{'unknown' if name == 'unk' else name}_token_id"
        value = meta.get(key)
        if value is None:
            return default if default is not None and default < self.size else None
        if type(value) is not int or not 0 <= value < self.size:
            warn("%s = %r is outside the vocabulary of %d: disabled", key, value, self.size)
            return None
        return value

    @staticmethod
    def _automatic(meta: Mapping[str, Any], name: str, default: bool, id: int | None) -> bool:
        wanted = flag(meta, f"add_{name}_token", default)
        if wanted and id is None:
            warn("%sadd_%s_token is set, but there is no valid %s id: none is added", PREFIX, name, name)
            return False
        return wanted

    def _end_ids(self) -> set[int]:
        """Ids of pieces that end an answer; sets the type of pieces whose text tells more than the file does."""
        by_piece = {piece: id for piece in END_PIECES if (id := self.find(piece.encode())) >= 0}
        for family, piece, type in NOT_END_PIECES:
            if family <= by_piece.keys() and piece in by_piece:
                self.types[by_piece.pop(piece)] = type
        self.types[list(by_piece.values())] = TokenType.CONTROL
        for piece in SHOWN_PIECES:
            if (id := self.find(piece.encode())) >= 0:
                self.types[id] = TokenType.USER_DEFINED
        return set(by_piece.values())


def strings(meta: Mapping[str, Any], name: str) -> Strings:
    """A string array of the tokenizer's metadata. Raises BadModel if it is missing or not strings."""
    value = meta.get(PREFIX + name)
    if value is None:
        raise BadModel(f"the model has no {PREFIX}{name}", hint="convert the model again, with its tokenizer")
    if hasattr(value, "offsets"):
        return value
    if isinstance(value, list) and all(isinstance(v, str | bytes) for v in value):
        return PackedStrings(value)
    raise BadModel(f"{PREFIX}{name} is not an array of strings")


def flag(meta: Mapping[str, Any], name: str, default: bool) -> bool:
    """A yes or no of the tokenizer's metadata. Raises BadModel if it is something else."""
    value = meta.get(PREFIX + name, default)
    if not isinstance(value, bool):
        raise BadModel(f"{PREFIX}{name} is not a boolean")
    return value


def _types(meta: Mapping[str, Any], size: int) -> np.ndarray:
    types = _numbers(meta, "token_type", size, np.int32, missing=TokenType.NORMAL)
    if types.min() < TokenType.NORMAL or types.max() > TokenType.BYTE:
        types = np.where((types < TokenType.NORMAL) | (types > TokenType.BYTE), TokenType.UNUSED, types)
    return types.astype(np.uint8)


def _numbers(meta: Mapping[str, Any], name: str, size: int, dtype: type, missing: int = 0) -> np.ndarray:
    value = meta.get(PREFIX + name)
    if value is None:
        return np.full(size, missing, dtype)
    numbers = np.asarray(value)
    if numbers.ndim != 1 or numbers.dtype.kind not in "iuf":
        raise BadModel(f"{PREFIX}{name} is not an array of numbers")
    if len(numbers) != size:
        raise BadModel(f"{PREFIX}{name} has {len(numbers)} entries for {size} tokens")
    return numbers.astype(dtype, copy=False)
