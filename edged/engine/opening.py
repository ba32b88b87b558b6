"""Puts an engine together for a model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from edged import models
from edged.config import EngineConfig
from edged.engine.engine import Engine, Pace, Post
from edged.engine.kvcache import KVCache
from edged.engine.machine import Machine
from edged.engine.request import EngineInfo
from edged.engine.runner import Runner, Shape
from edged.errors import BadConfig, BadModel
from edged.gguf import Model
from edged.models.blocks import Graph

DEFAULT_CONTEXT = 8192  # where the model's own is longer
DEFAULT_ROWS = 256  # prompt rows of a step: more of them gain nothing and take memory
SPARE_DECODE = 8  # decode rows beyond one per sequence, for those that catch up and for scored prompts


def open_engine(config: EngineConfig, model: Model, post: Post | None, thread: bool, machine: Machine | None) -> Engine:
    """See `edged.engine.open`."""
    graph = models.graph(model.meta, model.tensors)
    if graph.pooling is not None:
        raise BadModel(f"{model.name} makes embeddings, no text",
                       hint="name it in embedding.model (or use edged embed), or take another model")
    n_ctx = config.context or min(graph.n_ctx_train, DEFAULT_CONTEXT)
    _warn(graph, n_ctx)
    n_tokens = config.kv_tokens or 2 * n_ctx
    if n_tokens < n_ctx:
        raise BadConfig(f"engine.kv_tokens is {n_tokens}, but one context takes {n_ctx}",
                        hint="raise engine.kv_tokens or lower engine.context")
    rows = config.prefill_chunk or DEFAULT_ROWS
    own = machine is None
    machine = machine or Machine(config)
    try:
        runner = Runner(machine, model, graph, Shape(n_ctx, config.max_seqs + SPARE_DECODE, rows, config.max_seqs,
                                                     n_tokens, config.prefix_cache))  # fmt: skip
        info = EngineInfo(model.name, n_ctx, graph.n_vocab, config.max_seqs, machine.library.level.name,
                          machine.threads)  # fmt: skip
        engine = Engine(info, runner, Pace(rows, fixed=config.prefill_chunk > 0), config.queue, config.speculate, post)
    except BaseException:
        if own:
            machine.close()
        raise
    if config.prompt_cache:
        runner.at_close(_keep_on_disk(config.prompt_cache, model, machine.library.path, runner.cache))
    if own:
        runner.at_close(machine.close)
        if thread:
            machine.start()
    return engine


def _keep_on_disk(path: str, model: Model, kernels: str, cache: KVCache) -> Callable[[], None]:
    """Read the prompt cache; what writes it."""
    from edged.engine import promptfile  # only where it is wanted

    promptfile.check(Path(path))
    mark = promptfile.fingerprint(model, kernels, cache)
    promptfile.read(Path(path), mark, cache)
    return lambda: promptfile.write(Path(path), mark, cache)


def _warn(graph: Graph, n_ctx: int) -> None:
    if not graph.unused and n_ctx <= graph.n_ctx_train:
        return
    import logging  # only now: not needed for a first token

    log = logging.getLogger(__name__)
    if graph.unused:
        log.warning("%d tensors of the model are not used: %s", len(graph.unused), ", ".join(graph.unused[:8]))
    if n_ctx > graph.n_ctx_train:
        log.warning("engine.context is %d, but the model was trained with %d", n_ctx, graph.n_ctx_train)
