"""From a graph to an op table: built once per model, run as often as there are steps.

The op table holds absolute addresses: of the weights in their map, of the KV cache, and of values in one arena. Three
things are decided here.

Barriers. Threads share each op's work in one of a few ways (see the kernel table); an op needs a SYNC before it only if
it touches what another thread may have written, or be reading, since the last one. The ops between two barriers are a
phase.

Arena. A value occupies a slot from its first to its last phase; slots are reused by best fit, in later phases only, so
reuse never asks for a barrier.

Activations. What several matmuls read in the same form is quantised once.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any, NamedTuple, get_args

import numpy as np

from edged.engine.kvcache import KVCache
from edged.errors import BadModel
from edged.gguf import TensorInfo, memory
from edged.kernels.table import (
    ADD,
    OP,
    OP_BY_NAME,
    REGION_BODY,
    REGION_LOGITS,
    SYNC,
    TYPE_BY_ID,
    TYPE_BY_NAME,
    TYPES,
    ActKind,
    TensorType,
    act_bytes,
    align64,
    partials_bytes,
)  # fmt: skip
from edged.models.blocks import (
    Act,
    Attend,
    Embed,
    Gate,
    Gather,
    Graph,
    HeadNorm,
    LayerNorm,
    Linear,
    Norm,
    Rotate,
    Softcap,
    Step,
    Value,
)  # fmt: skip

WHOLE = None  # a way of sharing that matches no other: any thread may touch any part
ROW_UNIT = 32  # f32 rows are padded to a multiple of this


class Sizes(NamedTuple):
    """Rows of a step and what depends on them. max_prompt is a multiple of 32."""

    max_decode: int
    max_prompt: int
    n_ctx: int
    lanes: int


class Plan(NamedTuple):
    """An op table and the memory it works in.

    ops: OP records. logits: f32 (max_decode, row length), the first n_vocab columns valid; of an encoder its hidden
    states, f32 (max_decode + max_prompt, row length). rope_tables: per rope of the
    graph f32 (max_decode + max_prompt, dim/2, 2), to be filled with (cos, sin) before each step. arena keeps the
    memory alive.
    """

    ops: np.ndarray
    logits: np.ndarray
    rope_tables: tuple[np.ndarray, ...]
    arena: np.ndarray


class _Buffer:
    """A stretch of the arena, alive in phases first..last."""

    __slots__ = ("address", "first", "last", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self.first = -1
        self.last = -1
        self.address = 0


def make_plan(graph: Graph, tensors: Mapping[str, TensorInfo], cache: KVCache, sizes: Sizes) -> Plan:
    """Raises BadModel naming a tensor whose type has no kernels."""
    rows = sizes.max_decode + sizes.max_prompt
    tables = tuple(np.zeros((rows, rope.dim // 2, 2), np.float32) for rope in graph.ropes)
    table = _OpTable(graph, tensors, cache, sizes, [t.__array_interface__["data"][0] for t in tables])
    for step in graph.steps:
        table.add(step)
    arena = table.place()
    start = table.buffer(graph.logits).address - arena.__array_interface__["data"][0]
    length = row_length(graph.logits.width)
    n_out = sizes.max_decode if graph.logits.gathered else rows
    logits = arena[start : start + 4 * length * n_out].view(np.float32).reshape(n_out, length)
    return Plan(table.records(), logits, tables, arena)


def row_length(width: int) -> int:
    """Floats from row to row of a value."""
    return -(-width // ROW_UNIT) * ROW_UNIT


class _OpTable:
    def __init__(self, graph: Graph, tensors: Mapping[str, TensorInfo], cache: KVCache, sizes: Sizes,
                 rope_tables: list[int]) -> None:
        self._graph = graph
        self._tensors = tensors
        self._cache = cache
        self._sizes = sizes
        self._rope_tables = rope_tables
        self._ops: list[dict[str, Any]] = []
        self._buffers: dict[Hashable, _Buffer] = {}
        self._quantised: dict[Hashable, dict[ActKind, _Buffer]] = {}  # of a buffer, as long as it is not written
        self._phase = 0
        self._reads: dict[Hashable, set[Hashable]] = {}  # what this phase touches: thing -> ways of sharing it
        self._writes: dict[Hashable, set[Hashable]] = {}
        heads = [step.heads for step in graph.steps if isinstance(step, Attend)]
        dim = max(group.head_dim for group in graph.groups)
        size = partials_bytes(sizes.max_decode, sizes.max_prompt, max(heads), dim, sizes.n_ctx)
        self._partials = self._buffers["partials"] = _Buffer(size)

    def add(self, step: Step) -> None:
        _EMIT[type(step)](self, step)

    def buffer(self, value: Value) -> _Buffer:
        """Where a value lives."""
        buffer = self._buffers.get(value)
        if buffer is None:
            rows = self._sizes.max_decode + (0 if value.gathered else self._sizes.max_prompt)
            buffer = self._buffers[value] = _Buffer(4 * row_length(value.width) * rows)
        return buffer

    def place(self) -> np.ndarray:
        """Give every buffer its address in a new arena."""
        slots: list[tuple[int, int, int]] = []  # size, offset, last phase of the buffer in it
        end = 0
        places = []
        for buffer in sorted(self._buffers.values(), key=lambda b: b.first):
            size = align64(buffer.size)
            fits = [slot for slot in slots if slot[0] >= size and slot[2] < buffer.first]
            if fits:
                slot = min(fits)
                slots.remove(slot)
            else:
                slot = (size, end, 0)
                end += size
            slots.append((slot[0], slot[1], buffer.last))
            places.append((buffer, slot[1]))
        arena = memory.reserve(end, "activations")
        base: int = arena.__array_interface__["data"][0]
        for buffer, offset in places:
            buffer.address = base + offset
        return arena

    def records(self) -> np.ndarray:
        """The finished op table."""
        ops = np.zeros(len(self._ops), OP)
        for name in OP.names or ():
            if name in ("i", "f"):
                for j in range(4):
                    ops[name][:, j] = [op.get(f"{name}{j}", 0) for op in self._ops]
            else:
                column = [op.get(name, 0) for op in self._ops]
                ops[name] = [item.address if isinstance(item, _Buffer) else item for item in column]
        return ops

    # -- emitting ------------------------------------------------------------------------------------------------------

    def _emit(self, name: str, reads: list[tuple[Hashable, Hashable]], writes: list[tuple[Hashable, Hashable]],
              **fields: Any) -> None:
        """Append an op. reads, writes: (thing, way of sharing it); a thing is a _Buffer or the name of one."""
        after_write = any(_clash(self._writes, *use) for use in reads + writes)
        if after_write or any(_clash(self._reads, *use) for use in writes):
            self._ops[-1]["flags"] |= SYNC
            self._phase += 1
            self._reads.clear()
            self._writes.clear()
        for uses, seen in ((reads, self._reads), (writes, self._writes)):
            for thing, way in uses:
                seen.setdefault(thing, set()).add(way)
                if isinstance(thing, _Buffer):
                    thing.first = self._phase if thing.first < 0 else thing.first
                    thing.last = self._phase
        for thing, _ in writes:
            self._quantised.pop(thing, None)
        self._ops.append({"op": OP_BY_NAME[name].code, "flags": 0, **fields})

    def _matrix(self, name: str) -> tuple[TensorInfo, TensorType]:
        tensor = self._tensors[name]
        kind = TYPE_BY_ID.get(tensor.type_id)
        if kind is None:
            raise BadModel(f"tensor {name} has type id {tensor.type_id}, for which there are no kernels",
                           hint=f"supported: {', '.join(t.name for t in TYPES)}")
        return tensor, kind

    def _vector(self, name: str) -> int:
        tensor, kind = self._matrix(name)
        if kind is not TYPE_BY_NAME["f32"]:
            raise BadModel(f"tensor {name} has the type {kind.name}; norms, biases and what is added must be f32")
        return tensor.address

    def _optional(self, name: str | None) -> int:
        return self._vector(name) if name else 0

    def _quantise(self, x: Value, kind: ActKind) -> _Buffer:
        """The activation buffer that holds x."""
        source = self.buffer(x)
        forms = self._quantised.setdefault(source, {})
        act = forms.get(kind)
        if act is None:
            sizes = self._sizes
            size = act_bytes(kind, x.width, sizes.max_decode, 0 if x.gathered else sizes.max_prompt, sizes.lanes)
            act = forms[kind] = self._buffers[x, kind, len(self._ops)] = _Buffer(size)  # again when x has changed
            way = ("columns", x.width)
            self._emit("quantise", [(source, way)], [(act, way)], region=_region(x), type=kind, n=x.width, a=source,
                       d=act)  # fmt: skip
        return act

    def _embed(self, step: Embed) -> None:
        tensor, kind = self._matrix(step.weight)
        out = self.buffer(step.out)
        self._emit("embed", [], [(out, WHOLE)], type=kind.id, n=step.out.width, stride=kind.row_bytes(step.out.width),
                   a=tensor.address, b=self._optional(step.positions), c=self._optional(step.shared), d=out,
                   f0=step.scale)  # fmt: skip

    def _norm(self, step: Norm) -> None:
        x, out, n = self.buffer(step.x), self.buffer(step.out), step.x.width
        self._emit("rmsnorm", [(x, WHOLE)], [(out, ("columns", n))], region=_region(step.x), n=n, a=x,
                   b=self._vector(step.weight), d=out, f0=step.eps)  # fmt: skip
        self._ops[-1]["flags"] |= ADD * step.add

    def _layer_norm(self, step: LayerNorm) -> None:
        x, out, n = self.buffer(step.x), self.buffer(step.out), step.x.width
        self._emit("layernorm", [(x, WHOLE)], [(out, ("columns", n))], region=_region(step.x), n=n, a=x,
                   b=self._vector(step.weight), c=self._vector(step.bias), d=out, f0=step.eps)  # fmt: skip

    def _head_norm(self, step: HeadNorm) -> None:
        x, n = self.buffer(step.x), step.x.width
        self._emit("headnorm", [], [(x, ("heads", step.heads))], n=n, a=x, b=self._vector(step.weight), i0=step.heads,
                   i1=n // step.heads, f0=step.eps)  # fmt: skip

    def _linear(self, step: Linear) -> None:
        tensor, kind = self._matrix(step.weight)
        k, n = tensor.shape
        act, out = self._quantise(step.x, kind.act), self.buffer(step.out)
        self._emit("matmul", [(act, WHOLE)], [(out, ("outputs", n))], region=_region(step.x), type=kind.id, n=n, k=k,
                   stride=kind.row_bytes(k), a=tensor.address, b=act, c=self._optional(step.bias),
                   d=out, i0=row_length(n))  # fmt: skip
        self._ops[-1]["flags"] |= ADD * step.add

    def _rotate(self, step: Rotate) -> None:
        x, n, rope = self.buffer(step.x), step.x.width, self._graph.ropes[step.rope]
        self._emit("rope", [], [(x, ("heads", step.heads))], n=n, a=x, b=self._rope_tables[step.rope], i0=step.heads,
                   i1=n // step.heads, i2=rope.dim, i3=int(rope.neox))  # fmt: skip

    def _attend(self, step: Attend) -> None:
        pool = self._cache.pools[step.group]
        heads_kv, dim = pool.group.n_heads_kv, pool.group.head_dim
        q, k, v, out = (self.buffer(value) for value in (step.q, step.k, step.v, step.out))
        cached = ("cache", step.group, step.layer)
        where: dict[str, Any] = {
            "c": pool.table.__array_interface__["data"][0], "k": pool.v_offset, "stride": pool.stride,
        }  # fmt: skip
        layer, columns = pool.address + step.layer * pool.layer_bytes, pool.table.shape[1]
        way = ("heads", heads_kv)
        self._emit("kv_store", [(k, way), (v, way)], [(cached, way)], n=heads_kv * dim, a=k, b=v, d=layer, i0=heads_kv,
                   i1=dim, i2=columns, **where)  # fmt: skip
        self._emit("attention", [(q, WHOLE), (cached, WHOLE)], [(out, WHOLE), (self._partials, WHOLE)], n=columns, a=q,
                   b=self._partials, d=out, e=layer, i0=step.heads, i1=heads_kv, i2=dim, i3=pool.group.window,
                   type=int(step.bidirectional), f0=step.scale, f1=step.softcap, **where)  # fmt: skip

    def _gate(self, step: Gate) -> None:
        a, b, out = self.buffer(step.a), self.buffer(step.b) if step.b else None, self.buffer(step.out)
        n, way = step.out.width, ("columns", step.out.width)
        self._emit("gate", [(x, way) for x in (a, b) if x], [(out, way)], n=n, a=a, b=b or 0, d=out,
                   i0=get_args(Act).index(step.act))  # fmt: skip

    def _gather(self, step: Gather) -> None:
        x, out, n = self.buffer(step.x), self.buffer(step.out), step.x.width
        self._emit("gather", [(x, WHOLE)], [(out, ("columns", n))], region=REGION_LOGITS, n=n, a=x, d=out)

    def _softcap(self, step: Softcap) -> None:
        x, n = self.buffer(step.x), row_length(step.x.width)
        self._emit("softcap", [], [(x, ("columns", n))], region=_region(step.x), n=n, d=x, f0=step.cap)


_EMIT: dict[type, Callable[[_OpTable, Any], None]] = {
    Embed: _OpTable._embed,
    Norm: _OpTable._norm,
    LayerNorm: _OpTable._layer_norm,
    HeadNorm: _OpTable._head_norm,
    Linear: _OpTable._linear,
    Rotate: _OpTable._rotate,
    Attend: _OpTable._attend,
    Gate: _OpTable._gate,
    Gather: _OpTable._gather,
    Softcap: _OpTable._softcap,
}


def _region(x: Value) -> int:
    return REGION_LOGITS if x.gathered else REGION_BODY


def _clash(seen: dict[Hashable, set[Hashable]], thing: Hashable, way: Hashable) -> bool:
    """Whether another thread may have touched the thing this way since the last barrier."""
    ways = seen.get(thing)
    return bool(ways) and (way is WHOLE or ways != {way})
