"""A model ready to compute: graph, KV cache, op table, batch and program, on a machine that other models share.

    runner = Runner(machine, model, graph, Shape(...))
    completed = runner.step(decode, prompt)     # False: `program.stop` ended it; the same rows may be stepped again
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from edged.engine.batch import Batch, Rows, frequencies
from edged.engine.kvcache import KVCache
from edged.engine.machine import Lane, Machine
from edged.engine.plan import Sizes, make_plan
from edged.errors import BadModel
from edged.gguf import Model, memory
from edged.kernels.program import Program
from edged.models.blocks import Graph


class Shape(NamedTuple):
    """How much a runner holds. n_tokens: positions of the KV cache; keep: of them for prefixes of what has left.

    max_prompt is rounded up to whole tiles.
    """

    n_ctx: int
    max_decode: int
    max_prompt: int
    n_slots: int
    n_tokens: int
    keep: int = 0


class Runner:
    """`logits`: what the graph ends in, as in Plan, of the step done last."""

    def __init__(self, machine: Machine, model: Model, graph: Graph, shape: Shape) -> None:
        """Raises BadModel, or LimitTooLow if the model does not fit the memory. The model must stay open as long."""
        self.machine = machine
        self.graph = graph
        self.sizes = Sizes(shape.max_decode, -(-shape.max_prompt // 32) * 32, shape.n_ctx, machine.library.lanes)
        most = max(self.sizes.max_prompt, self.sizes.max_decode)
        self.cache = KVCache(graph.groups, shape.n_ctx, shape.n_slots, shape.n_tokens, most, shape.keep)
        machine.weigh(model.size - model.locked, self.cache.n_bytes)
        self._plan = make_plan(graph, model.tensors, self.cache, self.sizes)
        self.logits = self._plan.logits
        radians = [frequencies(rope, _factors(model, rope.factors)) for rope in graph.ropes]
        self.batch = Batch(self.sizes, self._plan.rope_tables, radians)
        self.program = Program(machine.workers, self._plan.ops)
        self._at_close: list[Callable[[], None]] = []

    def step(self, decode: Sequence[Rows], prompt: Sequence[Rows]) -> bool:
        """Compute these rows."""
        self.batch.fill(decode, prompt)
        return self.program.step(self.batch.state)

    def at_close(self, call: Callable[[], None]) -> None:
        """Call this once when nothing is computed any more, in the order of these calls."""
        self._at_close.append(call)

    def close(self, lanes: Sequence[Lane], drained: Callable[[], bool]) -> None:
        """Take the lanes off the machine once `drained`, for which the step in progress ends early. Idempotent."""
        machine = self.machine
        self.program.stop()
        with machine.changed:
            machine.changed.notify_all()
            if machine.waited_for:
                machine.changed.wait_for(drained)
        for lane in lanes:
            machine.remove(lane)
        calls, self._at_close = self._at_close, []
        for call in calls:
            call()

    def rest(self) -> None:
        """Give back what a step works in; nothing outlives it."""
        memory.discard(self._plan.arena)


def _factors(model: Model, name: str | None) -> np.ndarray | None:
    """The values of a tensor of rope frequency factors: f32 (dim / 2,)."""
    if name is None:
        return None
    tensor = model.tensors[name]
    if tensor.type_id != 0:
        raise BadModel(f"tensor {name} has type id {tensor.type_id}, expected f32")
    return model.tensor_bytes(name).view(np.float32)
