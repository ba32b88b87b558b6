"""Puts an engine together for a model: graph, cache, op table, kernels, threads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from edged import models
from edged.config import EngineConfig
from edged.engine import room
from edged.engine.batch import Batch, frequencies
from edged.engine.engine import Engine, Pace, Parts, Post
from edged.engine.kvcache import KVCache
from edged.engine.plan import Sizes, make_plan
from edged.engine.request import EngineInfo
from edged.engine.scheduler import Scheduler
from edged.engine.threads import worker_count
from edged.errors import BadConfig, BadModel
from edged.gguf import Model
from edged.kernels import load
from edged.kernels.program import Program
from edged.models.blocks import Graph

DEFAULT_CONTEXT = 8192  # where the model's own is longer
DEFAULT_ROWS = 256  # prompt rows of a step: more of them gain nothing and take memory
SPARE_DECODE = 8  # decode rows beyond one per sequence, for those that catch up and for scored prompts


def open_engine(config: EngineConfig, model: Model, post: Post | None, thread: bool) -> Engine:
    """See `edged.engine.open`."""
    graph = models.graph(model.meta, model.tensors)
    if graph.pooling is not None:
        raise BadModel(f"{model.name} makes embeddings, no text", hint="use edged embed, or take another model")
    n_ctx = config.context or min(graph.n_ctx_train, DEFAULT_CONTEXT)
    _warn(graph, n_ctx)
    n_tokens = config.kv_tokens or 2 * n_ctx
    if n_tokens < n_ctx:
        raise BadConfig(f"engine.kv_tokens is {n_tokens}, but one context takes {n_ctx}",
                        hint="raise engine.kv_tokens or lower engine.context")
    rows = config.prefill_chunk or DEFAULT_ROWS
    library = load.open(config.kernel_level or None)
    sizes = Sizes(config.max_seqs + SPARE_DECODE, -(-rows // 32) * 32, n_ctx, library.lanes)
    cache = KVCache(graph.groups, n_ctx, config.max_seqs, n_tokens, max(sizes.max_prompt, sizes.max_decode),
                    config.prefix_cache)  # fmt: skip
    room.check(model.size, cache.n_bytes, config.memory_check)
    plan = make_plan(graph, model.tensors, cache, sizes)
    radians = [frequencies(rope, _factors(model, rope.factors)) for rope in graph.ropes]
    threads = config.threads or worker_count()
    parts = Parts(
        info=EngineInfo(model.name, n_ctx, graph.n_vocab, config.max_seqs, library.level.name, threads),
        library=library,
        program=Program(library, plan.ops, threads),
        batch=Batch(sizes, plan.rope_tables, radians),
        scheduler=Scheduler(cache, sizes.max_decode),
        logits=plan.logits.__array_interface__["data"][0],
        logits_stride=plan.logits.strides[0],
        pace=Pace(rows, fixed=config.prefill_chunk > 0),
        speculate=config.speculate,
        gauges=lambda: {
            "kv_blocks_used": cache.n_used, "kv_blocks_kept": cache.n_kept, "kv_blocks": cache.n_blocks,
            "kv_bytes_used": cache.used_bytes,
        },
        arena=plan.arena,
        owned=(plan, cache),
    )  # fmt: skip
    engine = Engine(parts, config.queue, post)
    if config.prompt_cache:
        engine.at_close(_keep_on_disk(config.prompt_cache, model, library.path, cache))
    if thread:
        engine.start()
    return engine


def _keep_on_disk(path: str, model: Model, kernels: str, cache: KVCache) -> Callable[[], None]:
    """Read the prompt cache; what writes it."""
    from edged.engine import promptfile  # only where it is wanted

    promptfile.check(Path(path))
    mark = promptfile.fingerprint(model, kernels, cache)
    promptfile.read(Path(path), mark, cache)
    return lambda: promptfile.write(Path(path), mark, cache)


def _factors(model: Model, name: str | None) -> np.ndarray | None:
    """The values of a tensor of rope frequency factors: f32 (dim / 2,)."""
    if name is None:
        return None
    tensor = model.tensors[name]
    if tensor.type_id != 0:
        raise BadModel(f"tensor {name} has type id {tensor.type_id}, expected f32")
    return model.tensor_bytes(name).view(np.float32)


def _warn(graph: Graph, n_ctx: int) -> None:
    if not graph.unused and n_ctx <= graph.n_ctx_train:
        return
    import logging  # only now: not needed for a first token

    log = logging.getLogger(__name__)
    if graph.unused:
        log.warning("%d tensors of the model are not used: %s", len(graph.unused), ", ".join(graph.unused[:8]))
    if n_ctx > graph.n_ctx_train:
        log.warning("engine.context is %d, but the model was trained with %d", n_ctx, graph.n_ctx_train)
