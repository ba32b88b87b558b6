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
    "bert": {"n_layers": 3, "n_embd": 64, "n_ff": 96, "n_heads": 4, "n_heads_kv": 4, "head_dim": 16},
}
WINDOW = 8
F32 = ("position_embd.weight", "token_types.weight")  # matrices that are never quantised

Change = Callable[[dict[str, Any], dict[str, Any]], None]


def write(path: Path, arch: str = "llama", kind: str = "f32", *, seed: int = 0, n_ctx: int = 512, tied: bool = True,
          meta: dict[str, Any] | None = None, change: Change | None = None, **sizes: int) -> Path:
    """Write a model whose matrices have the tensor type `kind`; returns the path.

    meta: keys set (or, with None, left out) after the others. change: called with the metadata and the tensors, as
    {name: array (rows, k)}, and free to alter both. sizes: as in SIZES.
    """
    size = {**SIZES[arch], **sizes}
    values = metadata(arch, size, n_ctx)
    random = np.random.default_rng(seed)
    tensors = bert_weights(size, random, n_ctx) if arch == "bert" else weights(arch, size, random, tied)
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
            stored = "f32" if name in F32 else kind
            writer.add_tensor(name, encode(stored, array), stored, array.shape[::-1])
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
    if arch == "bert":
        values["attention.layer_norm_epsilon"] = 1e-5
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


def bert_weights(size: dict[str, Any], random: np.random.Generator, n_ctx: int) -> dict[str, np.ndarray]:
    """The same for an encoder, whose norms and matrices all have biases."""
    n_embd, n_ff = size["n_embd"], size["n_ff"]
    tensors = {f"{name}.weight": random.standard_normal((rows, n_embd)).astype(np.float32)
               for name, rows in (("token_embd", N_VOCAB), ("position_embd", n_ctx), ("token_types", 2))}  # fmt: skip
    shapes = {f"attn_{name}": (n_embd, n_embd) for name in ("q", "k", "v", "output")}
    shapes |= {"ffn_up": (n_ff, n_embd), "ffn_down": (n_embd, n_ff)}
    norms = ["token_embd_norm"]
    for i in range(size["n_layers"]):
        norms += [f"blk.{i}.attn_output_norm", f"blk.{i}.layer_output_norm"]
        for name, (rows, k) in shapes.items():
            tensors[f"blk.{i}.{name}.weight"] = (random.standard_normal((rows, k)) * 2 / np.sqrt(k)).astype(np.float32)
            tensors[f"blk.{i}.{name}.bias"] = random.standard_normal(rows).astype(np.float32) / 4
    for name in norms:
        tensors[f"{name}.weight"] = random.uniform(0.5, 1.5, n_embd).astype(np.float32)
        tensors[f"{name}.bias"] = random.standard_normal(n_embd).astype(np.float32) / 4
    return tensors


def encode(kind: str, array: np.ndarray) -> bytes:
    """f32 (rows, k) in a tensor type; random blocks of the same spread where the package gguf cannot write it."""
    from gguf import GGMLQuantizationType, quants

    t = GGMLQuantizationType[kind.upper()]
    if kind in RANDOM_BLOCKS:
        return _random_blocks(t, kind, array.size, float(array.std()), np.random.default_rng(array.size)).tobytes()
    return quants.quantize(array, t).tobytes()


# The package gguf cannot write these; where their blocks have d and, in parts of d, the dmin that centres them.
RANDOM_BLOCKS = {
    "q2_k": ((80, 1), (82, 1.5)), "q3_k": ((108, 1),), "q4_k": ((0, 1), (2, 7.5)), "q5_k": ((0, 1), (2, 15.5)),
    "q6_k": ((208, 1),), "iq4_nl": ((0, 1),), "iq4_xs": ((0, 1),),
    "iq2_xxs": ((0, 1),), "iq2_xs": ((0, 1),), "iq2_s": ((0, 1),), "iq3_xxs": ((0, 1),), "iq3_s": ((0, 1),),
    "iq1_s": ((0, 1),), "iq1_m": (),
}  # fmt: skip


def _random_blocks(t: Any, kind: str, n: int, std: float, random: np.random.Generator) -> np.ndarray:
    """n weights in blocks of random bytes, with scales that give them the standard deviation `std`."""
    from gguf import GGML_QUANT_SIZES, quants

    block, size = GGML_QUANT_SIZES[t]
    out = random.integers(0, 256, (n // block, size), np.uint8)
    for unit in (1.0, None):
        unit = unit or std / float(quants.dequantize(out, t).std())
        for at, part in RANDOM_BLOCKS[kind]:
            out[:, at : at + 2] = np.full((len(out), 1), unit * part, np.float16).view(np.uint8)
        if kind == "iq1_m":  # a nibble of d on top of each of four words
            nibbles = np.float16(unit).view(np.uint16) >> np.array([0, 4, 8, 12], np.uint16) & 15
            out[:, 49::2] = out[:, 49::2] & 15 | nibbles << 4
    return out
