"""Small random models in GGUF files, of every architecture and tensor type, for tests.

    write(path, "gemma3", "q4_k", n_embd=1024)
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from edged.gguf import Writer

N_VOCAB = 160
SIZES: dict[str, dict[str, Any]] = {
    "llama": {"n_layers": 3, "n_embd": 64, "n_ff": 96, "n_heads": 4, "n_heads_kv": 2, "head_dim": 16},
    "gemma3": {"n_layers": 12, "n_embd": 64, "n_ff": 96, "n_heads": 4, "n_heads_kv": 2, "head_dim": 32},
}
WINDOW = 8

Change = Callable[[dict[str, Any], dict[str, Any]], None]


def write(path: Path, arch: str = "llama", kind: str = "f32", *, seed: int = 0, n_ctx: int = 512, tied: bool = True,
          meta: dict[str, Any] | None = None, change: Change | None = None, **sizes: int) -> Path:
    """Write a model whose matrices have the tensor type `kind`; returns the path.

    meta: keys set (or, with None, left out) after the others. change: called with the metadata and the tensors, as
    {name: array (rows, k)}, and free to alter both. sizes: as in SIZES.
    """
    size = {**SIZES[arch], **sizes}
    values = metadata(arch, size, n_ctx)
    tensors = weights(arch, size, np.random.default_rng(seed), tied)
    values.update(meta or {})
    if change:
        change(values, tensors)
    writer = Writer()
    for key, value in values.items():
        if value is not None:
            writer.add(key, value)
    for name, array in tensors.items():
        if array.ndim == 1:
            writer.add_tensor(name, array)
        else:
            writer.add_tensor(name, encode(kind, array), kind, array.shape[::-1])
    writer.write(path)
    return path


def metadata(arch: str, size: dict[str, Any], n_ctx: int) -> dict[str, Any]:
    """The keys of such a model."""
    values = {
        "general.architecture": arch,
        "general.name": f"tiny {arch}",
        "block_count": size["n_layers"],
        "context_length": n_ctx,
        "embedding_length": size["n_embd"],
        "feed_forward_length": size["n_ff"],
        "attention.head_count": size["n_heads"],
        "attention.head_count_kv": size["n_heads_kv"],
        "attention.layer_norm_rms_epsilon": 1e-5,
        "attention.key_length": size["head_dim"],
        "attention.value_length": size["head_dim"],
        "rope.freq_base": 10000.0 if arch == "llama" else 1e6,
    }
    if arch == "gemma3":
        values["attention.sliding_window"] = WINDOW
    keyed = {key if key.startswith("general.") else f"{arch}.{key}": value for key, value in values.items()}
    return {**keyed, "tokenizer.ggml.tokens": [f"t{i}" for i in range(N_VOCAB)]}


def weights(arch: str, size: dict[str, Any], random: np.random.Generator, tied: bool) -> dict[str, np.ndarray]:
    """Random f32 tensors: matrices (rows, k) that keep the size of what they multiply, norms that halve it."""
    n_embd, n_ff, dim = size["n_embd"], size["n_ff"], size["head_dim"]
    q, kv = size["n_heads"] * dim, size["n_heads_kv"] * dim

    def matrix(rows: int, k: int) -> np.ndarray:
        return (random.standard_normal((rows, k)) / np.sqrt(k)).astype(np.float32)

    def norm(n: int) -> np.ndarray:
        return random.uniform(0.2, 0.8, n).astype(np.float32)

    tensors = {"token_embd.weight": matrix(N_VOCAB, n_embd) * np.float32(4), "output_norm.weight": norm(n_embd)}
    if not tied:
        tensors["output.weight"] = matrix(N_VOCAB, n_embd)
    for i in range(size["n_layers"]):
        layer = {
            "attn_norm": norm(n_embd), "attn_q": matrix(q, n_embd), "attn_k": matrix(kv, n_embd),
            "attn_v": matrix(kv, n_embd), "attn_output": matrix(n_embd, q), "ffn_norm": norm(n_embd),
            "ffn_gate": matrix(n_ff, n_embd), "ffn_up": matrix(n_ff, n_embd), "ffn_down": matrix(n_embd, n_ff),
        }  # fmt: skip
        if arch == "gemma3":
            layer |= {"attn_q_norm": norm(dim), "attn_k_norm": norm(dim), "post_attention_norm": norm(n_embd),
                      "post_ffw_norm": norm(n_embd)}  # fmt: skip
        tensors |= {f"blk.{i}.{name}.weight": array for name, array in layer.items()}
    return tensors


def encode(kind: str, array: np.ndarray) -> bytes:
    """f32 (rows, k) in a tensor type. K-quants, which the package gguf cannot write, get random blocks of the size."""
    from gguf import GGMLQuantizationType, quants

    if kind in RANDOM_BLOCKS:
        random = np.random.default_rng(array.size)
        return RANDOM_BLOCKS[kind](random, array.size // 256, float(array.std())).tobytes()
    return quants.quantize(array, GGMLQuantizationType[kind.upper()]).tobytes()


def _q4_k_or_q5_k(size: int, levels: int) -> Callable[[np.random.Generator, int, float], np.ndarray]:
    """w = d * scale * q - dmin * min, scales and mins of 6 bits, of mean 31.5."""

    def blocks(random: np.random.Generator, n: int, std: float) -> np.ndarray:
        out = random.integers(0, 256, (n, size), np.uint8)
        d = std / (31.5 * levels * 0.4)
        out[:, 0:2] = np.full((n, 1), d, np.float16).view(np.uint8)
        out[:, 2:4] = np.full((n, 1), d * (levels - 1) / 2, np.float16).view(np.uint8)
        return out

    return blocks


def _q6_k(random: np.random.Generator, n: int, std: float) -> np.ndarray:
    """w = d * scale * (q - 32), scales i8."""
    out = random.integers(0, 256, (n, 210), np.uint8)
    out[:, 208:210] = np.full((n, 1), std / (74 * 18.5), np.float16).view(np.uint8)
    return out


RANDOM_BLOCKS = {"q4_k": _q4_k_or_q5_k(144, 16), "q5_k": _q4_k_or_q5_k(176, 32), "q6_k": _q6_k}
