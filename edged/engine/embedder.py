"""Texts to vectors: by an encoder, or by a model that otherwise generates, whose last hidden states are pooled.

    embedder = embedder.open(config, model)
    embedder.embed([ids, ids, ...])     # f32 (n, dim), rows of length 1

Several texts share a step. An encoder takes a text whole; a decoder takes it in pieces if it is longer than a step. No
row's numbers depend on its company, and rows are summed in fixed pieces, so a text has the same vector, bit for bit,
alone and in any batch.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import cast

import numpy as np

from edged import models
from edged.config import EmbeddingConfig, EngineConfig
from edged.engine.batch import Rows
from edged.engine.machine import INGEST, QUERY, Machine
from edged.engine.request import EmbedderInfo, Failed, Vectors, VectorSink
from edged.engine.runner import Runner, Shape
from edged.errors import BadConfig, BadRequest, Busy, ContextFull, EdgedError, ModelFault, NotReady
from edged.gguf import Model
from edged.models.blocks import Graph, Pooling, hidden_states

MAX_ROWS = 512  # tokens of a step, or one text of the longest kind
MAX_TEXTS = 32  # of a step
BRIEF_ROWS = 128  # tokens of a step while other work waits; of an encoder, whole texts, at least one
DEFAULT_CONTEXT = 2048  # where the model's own is longer
PIECE = 32  # rows that are summed at a time

Ids = Sequence[int]

log = logging.getLogger(__name__)


class Job:
    """A request; also its Handle."""

    def __init__(self, texts: Sequence[Ids], sink: VectorSink, dim: int, background: bool,
                 interrupt: Callable[[], None]) -> None:
        self.texts = [_Text(self, i, ids, dim) for i, ids in enumerate(texts)]
        self.sink = sink
        self.background = background
        self.out = np.empty((len(texts), dim), np.float32)
        self.n_left = len(texts)
        self.over = False
        self.cancelled = False
        self._interrupt = interrupt

    def cancel(self) -> None:
        self.cancelled = True
        self._interrupt()


class _Text:
    """total: f64 (dim,), the sum of the rows fed so far, or the one row that counts."""

    __slots__ = ("ids", "index", "job", "n_fed", "slot", "total")

    def __init__(self, job: Job, index: int, ids: Ids, dim: int) -> None:
        self.job, self.index, self.ids = job, index, ids
        self.n_fed = 0
        self.slot: int | None = None
        self.total = np.zeros(dim)

    @property
    def fed(self) -> bool:
        return self.n_fed == len(self.ids)

    @property
    def over(self) -> bool:
        """Whether nothing more is to be computed for it."""
        return self.fed or self.job.over


class Embedder:
    """See `EmbedderLike`. Made by `open`."""

    def __init__(self, info: EmbedderInfo, runner: Runner, pooling: Pooling, whole: bool, queue: int) -> None:
        """whole: a text's tokens must be in one step. queue: requests that may wait."""
        self.info = info
        self._runner = runner
        self._pooling = pooling
        self._whole = whole
        self._most = queue + 1
        self._changed = runner.machine.changed  # guards what follows
        self._jobs: set[Job] = set()
        self._closed = False
        self._computing: set[Job] = set()
        self._counts = dict.fromkeys(
            ("requests_total", "texts_total", "tokens_total", "steps_total", "cancelled_total", "failed_total"), 0
        )
        self._lanes = (_Lane(self, QUERY), _Lane(self, INGEST))
        for lane in self._lanes:
            runner.machine.add(lane)

    # -- from any thread -----------------------------------------------------------------------------------------------

    def check(self, texts: Sequence[Ids]) -> None:
        """See `EmbedderLike`."""
        n_ctx, n_vocab = self.info.n_ctx, self.info.n_vocab
        for i, ids in enumerate(texts):
            if not len(ids):
                raise BadRequest(f"text {i} has no tokens", param=f"input[{i}]")
            if len(ids) > n_ctx:
                raise ContextFull(f"text {i} has {len(ids)} tokens, the model takes {n_ctx}", param=f"input[{i}]",
                                  hint="split the text")  # fmt: skip
            if min(ids) < 0 or max(ids) >= n_vocab:
                raise BadRequest(f"text {i} has tokens outside 0..{n_vocab - 1}", param=f"input[{i}]")

    def submit(self, texts: Sequence[Ids], sink: VectorSink, *, background: bool = False) -> Job:
        """See `EmbedderLike`."""
        self.check(texts)
        job = Job(texts, sink, self.info.dim, background, self._interrupt)
        if not texts:
            sink(Vectors(job.out))
            return job
        with self._changed:
            if self._closed:
                raise NotReady("the embedder is closed")
            n_jobs = sum(each.background is background for each in self._jobs)
            if n_jobs >= self._most:
                raise Busy(f"{n_jobs} requests for vectors are running or waiting, as many as are allowed",
                           hint="try again later, or raise engine.queue")
            self._jobs.add(job)
            self._counts["requests_total"] += 1
            self._lanes[background].texts.extend(job.texts)
            self._changed.notify_all()
        return job

    def embed(self, texts: Sequence[Ids], *, background: bool = False) -> np.ndarray:
        """See `EmbedderLike`."""
        came: SimpleQueue[Vectors | Failed] = SimpleQueue()
        self.submit(texts, came.put, background=background)
        event = came.get()
        if isinstance(event, Failed):
            raise event.error
        return event.vectors

    def stats(self) -> dict[str, float]:
        """Counters (`_total`) and gauges. `waiting`: texts."""
        with self._changed:
            waiting = sum(job.n_left for job in self._jobs)
        return {**self._counts, "waiting": waiting, "progress": self._runner.program.progress}

    def close(self) -> None:
        """Fail what waits. Idempotent."""
        self._closed = True
        if not self._runner.machine.waited_for:
            self._drop_cancelled()
        self._runner.close(self._lanes, lambda: not self._jobs and not self._computing)

    def _interrupt(self) -> None:
        """End the step in progress if nobody wants it any more."""
        with self._changed:
            unwanted = bool(self._computing) and all(job.cancelled for job in self._computing)
            self._changed.notify_all()
        if unwanted:
            self._runner.program.stop()

    # -- in the engine's thread ----------------------------------------------------------------------------------------

    def _step(self, lane: _Lane, brief: bool) -> None:
        """Compute the lane's first texts, as many as a step takes."""
        self._drop_cancelled()
        with self._changed:
            chosen, rows = self._choose(lane, BRIEF_ROWS if brief else self._runner.sizes.max_prompt)
            self._computing = {text.job for text in chosen}
        if not chosen:
            return
        try:
            completed = self._runner.step([], rows)
        finally:
            with self._changed:
                self._computing = set()
                self._changed.notify_all()
        if not completed:
            return  # what is still wanted is computed anew
        self._counts["steps_total"] += 1
        start = self._runner.sizes.max_decode
        for text, fed in zip(chosen, rows, strict=True):
            n = len(fed.tokens)
            self._add(text, self._runner.logits[start : start + n, : self.info.dim])
            self._counts["tokens_total"] += n
            start += n
            if text.fed:
                self._finish(text)
        with self._changed:
            lane.forget()

    def _choose(self, lane: _Lane, room: int) -> tuple[list[_Text], list[Rows]]:
        """The texts of the next step, and of each the tokens that are fed: at most `room`, or one whole text."""
        chosen: list[_Text] = []
        rows: list[Rows] = []
        lane.forget()
        for text in lane.texts:
            if text.over:
                continue
            n = len(text.ids) - text.n_fed
            if not self._whole and n > room:
                n = room // PIECE * PIECE
            if not n or (n > room and chosen) or not self._extend(text, n):
                break
            chosen.append(text)
            rows.append(Rows(text.ids[text.n_fed : text.n_fed + n], text.n_fed, text.slot or 0, 0))
            room -= n
            if room <= 0 or len(chosen) == MAX_TEXTS:
                break
        return chosen, rows

    def _extend(self, text: _Text, n: int) -> bool:
        """Room in the cache for the next n tokens."""
        cache = self._runner.cache
        if text.slot is None:
            text.slot = cache.open_slot(n)
        return text.slot is not None and cache.extend(text.slot, text.n_fed, text.n_fed + n)

    def _add(self, text: _Text, hidden: np.ndarray) -> None:
        """Take in the rows of the tokens just fed. hidden: f32 (n, dim)."""
        if self._pooling == "mean":
            for i in range(0, len(hidden), PIECE):
                text.total += hidden[i : i + PIECE].sum(0, dtype=np.float64)
        elif self._pooling == "last":
            text.total[:] = hidden[-1]
        elif text.n_fed == 0:
            text.total[:] = hidden[0]
        text.n_fed += len(hidden)

    def _finish(self, text: _Text) -> None:
        """All of the text is computed. A vector that is none fails its request alone."""
        job = text.job
        if job.over:
            return
        self._close_slot(text)
        with np.errstate(all="ignore"):
            length = float(np.sqrt(text.total @ text.total))
            job.out[text.index] = text.total / (length or 1.0)
        if not np.isfinite(job.out[text.index]).all():
            self._counts["failed_total"] += 1
            self._end(job, Failed(ModelFault(f"the model gives text {text.index} a vector that holds no numbers")))
            return
        self._counts["texts_total"] += 1
        job.n_left -= 1
        if not job.n_left:
            self._end(job, Vectors(job.out))

    def _end(self, job: Job, event: Vectors | Failed) -> None:
        """Tell the job's sink, and forget what is left of it. The lanes pass over its texts from now on."""
        with self._changed:
            job.over = True
        for text in job.texts:
            self._close_slot(text)
        try:
            job.sink(event)
        except Exception:  # one reader's fault is nobody else's
            log.exception("vectors could not be handed over")
        with self._changed:
            self._jobs.discard(job)
            self._changed.notify_all()

    def _close_slot(self, text: _Text) -> None:
        if text.slot is not None:
            self._runner.cache.close_slot(text.slot)
            text.slot = None

    def _drop_cancelled(self) -> None:
        with self._changed:
            gone = [job for job in self._jobs if job.cancelled or self._closed]
        for job in gone:
            self._counts["cancelled_total"] += 1
            why = "the embedder is closing" if self._closed else "the request was cancelled"
            self._end(job, Failed(NotReady(why)))

    def _fail(self, error: Exception) -> None:
        with self._changed:
            jobs = list(self._jobs)
        for job in jobs:
            self._counts["failed_total"] += 1
            self._end(job, Failed(EdgedError(f"a step of the embedder failed: {error!r}")))


class _Lane:
    """One of an embedder's queues as a Lane of the machine."""

    def __init__(self, embedder: Embedder, rank: int) -> None:
        self.rank = rank
        self.texts: deque[_Text] = deque()
        self._embedder = embedder

    def forget(self) -> None:
        """Let go what is over at the front; what is over behind it is passed over until it gets there."""
        while self.texts and self.texts[0].over:
            self.texts.popleft()

    def ready(self) -> bool:
        self.forget()
        return bool(self.texts)

    def step(self, brief: bool = False) -> None:
        self._embedder._step(self, brief)

    def fail(self, error: Exception) -> None:
        self._embedder._fail(error)

    def rest(self) -> None:
        self._embedder._runner.rest()


def open(config: EngineConfig, model: Model, *, embedding: EmbeddingConfig | None = None,
         machine: Machine | None = None) -> Embedder:
    """For an open model, which must stay open as long.

    machine: to share with other models; its owner starts and closes it. Raises BadConfig, BadModel, BadKernels or
    LimitTooLow.
    """
    embedding = embedding or EmbeddingConfig()
    graph = _graph(embedding, model)
    assert graph.pooling is not None
    whole = graph.bidirectional
    if embedding.context > graph.n_ctx_train:
        raise BadConfig(f"embedding.context is {embedding.context}, but {model.name} takes {graph.n_ctx_train} tokens")
    n_ctx = embedding.context or min(graph.n_ctx_train, DEFAULT_CONTEXT)
    rows = max(MAX_ROWS, n_ctx) if whole else MAX_ROWS
    own = machine is None
    machine = machine or Machine(config)
    try:
        # a text that is fed in pieces may wait with its blocks while those of the other lane are computed
        n_tokens = 2 * max(rows, n_ctx) + MAX_TEXTS * 32
        runner = Runner(machine, model, graph, Shape(n_ctx, 0, rows, MAX_TEXTS + 1, n_tokens))
        info = EmbedderInfo(model.name, n_ctx, graph.n_vocab, graph.logits.width, graph.pooling,
                            machine.library.level.name, machine.threads)  # fmt: skip
        embedder = Embedder(info, runner, graph.pooling, whole, config.queue)
    except BaseException:
        if own:
            machine.close()
        raise
    if own:
        runner.at_close(machine.close)
        machine.start()
    return embedder


def _graph(config: EmbeddingConfig, model: Model) -> Graph:
    """The graph whose output is pooled, with its pooling."""
    graph = models.graph(model.meta, model.tensors)
    asked = cast("Pooling | None", config.pooling or None)  # one of its choices
    pooling = asked or graph.pooling or models.pooling(model.meta)
    if pooling is None:
        pooling = "mean"
        log.warning("%s does not say how its vectors are pooled: embedding.pooling is mean", model.name)
    return hidden_states(graph, pooling)
