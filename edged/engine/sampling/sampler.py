"""One request's sampler: the native functions `sample` and `logprobs` with this request's settings.

No array of the vocabulary's size is touched here; filters and order are described at SAMPLING in the kernel table.

Seeds. The draw for the i-th token is a function of the seed and i alone (SplitMix64): it depends on nothing else that
runs. The same seed draws other numbers than in llama.cpp.
"""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING

import numpy as np

from edged.engine.request import Request, Sampling, Token, TopLogprobs
from edged.engine.sampling.window import Window
from edged.errors import BadRequest, ModelFault
from edged.kernels.table import SAMPLE_NO_TOKEN, SAMPLE_NOT_FINITE, SAMPLING

if TYPE_CHECKING:
    from edged.kernels.load import Library

_BITS64 = (1 << 64) - 1
_LARGEST = 1e30  # of any setting: f32 holds it, and logits divided by a temperature stay finite
_LIMITS = {
    "temperature": (0.0, _LARGEST), "top_p": (0.0, 1.0), "min_p": (0.0, 1.0), "repeat_penalty": (1e-6, _LARGEST),
    "presence_penalty": (-_LARGEST, _LARGEST), "frequency_penalty": (-_LARGEST, _LARGEST),
    "top_k": (-math.inf, math.inf), "repeat_last_n": (-1, math.inf),
}  # fmt: skip


def check(sampling: Sampling, n_vocab: int) -> None:
    """Raise BadRequest for a setting out of range, NaN included."""
    for name, (low, high) in _LIMITS.items():
        value = getattr(sampling, name)
        if not low <= value <= high:
            raise BadRequest(f"{name} is {value}, expected {low} to {high}", param=name)
    for token, bias in sampling.logit_bias:
        if not 0 <= token < n_vocab:
            raise BadRequest(f"logit_bias names token {token}, the vocabulary has {n_vocab}", param="logit_bias")
        if not (abs(bias) <= _LARGEST or bias == -math.inf):
            raise BadRequest(f"logit_bias of token {token} is {bias}", param="logit_bias")


def random_u32(seed: int, index: int) -> int:
    """Number `index` of the sequence `seed`: SplitMix64 (Steele, Lea, Flood, OOPSLA 2014), upper half."""
    z = (seed + (index + 1) * 0x9E3779B97F4A7C15) & _BITS64
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & _BITS64
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & _BITS64
    return (z ^ (z >> 31)) >> 32


class Sampler:
    """Chooses one request's tokens from rows of logits, which are given by their address."""

    def __init__(self, library: Library, request: Request, n_vocab: int, n_ctx: int, scratch: int) -> None:
        """scratch: address of sampling_scratch_bytes(n_vocab, n_vocab, n_vocab) bytes, which samplers may share."""
        settings = request.sampling
        self._library = library
        self._n_vocab = n_vocab
        self._n_drawn = 0
        # Seeds that differ by little must not give shifted copies of one sequence.
        seed = int.from_bytes(os.urandom(8), "little") if settings.seed is None else settings.seed & _BITS64
        self._seed = random_u32(seed, 0) << 32 | random_u32(seed, 1)
        bias = dict(settings.logit_bias)
        self._bias_ids = np.fromiter(bias.keys(), np.int32, len(bias))
        self._bias = np.fromiter(bias.values(), np.float32, len(bias))
        self._window = _window(settings, n_ctx)
        self._record = np.zeros(1, SAMPLING)
        self._address = _address(self._record)
        record = self._record[0]
        for name, value in (
            ("temperature", settings.temperature), ("top_p", settings.top_p), ("min_p", settings.min_p),
            ("repeat", settings.repeat_penalty), ("presence", settings.presence_penalty),
            ("frequency", settings.frequency_penalty), ("top_k", max(0, min(settings.top_k, n_vocab))),
            ("n_bias", len(bias)), ("bias_ids", _address(self._bias_ids)), ("bias", _address(self._bias)),
            ("scratch", scratch),
        ):  # fmt: skip
            record[name] = value
        if self._window:
            record["seen_ids"], record["seen_counts"] = _address(self._window.ids), _address(self._window.counts)
        self._n_top = min(request.top_logprobs or 0, n_vocab)
        self._scored = request.top_logprobs is not None
        self._top_ids, self._top_values = np.zeros(self._n_top, np.int32), np.zeros(self._n_top, np.float32)
        if self._window:
            for token in request.prompt[-len(self._window.ids) :]:
                self._window.add(token)

    def next(self, logits: int, stop_ids: frozenset[int]) -> Token:
        """Choose from the logits f32 (n_vocab,) at this address. Raises ModelFault if that is impossible."""
        if self._window:
            self._record["n_seen"] = self._window.n_seen
        self._record["draw"] = random_u32(self._seed, self._n_drawn)
        self._n_drawn += 1
        id = self._library.sample(logits, self._n_vocab, self._address)
        if id < 0:
            raise ModelFault(_FAULTS[id], hint="the model's file may be damaged")
        if self._window:
            self._window.add(id)
        if not self._scored:
            return Token(id, stop=id in stop_ids)
        logprob, top = self.score(logits, id)
        return Token(id, logprob, top, id in stop_ids)

    def score(self, logits: int, id: int) -> tuple[float, TopLogprobs]:
        """Log-probability of a token before any filter, and the best ones. Raises ModelFault for NaN."""
        logprob = self._library.logprobs(logits, self._n_vocab, id, self._n_top, _address(self._top_ids),
                                         _address(self._top_values))  # fmt: skip
        if math.isnan(logprob):
            raise ModelFault(_FAULTS[SAMPLE_NOT_FINITE], hint="the model's file may be damaged")
        return logprob, tuple(zip(self._top_ids.tolist(), self._top_values.tolist(), strict=True))


_FAULTS = {
    SAMPLE_NOT_FINITE: "the model produced logits that are not finite",
    SAMPLE_NO_TOKEN: "the model and logit_bias left no token to choose: all logits are -inf",
}


def _window(settings: Sampling, n_ctx: int) -> Window | None:
    """What the penalties look at; None if there are none."""
    if settings.repeat_penalty == 1 and not settings.presence_penalty and not settings.frequency_penalty:
        return None
    length = n_ctx if settings.repeat_last_n < 0 else min(settings.repeat_last_n, n_ctx)
    return Window(length) if length else None


def _address(array: np.ndarray) -> int:
    address: int = array.__array_interface__["data"][0]
    return address
