"""What goes into an engine and what comes out: plain values, no behaviour.

Named tuples, because a dataclass costs every start ten times as much and every token three times.

`Engine.submit(Request, sink) -> Handle`; the sink is called with `Token` events in order, then exactly one `Done` or
`Failed`. `Handle.cancel()` may be called from any thread at any time; the sink still gets its one `Done("cancelled")`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

from edged.errors import EdgedError

if TYPE_CHECKING:
    import numpy as np

FinishReason = Literal["stop", "length", "cancelled"]


class Sampling(NamedTuple):
    """Sampler settings, with llama.cpp's defaults; applied in llama.cpp's order: bias, penalties, top-k, top-p,
    min-p, temperature, draw.

    temperature 0 means greedy. top_k 0 and top_p 1 and min_p 0 switch the respective filter off. `seed` None draws a
    fresh seed. Penalties look at the last `repeat_last_n` tokens of prompt and output (-1: all, 0: none).
    """

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    repeat_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repeat_last_n: int = 64
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int | None = None


class Request(NamedTuple):
    """One generation: token ids in, token ids out.

    max_tokens None means up to the end of the context. `stop_ids` end the answer (they are reported as a Token event
    with ``stop=True`` and carry no text). `top_logprobs` None: no log-probabilities; n: the n best per token.
    `deterministic`: use no cached block that differs in rounding from a computed one. `speculate`: guess tokens ahead
    (`draft`), which changes nothing but the time; None: as the engine is set.
    `prompt_logprobs` also scores the prompt (`echo` with `logprobs`): the engine sends one `PromptScores` first.
    """

    prompt: tuple[int, ...]
    max_tokens: int | None = None
    sampling: Sampling = Sampling()
    stop_ids: frozenset[int] = frozenset()
    top_logprobs: int | None = None
    prompt_logprobs: bool = False
    deterministic: bool = False
    speculate: bool | None = None


class Usage(NamedTuple):
    """Token counts and times of one request. Times in seconds. accepted_tokens: of the drafted, those that came."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    queue_s: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    drafted_tokens: int = 0
    accepted_tokens: int = 0


TopLogprobs = tuple[tuple[int, float], ...]


class Token(NamedTuple):
    """One generated token. `stop`: it is one of `Request.stop_ids`, the answer ends before it."""

    id: int
    logprob: float | None = None
    top: TopLogprobs = ()
    stop: bool = False


class PromptScores(NamedTuple):
    """Log-probabilities of prompt tokens 1..n-1 given their predecessors, and the best alternatives at each place."""

    logprobs: tuple[float, ...]
    tops: tuple[TopLogprobs, ...] = ()


class Done(NamedTuple):
    """The request ended well: by a stop id, by its token or context limit, or because it was cancelled."""

    reason: FinishReason
    usage: Usage


class Failed(NamedTuple):
    """The request failed; nothing more comes."""

    error: EdgedError


Event = Token | PromptScores | Done | Failed
Sink = Callable[[Event], None]


class Handle(Protocol):
    """What `submit` returns."""

    def cancel(self) -> None:
        """End this request after the step in progress; idempotent, from any thread.

        A step that computes for no other request is stopped at its next row tile.
        """


class EngineInfo(NamedTuple):
    """Fixed facts of a loaded engine, for limits, `/v1/models` and metrics."""

    model: str
    n_ctx: int
    n_vocab: int
    n_seqs: int
    kernel_level: str = ""
    threads: int = 1


class EngineLike(Protocol):
    """The face shared by the real engine and the scripted stub of the tests."""

    info: EngineInfo

    def submit(self, request: Request, sink: Sink) -> Handle:
        """Queue a request. Raises ContextFull, BadRequest or Busy at once; never blocks."""

    def stats(self) -> dict[str, float]:
        """Counters and gauges: requests, cancelled, failed, tokens, queue depth, KV blocks used and total."""

    def close(self) -> None:
        """Cancel everything, stop the engine thread, release memory. Idempotent."""


class EmbedderInfo(NamedTuple):
    """Fixed facts of a loaded embedding model. n_ctx: most tokens of a text; dim: floats of a vector."""

    model: str
    n_ctx: int
    n_vocab: int
    dim: int
    pooling: str
    kernel_level: str = ""
    threads: int = 1


class Vectors(NamedTuple):
    """The texts of one request as vectors: f32 (texts, dim), in their order, rows of length 1."""

    vectors: np.ndarray


VectorSink = Callable[[Vectors | Failed], None]


class EmbedderLike(Protocol):
    """The face shared by the real embedder and the stub of the tests."""

    info: EmbedderInfo

    def check(self, texts: Sequence[Sequence[int]]) -> None:
        """Raises BadRequest or ContextFull for token ids that have no vector, naming the index of the text."""

    def submit(self, texts: Sequence[Sequence[int]], sink: VectorSink, *, background: bool = False) -> Handle:
        """Queue texts given as token ids. Raises as `check`, Busy or NotReady at once; never blocks.

        The sink is called once, in the engine's thread, and must not block. A cancelled request gets Failed(NotReady).
        background: this work gives way to all other.
        """

    def embed(self, texts: Sequence[Sequence[int]], *, background: bool = False) -> np.ndarray:
        """Submit and wait: f32 (texts, dim). Raises what `submit` does, and ModelFault naming the index of a text."""

    def stats(self) -> dict[str, float]:
        """Counters and gauges: requests, texts, tokens, steps, waiting."""

    def close(self) -> None:
        """Fail what waits, release memory. Idempotent."""
