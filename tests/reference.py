"""An independent forward pass in float64 over dequantised weights: what the engine's numbers are compared with.

It shares no code with edged: the file is read by the package `gguf`, and every position is computed from scratch with
dense attention and an explicit mask. Keys and values are rounded to f16, as the cache keeps them.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np


def read(path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Metadata without the architecture's prefix, and tensors in float64: (rows, k) or (n,)."""
    from gguf import GGUFReader, quants

    reader = GGUFReader(path)
    arch = reader.fields["general.architecture"].contents()
    meta = {name.removeprefix(f"{arch}."): field.contents() for name, field in reader.fields.items()
            if not name.startswith("tokenizer.")}  # fmt: skip
    tensors = {}
    for tensor in reader.tensors:
        rows = quants.dequantize(tensor.data, tensor.tensor_type)
        tensors[tensor.name] = rows.reshape([int(n) for n in tensor.shape[::-1]]).astype(np.float64)
    return meta, tensors


def forward(path: Path, tokens: list[int]) -> np.ndarray:
    """Logits f64 (tokens, n_vocab) after each token."""
    meta, w = read(path)
    hidden = DECODERS[meta["general.architecture"]](meta, w, np.array(tokens))
    logits = hidden @ w.get("output.weight", w["token_embd.weight"]).T
    cap = meta.get("final_logit_softcapping")
    return cap * np.tanh(logits / cap) if cap else logits


def llama(meta: dict[str, Any], w: dict[str, np.ndarray], tokens: np.ndarray) -> np.ndarray:
    """Pre-norm transformer, SiLU gate, rotary pairs (2i, 2i + 1); hidden states (tokens, n_embd)."""
    eps, n_pos = meta["attention.layer_norm_rms_epsilon"], len(tokens)
    head_dim = meta.get("attention.key_length", meta["embedding_length"] // meta["attention.head_count"])
    factors = w.get("rope_freqs.weight", 1.0)
    angles = rope_angles(n_pos, head_dim, meta["rope.freq_base"], meta.get("rope.scaling.factor", 1.0), factors)
    x = w["token_embd.weight"][tokens]
    for i in range(meta["block_count"]):
        def mul(name: str, x: np.ndarray, i: int = i) -> np.ndarray:
            return x @ w[f"blk.{i}.{name}.weight"].T + w.get(f"blk.{i}.{name}.bias", 0.0)

        h = rms(x, w[f"blk.{i}.attn_norm.weight"], eps)
        q, k, v = (mul(name, h).reshape(n_pos, -1, head_dim) for name in ("attn_q", "attn_k", "attn_v"))
        q, k = rotate_pairs(q, angles), rotate_pairs(k, angles)
        x = x + mul("attn_output", attention(q, k, v, head_dim**-0.5))
        h = rms(x, w[f"blk.{i}.ffn_norm.weight"], eps)
        gate = mul("ffn_gate", h)
        x = x + mul("ffn_down", gate / (1 + np.exp(-gate)) * mul("ffn_up", h))
    return rms(x, w["output_norm.weight"], eps)


def gemma3(meta: dict[str, Any], w: dict[str, np.ndarray], tokens: np.ndarray) -> np.ndarray:
    """Norms before and after, per-head norms, GELU gate, rotary halves; of six layers the last sees everything."""
    eps, head_dim, n_pos = meta["attention.layer_norm_rms_epsilon"], meta["attention.key_length"], len(tokens)
    local = rope_angles(n_pos, head_dim, 10000.0, 1.0, 1.0)
    everywhere = rope_angles(n_pos, head_dim, meta["rope.freq_base"], meta.get("rope.scaling.factor", 1.0), 1.0)
    x = w["token_embd.weight"][tokens] * np.sqrt(meta["embedding_length"])
    for i in range(meta["block_count"]):
        t = {name.removeprefix(f"blk.{i}."): rows for name, rows in w.items() if name.startswith(f"blk.{i}.")}
        sees_all = i % 6 == 5
        angles = everywhere if sees_all else local
        h = rms(x, t["attn_norm.weight"], eps)
        q, k, v = ((h @ t[f"attn_{name}.weight"].T).reshape(n_pos, -1, head_dim) for name in "qkv")
        q = rotate_halves(rms(q, t["attn_q_norm.weight"], eps), angles)
        k = rotate_halves(rms(k, t["attn_k_norm.weight"], eps), angles)
        seen = attention(q, k, v, head_dim**-0.5, 0 if sees_all else meta["attention.sliding_window"])
        x = x + rms(seen @ t["attn_output.weight"].T, t["post_attention_norm.weight"], eps)
        h = rms(x, t["ffn_norm.weight"], eps)
        gate = h @ t["ffn_gate.weight"].T
        gelu = 0.5 * gate * (1 + np.tanh(np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3)))
        x = x + rms((gelu * (h @ t["ffn_up.weight"].T)) @ t["ffn_down.weight"].T, t["post_ffw_norm.weight"], eps)
    return rms(x, w["output_norm.weight"], eps)


def embedding(path: Path, tokens: list[int], pooling: str) -> np.ndarray:
    """The vector of length 1, f64 (n_embd,), that a model makes of a text."""
    meta, w = read(path)
    x = {**DECODERS, "bert": bert}[meta["general.architecture"]](meta, w, np.array(tokens))
    pooled = {"mean": x.mean(0), "cls": x[0], "last": x[-1]}[pooling]
    return pooled / np.linalg.norm(pooled)


def bert(meta: dict[str, Any], w: dict[str, np.ndarray], tokens: np.ndarray) -> np.ndarray:
    """Encoder, norms with biases after each sum, exact GELU; hidden states (tokens, n_embd)."""
    eps, n_heads, n_pos = meta["attention.layer_norm_epsilon"], meta["attention.head_count"], len(tokens)

    def norm(x: np.ndarray, name: str) -> np.ndarray:
        x = x - x.mean(-1, keepdims=True)
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * w[f"{name}.weight"] + w[f"{name}.bias"]

    def mul(x: np.ndarray, name: str) -> np.ndarray:
        return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    x = w["token_embd.weight"][tokens] + w["position_embd.weight"][:n_pos] + w["token_types.weight"][0]
    x = norm(x, "token_embd_norm")
    for i in range(meta["block_count"]):
        layer = f"blk.{i}"
        q, k, v = (mul(x, f"{layer}.attn_{name}").reshape(n_pos, n_heads, -1) for name in "qkv")
        seen = attention(q, k, v, q.shape[-1] ** -0.5, causal=False)
        x = norm(x + mul(seen, f"{layer}.attn_output"), f"{layer}.attn_output_norm")
        up = mul(x, f"{layer}.ffn_up")
        gelu = up * np.vectorize(lambda z: math.erfc(-z / math.sqrt(2)) / 2)(up)
        x = norm(x + mul(gelu, f"{layer}.ffn_down"), f"{layer}.layer_output_norm")
    return x


DECODERS = {"llama": llama, "gemma3": gemma3}


def rms(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    """x / sqrt(mean(x**2) + eps) * weight"""
    return x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + eps) * weight


def rope_angles(n_pos: int, dim: int, base: float, scaling: float, factors: Any) -> np.ndarray:
    """(position, pair)"""
    inverse = np.array([base ** (-2 * i / dim) for i in range(dim // 2)]) / factors
    return np.arange(n_pos)[:, None] / scaling * inverse


def rotate_pairs(x: np.ndarray, angles: np.ndarray) -> np.ndarray:
    """x: (position, head, dim); neighbours are a complex number."""
    z = (x[..., 0::2] + 1j * x[..., 1::2]) * np.exp(1j * angles)[:, None]
    return np.stack([z.real, z.imag], -1).reshape(x.shape)


def rotate_halves(x: np.ndarray, angles: np.ndarray) -> np.ndarray:
    """x: (position, head, dim); the two halves are the real and imaginary parts."""
    half = x.shape[-1] // 2
    z = (x[..., :half] + 1j * x[..., half:]) * np.exp(1j * angles)[:, None]
    return np.concatenate([z.real, z.imag], -1)


def attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, scale: float, window: int = 0,
              causal: bool = True) -> np.ndarray:
    """q: (position, head, dim), k and v with fewer heads -> (position, heads * dim). window 0: none."""
    k, v = (rows.astype(np.float16).astype(np.float64) for rows in (k, v))
    k, v = (np.repeat(rows, q.shape[1] // rows.shape[1], axis=1) for rows in (k, v))
    scores = np.einsum("phd,shd->hps", q, k) * scale
    distance = np.arange(len(q))[:, None] - np.arange(len(q))
    hidden = (causal & (distance < 0)) | ((distance >= window) if window else False)
    scores = np.where(hidden, -np.inf, scores)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    return np.einsum("hps,shd->phd", weights, v).reshape(len(q), -1)
