"""bert: encoders such as all-MiniLM-L6-v2, which turn a text into one vector.

x = norm(token + position + type 0); per layer: x = norm(x + attention(x)); x = norm(x + down(gelu(up x))). The norms
are layer norms with biases, all linear layers have biases, GELU is exact, every position sees every other.

Source: Devlin et al., arXiv 1810.04805; names and keys as in llama.cpp.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from edged.errors import BadModel
from edged.models.blocks import POOLINGS, WIDTH, Builder, Gate, Graph, Group, Keys, Pooling, Tensor, Value


class Hparams(NamedTuple):
    """Sizes of one model."""

    n_layers: int
    n_embd: int
    n_ff: int
    n_heads: int
    head_dim: int
    n_vocab: int
    n_types: int
    n_ctx_train: int
    eps: float
    pooling: Pooling


def hyperparameters(meta: Mapping[str, Any]) -> Hparams:
    """Read and check the metadata. Raises BadModel naming the key."""
    keys = Keys(meta, "bert")
    n_heads, n_heads_kv, head_dim = keys.heads()
    if n_heads_kv != n_heads:
        raise BadModel(f"key bert.attention.head_count_kv is {n_heads_kv}, expected {n_heads} as head_count")
    pooling = keys.count("pooling_type", 1, low=0)
    if pooling not in POOLINGS:
        known = ", ".join(f"{number} ({name})" for number, name in POOLINGS.items())
        raise BadModel(f"key bert.pooling_type is {pooling}; supported: {known}")
    return Hparams(
        n_layers=keys.count("block_count"),
        n_embd=keys.count("embedding_length", multiple=WIDTH),
        n_ff=keys.count("feed_forward_length", multiple=WIDTH),
        n_heads=n_heads,
        head_dim=head_dim,
        n_vocab=keys.n_vocab(),
        n_types=meta.get("tokenizer.ggml.token_type_count", 2),
        n_ctx_train=keys.count("context_length"),
        eps=keys.real("attention.layer_norm_epsilon"),
        pooling=POOLINGS[pooling],
    )


def graph(hparams: Hparams, tensors: Mapping[str, Tensor]) -> Graph:
    """The steps of the model. Raises BadModel naming the tensor that is missing or has another shape."""
    h, build = hparams, Builder(tensors)

    def linear(x: Value, name: str, width: int, add_to: Value | None = None) -> Value:
        build.weight(f"{name}.bias", width)  # in other architectures it may be missing
        return build.linear(x, name, width, add_to)

    positions = build.weight("position_embd.weight", h.n_embd, h.n_ctx_train)
    x = build.embed(h.n_vocab, h.n_embd, positions=positions,
                    shared=build.weight("token_types.weight", h.n_embd, h.n_types))  # fmt: skip
    x = build.layer_norm(x, "token_embd_norm", h.eps)
    for i in range(h.n_layers):
        layer = f"blk.{i}"
        q, k, v = (linear(x, f"{layer}.attn_{name}", h.n_embd) for name in "qkv")
        # no layer reads what another one stored: all use the same place in the cache
        seen = build.attend(q, k, v, group=0, layer=0, heads=h.n_heads, scale=h.head_dim**-0.5, bidirectional=True)
        linear(seen, f"{layer}.attn_output", h.n_embd, add_to=x)
        x = build.layer_norm(x, f"{layer}.attn_output_norm", h.eps)
        up = linear(x, f"{layer}.ffn_up", h.n_ff)
        build.steps.append(Gate(up, None, up, "gelu_erf"))
        linear(up, f"{layer}.ffn_down", h.n_embd, add_to=x)
        x = build.layer_norm(x, f"{layer}.layer_output_norm", h.eps)
    groups = (Group(1, h.n_heads, h.head_dim),)
    return build.finish(x, (), groups, h.n_vocab, h.n_ctx_train, h.pooling)
