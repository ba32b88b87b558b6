"""llama: SmolLM2, Llama 2 and 3, TinyLlama, and other models of their kind.

Per layer: x += attention(norm(x)); x += down(silu(gate) * up) of norm(x). Rotary embedding on pairs (2i, 2i + 1),
the order of rows that conversion to GGUF gives wq and wk.

Source: Touvron et al., arXiv 2302.13971; tensor and key names: gguf.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from edged.models.blocks import WIDTH, Builder, Graph, Group, Keys, Rope, Tensor

ROPE_FACTORS = "rope_freqs.weight"  # Llama 3.1 and later


class Hparams(NamedTuple):
    """Sizes of one model."""

    n_layers: int
    n_embd: int
    n_ff: int
    n_heads: int
    n_heads_kv: int
    head_dim: int
    n_vocab: int
    n_ctx_train: int
    eps: float
    rope: Rope


def hyperparameters(meta: Mapping[str, Any]) -> Hparams:
    """Read and check the metadata. Raises BadModel naming the key."""
    keys = Keys(meta, "llama")
    keys.none("expert_count", "mixtures of experts are not supported")
    n_heads, n_heads_kv, head_dim = keys.heads()
    return Hparams(
        n_layers=keys.count("block_count"),
        n_embd=keys.count("embedding_length", multiple=WIDTH),
        n_ff=keys.count("feed_forward_length", multiple=WIDTH),
        n_heads=n_heads,
        n_heads_kv=n_heads_kv,
        head_dim=head_dim,
        n_vocab=keys.n_vocab(),
        n_ctx_train=keys.count("context_length"),
        eps=keys.real("attention.layer_norm_rms_epsilon"),
        rope=Rope(keys.rope_dim(head_dim), keys.real("rope.freq_base", 10000.0), keys.rope_scale()),
    )


def graph(hparams: Hparams, tensors: Mapping[str, Tensor]) -> Graph:
    """The steps of the model. Raises BadModel naming the tensor that is missing or has another shape."""
    h, build = hparams, Builder(tensors)
    rope = h.rope
    if build.has(ROPE_FACTORS):
        rope = rope._replace(factors=build.weight(ROPE_FACTORS, rope.dim // 2))
    x = build.embed(h.n_vocab, h.n_embd)
    for i in range(h.n_layers):
        layer = f"blk.{i}"
        normed = build.norm(x, f"{layer}.attn_norm", h.eps)
        q = build.linear(normed, f"{layer}.attn_q", h.n_heads * h.head_dim)
        k = build.linear(normed, f"{layer}.attn_k", h.n_heads_kv * h.head_dim)
        v = build.linear(normed, f"{layer}.attn_v", h.n_heads_kv * h.head_dim)
        build.rotate(q, h.n_heads, 0)
        build.rotate(k, h.n_heads_kv, 0)
        seen = build.attend(q, k, v, group=0, layer=i, heads=h.n_heads, scale=h.head_dim**-0.5)
        build.linear(seen, f"{layer}.attn_output", h.n_embd, add_to=x)
        build.feed_forward(build.norm(x, f"{layer}.ffn_norm", h.eps), layer, h.n_ff, add_to=x)
    logits = build.output(x, h.n_vocab, h.eps)
    groups = (Group(h.n_layers, h.n_heads_kv, h.head_dim),)
    return build.finish(logits, (rope,), groups, h.n_vocab, h.n_ctx_train)
