"""gemma3: Gemma 3, text.

Per layer: x += post_norm(attention(norm(x))); x += post_norm(down(gelu(gate) * up)) of norm(x). Queries and keys are
normed per head. Of six layers in a row the first five see a window, with a rotary base of their own and never scaled;
the sixth sees everything. The embedding is scaled by sqrt(n_embd). Rotary pairs are (i, i + dim/2).

Source: Gemma 3 technical report, arXiv 2503.19786; the norms' weights have had 1 added by conversion to GGUF.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from edged.models.blocks import WIDTH, Builder, Graph, Group, Keys, Rope, Tensor

LAYERS_27B = 62  # the one size whose queries are scaled by n_embd / n_heads instead of head_dim
LOCAL, GLOBAL = 0, 1  # indices of ropes and groups


class Hparams(NamedTuple):
    """Sizes of one model. Softcaps are 0 where there is none."""

    n_layers: int
    n_embd: int
    n_ff: int
    n_heads: int
    n_heads_kv: int
    head_dim: int
    n_vocab: int
    n_ctx_train: int
    eps: float
    window: int
    period: int
    local_rope: Rope
    global_rope: Rope
    attention_scale: float
    attention_softcap: float
    output_softcap: float


def hyperparameters(meta: Mapping[str, Any]) -> Hparams:
    """Read and check the metadata. Raises BadModel naming the key."""
    keys = Keys(meta, "gemma3")
    n_layers, n_embd = keys.count("block_count"), keys.count("embedding_length", multiple=WIDTH)
    n_heads, n_heads_kv, head_dim = keys.heads()
    rope_dim = keys.rope_dim(head_dim)
    return Hparams(
        n_layers=n_layers,
        n_embd=n_embd,
        n_ff=keys.count("feed_forward_length", multiple=WIDTH),
        n_heads=n_heads,
        n_heads_kv=n_heads_kv,
        head_dim=head_dim,
        n_vocab=keys.n_vocab(),
        n_ctx_train=keys.count("context_length"),
        eps=keys.real("attention.layer_norm_rms_epsilon"),
        window=keys.count("attention.sliding_window"),
        period=keys.count("attention.sliding_window_pattern", 6),
        local_rope=Rope(rope_dim, keys.real("rope.freq_base_swa", 10000.0), neox=True),
        global_rope=Rope(rope_dim, keys.real("rope.freq_base", 1e6), keys.rope_scale(), neox=True),
        attention_scale=(n_embd / n_heads if n_layers == LAYERS_27B else head_dim) ** -0.5,
        attention_softcap=keys.softcap("attn_logit_softcapping"),
        output_softcap=keys.softcap("final_logit_softcapping"),
    )


def graph(hparams: Hparams, tensors: Mapping[str, Tensor]) -> Graph:
    """The steps of the model. Raises BadModel naming the tensor that is missing or has another shape."""
    h, build = hparams, Builder(tensors)
    x = build.embed(h.n_vocab, h.n_embd, scale=h.n_embd**0.5)
    n_layers = [0, 0]
    for i in range(h.n_layers):
        layer = f"blk.{i}"
        kind = GLOBAL if (i + 1) % h.period == 0 else LOCAL
        normed = build.norm(x, f"{layer}.attn_norm", h.eps)
        q = build.linear(normed, f"{layer}.attn_q", h.n_heads * h.head_dim)
        k = build.linear(normed, f"{layer}.attn_k", h.n_heads_kv * h.head_dim)
        v = build.linear(normed, f"{layer}.attn_v", h.n_heads_kv * h.head_dim)
        build.head_norm(q, f"{layer}.attn_q_norm", h.n_heads, h.eps)
        build.head_norm(k, f"{layer}.attn_k_norm", h.n_heads_kv, h.eps)
        build.rotate(q, h.n_heads, kind)
        build.rotate(k, h.n_heads_kv, kind)
        seen = build.attend(q, k, v, group=kind, layer=n_layers[kind], heads=h.n_heads, scale=h.attention_scale,
                            softcap=h.attention_softcap)  # fmt: skip
        n_layers[kind] += 1
        attended = build.linear(seen, f"{layer}.attn_output", h.n_embd)
        build.norm(attended, f"{layer}.post_attention_norm", h.eps, add_to=x)
        normed = build.norm(x, f"{layer}.ffn_norm", h.eps)
        forward = build.feed_forward(normed, layer, h.n_ff, act="gelu")
        build.norm(forward, f"{layer}.post_ffw_norm", h.eps, add_to=x)
    logits = build.output(x, h.n_vocab, h.eps, h.output_softcap)
    groups = tuple(Group(n_layers[kind], h.n_heads_kv, h.head_dim, (h.window, 0)[kind]) for kind in (LOCAL, GLOBAL))
    return build.finish(logits, (h.local_rope, h.global_rope), groups, h.n_vocab, h.n_ctx_train)
