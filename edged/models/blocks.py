"""What the architectures share: hyper-parameters read with their limits, and the records a graph is made of.

An architecture turns metadata and a tensor table into a `Graph`: steps in order, plain records over named tensors and
numbered values. Nothing here knows addresses, tensor types or kernels; `engine.plan` turns a graph into an op table.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, Protocol

from edged.errors import BadModel

WIDTH = 32  # rows of all values are multiples of this; smallest block of the quantised activations
HEAD = 8  # head dimensions are multiples of this
LARGEST = (1 << 31) - 1  # of any count


class Tensor(Protocol):
    """A row of the tensor table; shape in GGML's order, row length first."""

    @property
    def shape(self) -> tuple[int, ...]: ...


# -- the records -------------------------------------------------------------------------------------------------------


class Value(NamedTuple):
    """f32 (rows, width): one row per token of a step, or, if `gathered`, per token whose logits are wanted."""

    id: int
    width: int
    gathered: bool = False


class Embed(NamedTuple):
    """out = scale * the token's row of `weight` + the position's row of `positions` + the first row of `shared`."""

    weight: str
    out: Value
    scale: float
    positions: str | None = None
    shared: str | None = None


class Norm(NamedTuple):
    """RMS norm; `add`: out += norm."""

    x: Value
    weight: str
    out: Value
    eps: float
    add: bool


class LayerNorm(NamedTuple):
    """out = (x - mean) / sqrt(variance + eps) * weight + bias."""

    x: Value
    weight: str
    bias: str
    out: Value
    eps: float


class HeadNorm(NamedTuple):
    """RMS norm of each head, in place; weight (head_dim,)."""

    x: Value
    weight: str
    heads: int
    eps: float


class Linear(NamedTuple):
    """out = weight x + bias; `add`: out += weight x + bias."""

    x: Value
    weight: str
    bias: str | None
    out: Value
    add: bool


class Rotate(NamedTuple):
    """Rotary position embedding of each head, in place. rope: index into Graph.ropes."""

    x: Value
    heads: int
    rope: int


class Attend(NamedTuple):
    """Store k and v in the cache, then out = attention of q over it. softcap 0: none.

    bidirectional: each row sees all rows of its sequence, which must be in one step.
    """

    q: Value
    k: Value
    v: Value
    out: Value
    group: int
    layer: int
    heads: int
    scale: float
    softcap: float
    bidirectional: bool = False


Act = Literal["silu", "gelu", "gelu_erf"]  # GELU in its tanh form, and exactly


class Gate(NamedTuple):
    """out = act(a) * b; without b: act(a)."""

    a: Value
    b: Value | None
    out: Value
    act: Act


class Gather(NamedTuple):
    """out = the rows of x whose logits are wanted."""

    x: Value
    out: Value


class Softcap(NamedTuple):
    """x = cap * tanh(x / cap), in place."""

    x: Value
    cap: float


Step = Embed | Norm | LayerNorm | HeadNorm | Linear | Rotate | Attend | Gate | Gather | Softcap


class Rope(NamedTuple):
    """Angles of pair i at position p: p * scale * base**(-2i / dim) / factors[i].

    neox: pairs are (i, i + dim/2), else (2i, 2i + 1). factors: tensor f32 (dim/2,) or None.
    """

    dim: int
    base: float
    scale: float = 1.0
    neox: bool = False
    factors: str | None = None


class Group(NamedTuple):
    """Layers whose caches have one shape and one window. window 0: they see all positions."""

    n_layers: int
    n_heads_kv: int
    head_dim: int
    window: int = 0


Pooling = Literal["mean", "cls", "last"]
POOLINGS: dict[int, Pooling] = {1: "mean", 2: "cls", 3: "last"}  # llama.h, enum llama_pooling_type


class Graph(NamedTuple):
    """A model as steps. `logits` is the value they end in; `unused` are tensors no step reads.

    pooling: of an encoder, whose `logits` are the hidden states of all rows; None: the model generates.
    """

    steps: tuple[Step, ...]
    logits: Value
    ropes: tuple[Rope, ...]
    groups: tuple[Group, ...]
    n_vocab: int
    n_ctx_train: int
    unused: tuple[str, ...]
    pooling: Pooling | None = None

    @property
    def bidirectional(self) -> bool:
        """Whether a token sees those after it, so that all of a text must be in one step."""
        return any(isinstance(step, Attend) and step.bidirectional for step in self.steps)


def hidden_states(graph: Graph, pooling: Pooling) -> Graph:
    """The graph up to its last norm, over all rows, for vectors made with this pooling instead of logits."""
    if graph.pooling is not None:
        return graph._replace(pooling=pooling)
    steps, at = graph.steps, next(i for i, step in enumerate(graph.steps) if isinstance(step, Gather))
    gather, norm = steps[at : at + 2]
    assert isinstance(gather, Gather) and isinstance(norm, Norm) and norm.x == gather.out
    out = norm.out._replace(gathered=False)
    return graph._replace(steps=(*steps[:at], norm._replace(x=gather.x, out=out)), logits=out, pooling=pooling)


# -- building one ------------------------------------------------------------------------------------------------------


class Builder:
    """Collects steps. Every tensor that is named is checked: BadModel if it is missing or of another shape."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self.steps: list[Step] = []
        self._tensors = tensors
        self._used: set[str] = set()
        self._n_values = 0

    def value(self, width: int, gathered: bool = False) -> Value:
        self._n_values += 1
        return Value(self._n_values - 1, width, gathered)

    def has(self, name: str) -> bool:
        return name in self._tensors

    def weight(self, name: str, *shape: int) -> str:
        """The name, if the tensor is there and has this shape."""
        tensor = self._tensors.get(name)
        if tensor is None:
            raise BadModel(f"tensor {name} is missing", hint="the file is incomplete or of another architecture")
        if tensor.shape != shape:
            raise BadModel(f"tensor {name} has the shape {list(tensor.shape)}, expected {list(shape)}")
        self._used.add(name)
        return name

    def embed(self, n_vocab: int, width: int, scale: float = 1.0, positions: str | None = None,
              shared: str | None = None) -> Value:
        out = self.value(width)
        self.steps.append(Embed(self.weight("token_embd.weight", width, n_vocab), out, scale, positions, shared))
        return out

    def norm(self, x: Value, name: str, eps: float, add_to: Value | None = None) -> Value:
        """add_to: add the result to this value instead of making a new one."""
        out = add_to or self.value(x.width, x.gathered)
        self.steps.append(Norm(x, self.weight(f"{name}.weight", x.width), out, eps, add_to is not None))
        return out

    def layer_norm(self, x: Value, name: str, eps: float) -> Value:
        """With the weight and the bias of this name, both of which must be there."""
        out = self.value(x.width)
        weight, bias = self.weight(f"{name}.weight", x.width), self.weight(f"{name}.bias", x.width)
        self.steps.append(LayerNorm(x, weight, bias, out, eps))
        return out

    def head_norm(self, x: Value, name: str, heads: int, eps: float) -> None:
        self.steps.append(HeadNorm(x, self.weight(f"{name}.weight", x.width // heads), heads, eps))

    def linear(self, x: Value, name: str, width: int, add_to: Value | None = None) -> Value:
        """With the bias `name`.bias if the file has one. add_to as in `norm`."""
        weight = self.weight(f"{name}.weight", x.width, width)
        bias = self.weight(f"{name}.bias", width) if self.has(f"{name}.bias") else None
        out = add_to or self.value(width, x.gathered)
        self.steps.append(Linear(x, weight, bias, out, add_to is not None))
        return out

    def rotate(self, x: Value, heads: int, rope: int) -> None:
        self.steps.append(Rotate(x, heads, rope))

    def attend(self, q: Value, k: Value, v: Value, *, group: int, layer: int, heads: int, scale: float,
               softcap: float = 0.0, bidirectional: bool = False) -> Value:
        out = self.value(q.width)
        self.steps.append(Attend(q, k, v, out, group, layer, heads, scale, softcap, bidirectional))
        return out

    def feed_forward(self, x: Value, layer: str, n_ff: int, add_to: Value | None = None, act: Act = "silu") -> Value:
        """down(act(gate x) * up x)."""
        gate, up = self.linear(x, f"{layer}.ffn_gate", n_ff), self.linear(x, f"{layer}.ffn_up", n_ff)
        out = self.value(n_ff)
        self.steps.append(Gate(gate, up, out, act))
        return self.linear(out, f"{layer}.ffn_down", x.width, add_to)

    def output(self, x: Value, n_vocab: int, eps: float, softcap: float = 0.0) -> Value:
        """Logits of the rows wanted. Without output.weight the embedding serves (tied)."""
        rows = self.value(x.width, gathered=True)
        self.steps.append(Gather(x, rows))
        normed = self.norm(rows, "output_norm", eps)
        logits = self.linear(normed, "output" if self.has("output.weight") else "token_embd", n_vocab)
        if softcap:
            self.steps.append(Softcap(logits, softcap))
        return logits

    def finish(self, logits: Value, ropes: tuple[Rope, ...], groups: tuple[Group, ...], n_vocab: int,
               n_ctx_train: int, pooling: Pooling | None = None) -> Graph:
        """The graph of all steps. Raises BadModel for a tensor of a layer that no step is of."""
        unused = tuple(name for name in self._tensors if name not in self._used)
        last = max(map(_layer, self._used), default=-1)
        beyond = next((name for name in unused if _layer(name) > last), None)
        if beyond is not None:
            raise BadModel(f"tensor {beyond} belongs to a layer past the {last + 1} that block_count tells of")
        return Graph(tuple(self.steps), logits, ropes, groups, n_vocab, n_ctx_train, unused, pooling)


def _layer(name: str) -> int:
    """N of a tensor blk.N.*, -1 for the others."""
    number = name.removeprefix("blk.").partition(".")[0]
    return int(number) if name.startswith("blk.") and number.isdecimal() else -1


# -- hyper-parameters --------------------------------------------------------------------------------------------------


class Keys:
    """Metadata of one architecture, read with limits. Every method raises BadModel naming the key."""

    def __init__(self, meta: Mapping[str, Any], arch: str) -> None:
        self._meta = meta
        self._arch = arch

    def count(self, name: str, default: int | None = None, *, low: int = 1, multiple: int = 1) -> int:
        """A whole number of at least `low` that `multiple` divides; `default` if the key is missing."""
        key, value = self._get(name, default)
        if type(value) is not int or not low <= value <= LARGEST:
            raise BadModel(f"key {key} is {_shown(value)}, expected a whole number of at least {low}")
        if value % multiple:
            raise BadModel(f"key {key} is {value}, expected a multiple of {multiple}")
        return value

    def real(self, name: str, default: float | None = None) -> float:
        """A finite number above 0; `default` if the key is missing."""
        key, value = self._get(name, default)
        if type(value) not in (int, float) or not 0 < value < math.inf:
            raise BadModel(f"key {key} is {_shown(value)}, expected a number above 0")
        return float(value)

    def softcap(self, name: str) -> float:
        """Limit of a soft cap; 0 if the key is missing or 0."""
        return self.real(name) if self._is_set(f"{self._arch}.{name}") else 0.0

    def none(self, name: str, why: str) -> None:
        """Refuse a model that sets this key to anything but 0."""
        key = f"{self._arch}.{name}"
        if self._is_set(key):
            raise BadModel(f"key {key} is {_shown(self._meta[key])}: {why}")

    def heads(self) -> tuple[int, int, int]:
        """n_heads, n_heads_kv and head_dim."""
        n_heads = self.count("attention.head_count")
        n_heads_kv = self.count("attention.head_count_kv", n_heads)
        if n_heads % n_heads_kv:
            raise BadModel(
                f"key {self._arch}.attention.head_count is {n_heads}, no multiple of attention.head_count_kv, "
                f"which is {n_heads_kv}"
            )
        n_embd = self.count("embedding_length", multiple=WIDTH)
        if f"{self._arch}.attention.key_length" not in self._meta and n_embd % n_heads:
            raise BadModel(
                f"key {self._arch}.embedding_length is {n_embd}, no multiple of attention.head_count, "
                f"which is {n_heads}"
            )
        head_dim = self.count("attention.key_length", n_embd // n_heads, multiple=HEAD)
        value_dim = self.count("attention.value_length", head_dim)
        if value_dim != head_dim:
            raise BadModel(f"key {self._arch}.attention.value_length is {value_dim}, attention.key_length {head_dim}: "
                           "keys and values of different lengths are not supported")
        for name, width in (("head_count", n_heads * head_dim), ("head_count_kv", n_heads_kv * head_dim)):
            if width % WIDTH:
                raise BadModel(f"key {self._arch}.attention.{name}: heads of {head_dim} make rows of {width}, "
                               f"no multiple of {WIDTH}")
        return n_heads, n_heads_kv, head_dim

    def rope_dim(self, head_dim: int) -> int:
        """Rotated columns of a head."""
        dim = self.count("rope.dimension_count", head_dim, multiple=2)
        if dim > head_dim:
            raise BadModel(f"key {self._arch}.rope.dimension_count is {dim}, a head has {head_dim}")
        return dim

    def rope_scale(self) -> float:
        """Factor on positions: linear scaling, or 1."""
        key = f"{self._arch}.rope.scaling.type"
        kind = self._meta.get(key, "linear")
        if not isinstance(kind, str) or kind not in ("none", "linear"):
            raise BadModel(f"key {key} is {_shown(kind)}; none and linear are supported")
        if kind == "none":
            return 1.0
        # files of before 2023-10 have rope.scale_linear
        return 1.0 / self.real("rope.scaling.factor", self.real("rope.scale_linear", 1.0))

    def n_vocab(self) -> int:
        """Tokens of the vocabulary in the file, which is the number of embedding rows."""
        tokens = self._meta.get("tokenizer.ggml.tokens")
        if tokens is None:
            return self.count("vocab_size")
        if isinstance(tokens, str | bytes) or not hasattr(tokens, "__len__") or not len(tokens):
            raise BadModel("key tokenizer.ggml.tokens holds no tokens")
        return len(tokens)

    def _is_set(self, key: str) -> bool:
        """Whether the model has the key, and not as a number 0."""
        value = self._meta.get(key, 0)
        return not (isinstance(value, int | float) and value == 0)

    def _get(self, name: str, default: Any) -> tuple[str, Any]:
        key = f"{self._arch}.{name}"
        value = self._meta.get(key, default)
        if value is None:
            raise BadModel(f"key {key} is missing")
        return key, value


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
