"""Texts to vectors, with an encoder.

    embedder = embedder.open(config, model)
    embedder.embed([ids, ids, ...])     # f32 (n, dim), rows of length 1

Several texts share a step, each with all its tokens; since no row's numbers depend on its company, a text has the same
vector, bit for bit, alone and in any batch. Calls from several threads take turns step by step.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

import numpy as np

from edged import models
from edged.config import EngineConfig
from edged.engine.batch import Batch, Rows
from edged.engine.kvcache import KVCache
from edged.engine.plan import Plan, Sizes, make_plan
from edged.engine.threads import worker_count
from edged.errors import BadModel, BadRequest, ContextFull, NotReady
from edged.gguf import Model
from edged.kernels import load
from edged.kernels.program import Program
from edged.models.blocks import Graph, Pooling

MAX_ROWS = 512  # tokens of a step, or one text of the longest kind
MAX_TEXTS = 32  # of a step

Ids = Sequence[int]


class Embedder:
    """n_ctx: most tokens of a text; dim: floats of a vector."""

    def __init__(self, graph: Graph, plan: Plan, cache: KVCache, batch: Batch, program: Program, sizes: Sizes) -> None:
        assert graph.pooling is not None
        self.n_ctx, self.n_vocab, self.dim = sizes.n_ctx, graph.n_vocab, graph.logits.width
        self.pooling: Pooling = graph.pooling
        self._max_rows = sizes.max_prompt
        self._hidden = plan.logits[sizes.max_decode :, : self.dim]
        self._batch = batch
        self._program = program
        self._owned = plan, cache  # what the op table's addresses lead to
        self._turn = threading.Lock()
        self._closed = False

    def check(self, text: Ids) -> None:
        """Raises BadRequest or ContextFull for token ids that have no vector."""
        if not text:
            raise BadRequest("the text has no tokens", param="input")
        if len(text) > self.n_ctx:
            raise ContextFull(f"the text has {len(text)} tokens, the model takes {self.n_ctx}", param="input",
                              hint="split the text")  # fmt: skip
        if min(text) < 0 or max(text) >= self.n_vocab:
            raise BadRequest(f"the text has tokens outside 0..{self.n_vocab - 1}", param="input")

    def embed(self, texts: Sequence[Ids]) -> np.ndarray:
        """f32 (texts, dim), in the order given. Nothing is computed if one of them is refused, as by `check`."""
        for text in texts:
            self.check(text)
        out = np.empty((len(texts), self.dim), np.float32)
        for chosen in self._steps(texts):
            with self._turn:
                if self._closed:
                    raise NotReady("the embedder is closed")
                self._batch.fill([], [Rows(texts[i], 0, slot, 0) for slot, i in enumerate(chosen)])
                if not self._program.step(self._batch.state):
                    raise NotReady("the embedder is closing")
                start = 0
                for i in chosen:
                    out[i] = self._pool(self._hidden[start : start + len(texts[i])])
                    start += len(texts[i])
        return out

    def close(self) -> None:
        """End the step in progress and the threads. Idempotent."""
        self._closed = True
        self._program.stop()
        with self._turn:
            self._program.close()

    def _steps(self, texts: Sequence[Ids]) -> Iterator[list[int]]:
        """Indices of the texts of each step, filled in the order given."""
        chosen: list[int] = []
        n_rows = 0
        for i, text in enumerate(texts):
            if chosen and (n_rows + len(text) > self._max_rows or len(chosen) == MAX_TEXTS):
                yield chosen
                chosen, n_rows = [], 0
            chosen.append(i)
            n_rows += len(text)
        if chosen:
            yield chosen

    def _pool(self, hidden: np.ndarray) -> np.ndarray:
        """One vector of length 1 for the rows of a text. hidden: f32 (tokens, dim)."""
        if self.pooling == "mean":
            pooled = hidden.mean(0, dtype=np.float64)
        else:
            pooled = hidden[0 if self.pooling == "cls" else -1].astype(np.float64)
        vector: np.ndarray = pooled / (np.sqrt(pooled @ pooled) or 1.0)
        return vector


def open(config: EngineConfig, model: Model) -> Embedder:
    """For an open model, which must stay open as long. Raises BadModel, BadKernels or LimitTooLow."""
    graph = models.graph(model.meta, model.tensors)
    if graph.pooling is None:
        raise BadModel(f"{model.name} is no embedding model", hint="edged pull all-minilm-l6-v2")
    n_ctx = min(config.context, graph.n_ctx_train) if config.context else graph.n_ctx_train
    library = load.open(config.kernel_level or None)
    sizes = Sizes(0, -(-max(MAX_ROWS, n_ctx) // 32) * 32, n_ctx, library.lanes)
    cache = KVCache(graph.groups, n_ctx, MAX_TEXTS, MAX_TEXTS * -(-n_ctx // 32) * 32, sizes.max_prompt, 0)
    for pool in cache.pools:
        for slot in range(MAX_TEXTS):
            pool.take(slot, n_ctx)
    plan = make_plan(graph, model.tensors, cache, sizes)
    program = Program(library, plan.ops, config.threads or worker_count())
    return Embedder(graph, plan, cache, Batch(sizes, (), ()), program, sizes)
