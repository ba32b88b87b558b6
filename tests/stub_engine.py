"""An engine, a tokenizer and a model without weights, with the faces of the real ones.

`StubEngine` runs sequences in slots on a thread of its own, one token a step, from a script: each item of a script is a
token id, or an EdgedError that fails the request there. `hold()` stops it before the next step and `step(n)` lets n
steps pass, so that tests wait for events and never for time.

    engine = StubEngine([72, 105, EOS])                       # every request gets "Hi"
    engine = StubEngine(lambda request: itertools.repeat(65)) # never ends by itself

`StubEmbedder` makes of each text a vector that depends on its ids alone, one request a step; it has the same levers.
"""

from __future__ import annotations

import itertools
import math
import re
import threading
from collections import abc, deque
from collections.abc import Callable, Iterable, Iterator
from queue import SimpleQueue
from typing import Any

import numpy as np

from edged.api.context import LoadedEmbedder, LoadedModel
from edged.engine.request import (
    Done,
    EmbedderInfo,
    EngineInfo,
    Event,
    Failed,
    FinishReason,
    PromptScores,
    Request,
    Sink,
    Token,
    Usage,
    Vectors,
    VectorSink,
)
from edged.errors import BadRequest, Busy, ContextFull, EdgedError, ModelFault, NotReady
from edged.tokenizers.stream import TextStream

Script = Iterable[int | EdgedError] | Callable[[Request], Iterable[int | EdgedError]]
Post = Callable[[list[tuple[Sink, Event]]], None]
Texts = abc.Sequence[abc.Sequence[int]]

IM_START, IM_END, BOS = 256, 257, 258
EOS = IM_END
FIRST_WORD = 300
SPECIAL = {"<|im_start|>": IM_START, "<|im_end|>": IM_END, "<s>": BOS}


class StubTokenizer:
    """Ids 0-255 are bytes, 256-258 control tokens, from FIRST_WORD on the words given, which only scripts use."""

    bos_id = BOS
    eos_id = EOS
    eog_ids = frozenset({EOS})
    longest = 1 << 16

    def __init__(self, words: Iterable[str | bytes] = ()) -> None:
        self._bytes = {i: bytes([i]) for i in range(256)}
        self._bytes |= {FIRST_WORD + i: w.encode() if isinstance(w, str) else w for i, w in enumerate(words)}
        self._names = {id: name.encode() for name, id in SPECIAL.items()}
        self.n_vocab = FIRST_WORD + 100

    def word(self, text: str) -> int:
        """The id of a word."""
        return next(id for id, raw in self._bytes.items() if raw == text.encode() and id >= FIRST_WORD)

    def encode(self, text: str | bytes, *, special: bool = False, add_special: bool = False) -> list[int]:
        raw = text.encode() if isinstance(text, str) else text
        ids = [BOS] if add_special else []
        for piece in re.split(rb"(<\|im_start\|>|<\|im_end\|>|<s>)", raw) if special else [raw]:
            name = piece.decode("utf-8", "replace")
            ids += [SPECIAL[name]] if special and name in SPECIAL else piece
        return ids

    def decode(self, ids: Iterable[int], *, special: bool = False) -> str:
        return b"".join(self._shown(id, special) for id in ids).decode("utf-8", "replace")

    def token_bytes(self, id: int) -> bytes:
        return self._bytes.get(id) or self._names.get(id, b"")

    def token_id(self, text: str) -> int | None:
        return SPECIAL.get(text)

    def stream(self, stops: Iterable[str] = (), special: bool = False) -> TextStream:
        return TextStream(lambda id: self._shown(id, special), stops)

    def _shown(self, id: int, special: bool) -> bytes:
        return self._bytes.get(id, b"") or (self._names.get(id, b"") if special else b"")


class StubChat:
    """The ChatML template, with the text between control tokens encoded literally."""

    def __init__(self, tokenizer: StubTokenizer) -> None:
        self._tokenizer = tokenizer

    def render(self, messages: list[dict[str, str]], *, tools: Any = None, add_generation_prompt: bool = True
               ) -> list[int]:
        ids = []
        for message in messages:
            ids += [IM_START, *self._tokenizer.encode(f"{message['role']}\n{message['content']}"), IM_END, 10]
        return ids + ([IM_START, *self._tokenizer.encode("assistant\n")] if add_generation_prompt else [])


class Sequence:
    """One request in the engine; also its Handle."""

    def __init__(self, engine: StubEngine, request: Request, sink: Sink, tokens: Iterator[int | EdgedError]) -> None:
        self.request = request
        self.sink = sink
        self.tokens = tokens
        self.n_tokens = 0
        self.cancelled = False
        self._engine = engine

    def cancel(self) -> None:
        self.cancelled = True
        self._engine.wake()


class StubEngine:
    """See the module. `slots` sequences run at once, `queue` more may wait; `delay` seconds pass before each step."""

    def __init__(self, script: Script = (72, 105, EOS), *, post: Post | None = None, n_ctx: int = 4096, slots: int = 4,
                 queue: int = 64, delay: float = 0.0, logprob: float = -0.5) -> None:
        self.info = EngineInfo("stub", n_ctx, FIRST_WORD + 100, slots, "stub")
        self.requests: list[Request] = []
        self.started: list[Request] = []
        self._script = script
        self._post = post or (lambda batch: [sink(event) for sink, event in batch] and None)
        self._queue_limit = queue
        self._delay = delay
        self._logprob = logprob
        self._waiting: deque[Sequence] = deque()
        self._running: list[Sequence] = []
        self._counters = dict.fromkeys(
            ("requests_total", "cancelled_total", "failed_total", "tokens_total", "steps_total"), 0
        )
        self._allowed = math.inf  # steps
        self._wedged = False
        self._closed = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._work, name="stub-engine", daemon=True)
        self._thread.start()

    # the face of an engine

    def submit(self, request: Request, sink: Sink) -> Sequence:
        n_ctx = self.info.n_ctx
        if not request.prompt:
            raise BadRequest("the prompt has no tokens", param="prompt")
        if len(request.prompt) >= n_ctx:
            raise ContextFull(f"the prompt has {len(request.prompt)} tokens; the context holds {n_ctx}")
        script = self._script(request) if callable(self._script) else self._script
        sequence = Sequence(self, request, sink, iter(script))
        with self._changed:
            if len(self._running) == self.info.n_seqs and len(self._waiting) >= self._queue_limit:
                raise Busy(f"{len(self._waiting)} requests are waiting; engine.queue allows {self._queue_limit}")
            self.requests.append(request)
            self._counters["requests_total"] += 1
            self._waiting.append(sequence)
            self._admit()
            self._changed.notify_all()
        return sequence

    def stats(self) -> dict[str, float]:
        with self._changed:
            return {**self._counters, "running": len(self._running), "waiting": len(self._waiting)}

    def close(self) -> None:
        with self._changed:
            self._closed = True
            for sequence in [*self._running, *self._waiting]:
                sequence.cancelled = True
            self._changed.notify_all()
        self._thread.join()

    # what tests steer

    def hold(self) -> None:
        """Make no step until told to."""
        with self._changed:
            self._allowed = 0

    def step(self, n: float = math.inf) -> None:
        """Allow n more steps."""
        with self._changed:
            self._allowed += n
            self._changed.notify_all()

    def wedge(self) -> None:
        """Stop answering for good, even to cancel, as a hung kernel would."""
        with self._changed:
            self._wedged = True

    def wait(self, condition: Callable[[dict[str, float]], bool], patience: float = 20.0) -> dict[str, float]:
        """Wait until the stats fulfil the condition; returns them."""
        with self._changed:
            stats = lambda: {**self._counters, "running": len(self._running), "waiting": len(self._waiting)}  # noqa: E731
            assert self._changed.wait_for(lambda: condition(stats()), patience), stats()
            return stats()

    def wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    # its thread

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(self._has_work)
                if self._closed and not self._running and not self._waiting:
                    return
                if self._delay:
                    self._changed.wait_for(lambda: self._closed or self._any_cancelled(), self._delay)
                batch = self._step()
            if batch:
                self._post(batch)

    def _has_work(self) -> bool:
        if self._wedged:
            return False
        return self._closed or self._any_cancelled() or bool(self._running and self._allowed > 0)

    def _any_cancelled(self) -> bool:
        return any(sequence.cancelled for sequence in [*self._running, *self._waiting])

    def _admit(self) -> None:
        while self._waiting and len(self._running) < self.info.n_seqs:
            sequence = self._waiting.popleft()
            self.started.append(sequence.request)
            self._running.append(sequence)

    def _step(self) -> list[tuple[Sink, Event]]:
        """One token for every running sequence, or the end of those that were cancelled."""
        batch: list[tuple[Sink, Event]] = []
        self._counters["steps_total"] += 1
        for sequence in [s for s in [*self._running, *self._waiting] if s.cancelled]:
            self._counters["cancelled_total"] += 1
            self._leave(sequence)
            batch.append((sequence.sink, self._done(sequence, "cancelled")))
        if not batch and self._allowed > 0:
            self._allowed -= 1
            for sequence in list(self._running):
                batch += [(sequence.sink, event) for event in self._advance(sequence)]
        self._admit()
        self._changed.notify_all()
        return batch

    def _advance(self, sequence: Sequence) -> Iterator[Event]:
        request = sequence.request
        if sequence.n_tokens == 0 and request.prompt_logprobs:
            top = self._top(request.top_logprobs, 65)
            yield PromptScores((self._logprob,) * (len(request.prompt) - 1), (top,) * (len(request.prompt) - 1))
        limit = self.info.n_ctx - len(request.prompt)
        limit = limit if request.max_tokens is None else min(limit, request.max_tokens)
        token = next(sequence.tokens, EOS) if sequence.n_tokens < limit else None
        if isinstance(token, EdgedError):
            self._counters["failed_total"] += 1
            self._leave(sequence)
            yield Failed(token)
            return
        stop = token in request.stop_ids
        if token is not None:
            sequence.n_tokens += 1
            self._counters["tokens_total"] += 1
            scored = request.top_logprobs is not None
            yield Token(token, self._logprob if scored else None, self._top(request.top_logprobs, token), stop)
        if stop or sequence.n_tokens >= limit:
            self._leave(sequence)
            yield self._done(sequence, "stop" if stop else "length")

    def _top(self, n: int | None, token: int) -> tuple[tuple[int, float], ...]:
        return tuple((token + i, self._logprob - i) for i in range(n or 0))

    def _leave(self, sequence: Sequence) -> None:
        (self._running if sequence in self._running else self._waiting).remove(sequence)

    def _done(self, sequence: Sequence, reason: FinishReason) -> Done:
        return Done(reason, Usage(len(sequence.request.prompt), sequence.n_tokens))


def stub_model(engine: StubEngine, words: Iterable[str | bytes] = (), **extra: Any) -> LoadedModel:
    """A LoadedModel around a stub."""
    tokenizer: Any = StubTokenizer(words)
    chat: Any = StubChat(tokenizer)
    return LoadedModel("stub", engine, tokenizer, chat, created=1, close=engine.close, **extra)


def endless(*ids: int) -> Callable[[Request], Iterable[int]]:
    """A script that never ends by itself."""
    return lambda request: itertools.cycle(ids)


class VectorRequest:
    """Texts in the embedder; also their Handle."""

    def __init__(self, embedder: StubEmbedder, texts: list[list[int]], sink: VectorSink, background: bool) -> None:
        self.texts = texts
        self.sink = sink
        self.background = background
        self.cancelled = False
        self._embedder = embedder

    def cancel(self) -> None:
        self.cancelled = True
        self._embedder.wake()


class StubEmbedder:
    """See the module. `vector` makes the vector of a text; one that is not finite fails its request, by its index."""

    def __init__(self, vector: Callable[[list[int]], np.ndarray] | None = None, *, n_ctx: int = 64, dim: int = 8,
                 pooling: str = "mean", queue: int = 64) -> None:
        self.info = EmbedderInfo("stub", n_ctx, FIRST_WORD + 100, dim, pooling, "stub")
        self.requests: list[VectorRequest] = []
        self._vector = vector or self.vector
        self._queue_limit = queue
        self._waiting: deque[VectorRequest] = deque()
        self._counters = dict.fromkeys(
            ("requests_total", "cancelled_total", "failed_total", "texts_total", "tokens_total", "steps_total"), 0
        )
        self._allowed = math.inf  # steps
        self._closed = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._work, name="stub-embedder", daemon=True)
        self._thread.start()

    def vector(self, ids: list[int]) -> np.ndarray:
        """f32 (dim,) of length 1: always the same for the same ids."""
        drawn = np.random.default_rng(ids).standard_normal(self.info.dim)
        return (drawn / np.linalg.norm(drawn)).astype(np.float32)

    # the face of an embedder

    def check(self, texts: Texts) -> None:
        for i, text in enumerate(texts):
            if not text:
                raise BadRequest(f"text {i} has no tokens", param="input")
            if len(text) > self.info.n_ctx:
                raise ContextFull(f"text {i} has {len(text)} tokens; the model takes {self.info.n_ctx}", param="input")

    def submit(self, texts: Texts, sink: VectorSink, *, background: bool = False) -> VectorRequest:
        self.check(texts)
        request = VectorRequest(self, [list(text) for text in texts], sink, background)
        with self._changed:
            if self._closed:
                raise NotReady("the embedder is closed")
            if len(self._waiting) >= self._queue_limit:
                raise Busy(f"{len(self._waiting)} requests are waiting; engine.queue allows {self._queue_limit}")
            self.requests.append(request)
            self._counters["requests_total"] += 1
            self._waiting.append(request)
            self._changed.notify_all()
        return request

    def embed(self, texts: Texts, *, background: bool = False) -> np.ndarray:
        made: SimpleQueue[Vectors | Failed] = SimpleQueue()
        self.submit(texts, made.put, background=background)
        event = made.get()
        if isinstance(event, Failed):
            raise event.error
        return event.vectors

    def stats(self) -> dict[str, float]:
        with self._changed:
            return {**self._counters, "waiting": len(self._waiting)}

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join()

    # what tests steer

    def hold(self) -> None:
        """Compute nothing until told to."""
        with self._changed:
            self._allowed = 0

    def step(self, n: float = math.inf) -> None:
        """Allow n more requests."""
        with self._changed:
            self._allowed += n
            self._changed.notify_all()

    def wait(self, condition: Callable[[dict[str, float]], bool], patience: float = 20.0) -> dict[str, float]:
        """Wait until the stats fulfil the condition; returns them."""
        with self._changed:
            stats = lambda: {**self._counters, "waiting": len(self._waiting)}  # noqa: E731
            assert self._changed.wait_for(lambda: condition(stats()), patience), stats()
            return stats()

    def wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    # its thread

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(self._has_work)
                if self._closed and not self._waiting:
                    return
                request = next((r for r in self._waiting if self._closed or r.cancelled), self._waiting[0])
                event = self._answer(request)
                self._waiting.remove(request)
                self._changed.notify_all()
            request.sink(event)

    def _has_work(self) -> bool:
        if self._closed or any(request.cancelled for request in self._waiting):
            return True
        return bool(self._waiting) and self._allowed > 0

    def _answer(self, request: VectorRequest) -> Vectors | Failed:
        if request.cancelled or self._closed:
            self._counters["cancelled_total"] += 1
            return Failed(NotReady("the request was cancelled"))
        self._allowed -= 1
        self._counters["steps_total"] += 1
        self._counters["texts_total"] += len(request.texts)
        self._counters["tokens_total"] += sum(map(len, request.texts))
        vectors = np.stack([self._vector(text) for text in request.texts]).astype(np.float32)
        bad = np.flatnonzero(~np.isfinite(vectors).all(1))
        if len(bad):
            self._counters["failed_total"] += 1
            return Failed(ModelFault(f"the model gave no finite vector for the text with index {bad[0]}"))
        return Vectors(vectors)


def stub_embedding(embedder: StubEmbedder, words: Iterable[str | bytes] = (), **extra: Any) -> LoadedEmbedder:
    """A LoadedEmbedder around a stub."""
    tokenizer: Any = StubTokenizer(words)
    return LoadedEmbedder("stub-embedding", embedder, tokenizer, "0" * 64,
                          **{"created": 2, "close": embedder.close, **extra})
