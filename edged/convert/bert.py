"""bert: encoders such as all-MiniLM-L6-v2, with a WordPiece vocabulary.

Names and keys are those of llama.cpp (convert_hf_to_gguf.py, BertModel; gguf-py, tensor_mapping.py).
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from edged.convert.source import Source
from edged.errors import BadModel

PLAIN = ("position_embd.weight", "token_types.weight")  # a few rows that are added: f32 as the norms
_POOLING = {"pooling_mode_mean_tokens": 1, "pooling_mode_cls_token": 2, "pooling_mode_lasttoken": 3}  # llama.h
_OUTSIDE = {
    "embeddings.word_embeddings": "token_embd",
    "embeddings.position_embeddings": "position_embd",
    "embeddings.token_type_embeddings": "token_types",
    "embeddings.LayerNorm": "token_embd_norm",
}
_IN_LAYER = {
    "attention.self.query": "attn_q",
    "attention.self.key": "attn_k",
    "attention.self.value": "attn_v",
    "attention.output.dense": "attn_output",
    "attention.output.LayerNorm": "attn_output_norm",
    "intermediate.dense": "ffn_up",
    "output.dense": "ffn_down",
    "output.LayerNorm": "layer_output_norm",
}
_SPECIAL = {  # keys by tokenizer_config.json's names
    "unk_token": "unknown", "sep_token": "seperator", "pad_token": "padding", "cls_token": "cls", "mask_token": "mask",
}  # fmt: skip
_PIECE, _CONTROL = 1, 3  # gguf.md, tokenizer.ggml.token_type


def tensor_name(name: str) -> str | None:
    """The name in GGUF; None for what embedding does not use. Raises BadModel for an unknown one."""
    name = name.removeprefix("bert.")
    stem, _, kind = name.rpartition(".")
    if stem in _OUTSIDE:
        return f"{_OUTSIDE[stem]}.{kind}"
    layer = re.fullmatch(r"encoder\.layer\.(\d+)\.(.+)", stem)
    if layer and layer[2] in _IN_LAYER:
        return f"blk.{layer[1]}.{_IN_LAYER[layer[2]]}.{kind}"
    if name == "embeddings.position_ids" or name.startswith(("pooler.", "cls.")):
        return None
    raise BadModel(f"tensor {name} is none of a bert model")


def metadata(source: Source, config: dict[str, Any]) -> dict[str, Any]:
    """All keys but general.file_type. Raises BadModel naming the file and the setting."""
    for key, wanted in (("hidden_act", "gelu"), ("position_embedding_type", "absolute")):
        if config.get(key, wanted) != wanted:
            raise BadModel(f"config.json: {key} is {config[key]!r}, only {wanted!r} is supported")
    eps = config.get("layer_norm_eps", 1e-12)
    if type(eps) not in (int, float) or not 0 < eps < 1:
        raise BadModel(f"config.json: layer_norm_eps is {eps!r}")
    return {
        "general.architecture": "bert",
        "general.name": source.name,
        "bert.block_count": _count(config, "num_hidden_layers"),
        "bert.context_length": _count(config, "max_position_embeddings"),
        "bert.embedding_length": _count(config, "hidden_size"),
        "bert.feed_forward_length": _count(config, "intermediate_size"),
        "bert.attention.head_count": _count(config, "num_attention_heads"),
        "bert.attention.layer_norm_epsilon": float(eps),
        "bert.attention.causal": False,
        "bert.pooling_type": _pooling(source),
        **_tokenizer(source, config),
    }


def _count(config: dict[str, Any], key: str) -> int:
    value = config.get(key)
    if type(value) is not int or not 0 < value < 1 << 31:
        raise BadModel(f"config.json: {key} is {value!r}, expected a whole number above 0")
    return value


def _pooling(source: Source) -> int:
    """llama.h, enum llama_pooling_type; mean where the model does not say."""
    modes = [mode for mode, on in source.json("1_Pooling/config.json", optional=True).items()
             if mode.startswith("pooling_mode_") and on]  # fmt: skip
    if not modes:
        return _POOLING["pooling_mode_mean_tokens"]
    if len(modes) > 1 or modes[0] not in _POOLING:
        raise BadModel(f"1_Pooling/config.json: {' and '.join(modes)}", hint=f"supported: one of {', '.join(_POOLING)}")
    return _POOLING[modes[0]]


def _tokenizer(source: Source, config: dict[str, Any]) -> dict[str, Any]:
    pieces = source.text("vocab.txt").removesuffix("\n").split("\n")
    n_vocab = _count(config, "vocab_size")
    if len(pieces) != n_vocab:
        raise BadModel(f"vocab.txt has {len(pieces)} lines, vocab_size in config.json is {n_vocab}")
    settings = source.json("tokenizer_config.json", optional=True)
    lowercase = settings.get("do_lower_case", True)
    accents = settings.get("strip_accents")
    keys: dict[str, Any] = {
        "tokenizer.ggml.model": "bert",
        "tokenizer.ggml.tokens": [_piece(piece) for piece in pieces],
        "tokenizer.ggml.token_type": np.array([_CONTROL if _bracketed(p) else _PIECE for p in pieces], np.int32),
        "tokenizer.ggml.token_type_count": _count(config, "type_vocab_size"),
        "tokenizer.ggml.normalizer.lowercase": bool(lowercase),
        "tokenizer.ggml.normalizer.strip_accents": bool(lowercase if accents is None else accents),
    }
    for name, key in _SPECIAL.items():
        given = settings.get(name, f"[{name[:-6].upper()}]")
        piece = given.get("content") if isinstance(given, dict) else given
        if piece not in pieces:
            raise BadModel(f"tokenizer_config.json: {name} is {piece!r}, which vocab.txt does not have")
        keys[f"tokenizer.ggml.{key}_token_id"] = pieces.index(piece)
    return keys


def _bracketed(piece: str) -> bool:
    return len(piece) > 2 and piece[0] == "[" and piece[-1] == "]"


def _piece(piece: str) -> str:
    """As GGUF has it: U+2581 before what begins a word, nothing before what goes on."""
    if _bracketed(piece):
        return piece
    return piece.removeprefix("##") if piece.startswith("##") and len(piece) > 2 else f"▁{piece}"
