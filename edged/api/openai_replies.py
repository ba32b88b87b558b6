"""Answers in the shapes of OpenAI's API: chat completions, completions, their stream chunks and log-probabilities.

A `Format` makes the objects of one call; both routes have one. Log-probabilities below any float are written as
LOWEST, as OpenAI does, because JSON has no minus infinity.
"""

from __future__ import annotations

import codecs
import os
import time
from collections.abc import Sequence
from typing import Any

from edged import __version__
from edged.api.context import LoadedEmbedder, LoadedModel
from edged.api.generation import Choice, Piece
from edged.engine.request import Token, TopLogprobs, Usage

LOWEST = -9999.0

Object = dict[str, Any]


class Format:
    """What the two routes have in common. `head` is repeated in every chunk of a stream."""

    prefix = ""
    whole = ""
    chunk = ""

    def __init__(self, model: LoadedModel | LoadedEmbedder, want_logprobs: bool) -> None:
        self.tokenizer = model.tokenizer
        self.want_logprobs = want_logprobs
        self._head: Object = {
            "id": f"{self.prefix}-{os.urandom(12).hex()}",
            "created": int(time.time()),
            "model": model.name,
            "system_fingerprint": f"edged-{__version__}-{model.engine.info.kernel_level}".rstrip("-"),
        }

    def answer(self, pieces: Sequence[Piece], choices: Sequence[Choice], usage: Usage) -> Object:
        """The whole answer."""
        made = [self.choice(piece, choice) for piece, choice in zip(pieces, choices, strict=True)]
        return {**self._head, "object": self.whole, "choices": made, "usage": usage_of(usage)}

    def chunks(self, choices: list[Object], include_usage: bool) -> Object:
        """One chunk of a stream."""
        chunk = {**self._head, "object": self.chunk, "choices": choices}
        return {**chunk, "usage": None} if include_usage else chunk

    def last(self, usage: Usage) -> Object:
        """The chunk that carries the usage."""
        return {**self._head, "object": self.chunk, "choices": [], "usage": usage_of(usage)}

    def choice(self, piece: Piece, choice: Choice) -> Object:
        """An element of `choices` of a whole answer."""
        raise NotImplementedError

    def first_parts(self, choice: Choice) -> list[Object]:
        """What a stream says of a choice before its first token."""
        raise NotImplementedError

    def parts(self, piece: Piece) -> list[Object]:
        """Elements of `choices` that tell of this piece."""
        raise NotImplementedError


class ChatFormat(Format):
    """/v1/chat/completions."""

    prefix, whole, chunk = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def choice(self, piece: Piece, choice: Choice) -> Object:
        return {
            "index": piece.index,
            "message": {"role": "assistant", "content": piece.text, "refusal": None},
            "logprobs": self._logprobs(piece.tokens),
            "finish_reason": piece.finish,
            **_ended(piece),
        }

    def first_parts(self, choice: Choice) -> list[Object]:
        return [_delta(choice.index, {"role": "assistant", "content": ""})]

    def parts(self, piece: Piece) -> list[Object]:
        """The text and its scores, then the finish reason by itself."""
        parts = []
        if piece.text or piece.tokens:
            parts.append(_delta(piece.index, {"content": piece.text}, self._logprobs(piece.tokens)))
        if piece.finish:
            parts.append({**_delta(piece.index, {}, finish=piece.finish), **_ended(piece)})
        return parts

    def _logprobs(self, tokens: Sequence[Token]) -> Object | None:
        if not self.want_logprobs:
            return None
        return {"content": [self._scored(token) for token in tokens], "refusal": None}

    def _scored(self, token: Token) -> Object:
        return {**self._entry(token.id, token.logprob), "top_logprobs": [self._entry(*pair) for pair in token.top]}

    def _entry(self, token: int, logprob: float | None) -> Object:
        raw = self.tokenizer.token_bytes(token)
        return {"token": raw.decode("utf-8", "replace"), "logprob": finite(logprob), "bytes": list(raw)}


class ManualsFormat(ChatFormat):
    """/v1/chat/completions that manuals answer. `cited` is the "edged" of the message, or of the last delta."""

    cited: Object

    def choice(self, piece: Piece, choice: Choice) -> Object:
        made = super().choice(piece, choice)
        made["message"]["edged"] = self.cited
        return made

    def parts(self, piece: Piece) -> list[Object]:
        parts = super().parts(piece)
        if piece.finish:
            parts[-1]["delta"]["edged"] = self.cited
        return parts


class CompletionFormat(Format):
    """/v1/completions. `echoes`: for each choice the prompt's text, if the caller wants it repeated."""

    prefix, whole, chunk = "cmpl", "text_completion", "text_completion"

    def __init__(self, model: LoadedModel, want_logprobs: bool, echoes: Sequence[str]) -> None:
        super().__init__(model, want_logprobs)
        self._echoes = echoes
        self._offsets = [_Offsets() for _ in echoes]

    def choice(self, piece: Piece, choice: Choice) -> Object:
        logprobs = None
        if self.want_logprobs:
            logprobs = self._echoed(choice) if choice.request.prompt_logprobs else _no_logprobs()
            for name, values in self._logprobs(piece).items():
                logprobs[name] += values
        whole = _completion(piece.index, self._echoes[piece.index] + piece.text, logprobs, piece.finish)
        return {**whole, **_ended(piece)}

    def first_parts(self, choice: Choice) -> list[Object]:
        if not self._echoes[choice.index]:
            return []
        logprobs = self._echoed(choice) if choice.request.prompt_logprobs else None
        return [_completion(choice.index, self._echoes[choice.index], logprobs, None)]

    def parts(self, piece: Piece) -> list[Object]:
        logprobs = self._logprobs(piece) if self.want_logprobs else None
        return [{**_completion(piece.index, piece.text, logprobs, piece.finish), **_ended(piece)}]

    def _echoed(self, choice: Choice) -> Object:
        """Log-probabilities of the prompt's tokens: the first has none, nothing comes before it."""
        assert choice.scores is not None
        raw = b"".join(map(self.tokenizer.token_bytes, choice.request.prompt))
        hidden = len(raw.decode("utf-8", "replace")) - len(self._echoes[choice.index])  # begin of sequence, say
        self._offsets[choice.index].skip(hidden)
        tops = choice.scores.tops or ((),) * len(choice.scores.logprobs)
        scored = zip(choice.request.prompt, (None, *choice.scores.logprobs), ((), *tops), strict=True)
        return self._columns(choice.index, [Token(token, logprob, top) for token, logprob, top in scored])

    def _logprobs(self, piece: Piece) -> Object:
        return self._columns(piece.index, piece.tokens)

    def _columns(self, index: int, tokens: Sequence[Token]) -> Object:
        columns = _no_logprobs()
        for token in tokens:
            columns["text_offset"].append(self._offsets[index].next(self.tokenizer.token_bytes(token.id)))
            columns["tokens"].append(self._name(token.id))
            columns["token_logprobs"].append(finite(token.logprob))
            columns["top_logprobs"].append(self._tops(token.top) if token.logprob is not None else None)
        return columns

    def _tops(self, top: TopLogprobs) -> dict[str, float | None]:
        return {self._name(token): finite(logprob) for token, logprob in top}

    def _name(self, token: int) -> str:
        """A token as a string that no other token shares: one that is no UTF-8 by itself is spelled in bytes."""
        raw = self.tokenizer.token_bytes(token)
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


class _Offsets:
    """Places in the text where tokens start, in characters."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._at = 0

    def skip(self, n: int) -> None:
        """The first n characters of the tokens are not in the text."""
        self._at -= n

    def next(self, raw: bytes) -> int:
        start = max(self._at, 0)
        self._at += len(self._decoder.decode(raw))
        return start


def finite(logprob: float | None) -> float | None:
    """A log-probability as JSON can hold it."""
    return None if logprob is None else max(logprob, LOWEST)


def usage_of(usage: Usage) -> Object:
    """Token counts."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {
            "accepted_prediction_tokens": usage.accepted_tokens,
            "rejected_prediction_tokens": usage.drafted_tokens - usage.accepted_tokens,
        },
    }


def _no_logprobs() -> Object:
    return {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}


def _ended(piece: Piece) -> Object:
    """What `finish_reason` has no word for."""
    return {"edged": {"ended_by": "deadline"}} if piece.late else {}


def _delta(index: int, delta: Object, logprobs: Object | None = None, finish: str | None = None) -> Object:
    return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish}


def _completion(index: int, text: str, logprobs: Object | None, finish: str | None) -> Object:
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish}
