"""Tokenizers: text to token ids and back, from a model's own metadata.

`open(meta) -> Tokenizer` (base.py has its face) or BadModel. A tokenizer model is one file and one row of TOKENIZERS,
a pretokenizer one row of pretokenizers.PRETOKENIZERS.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from edged.errors import BadModel
from edged.tokenizers.base import Tokenizer
from edged.tokenizers.bpe import Bpe
from edged.tokenizers.spm import Spm
from edged.tokenizers.stream import TextStream
from edged.tokenizers.wpm import Wpm

__all__ = ["TOKENIZERS", "TextStream", "Tokenizer", "open"]

# tokenizer.ggml.model -> tokenizer
TOKENIZERS: dict[str, Callable[[Mapping[str, Any]], Tokenizer]] = {"gpt2": Bpe, "llama": Spm, "bert": Wpm}


def open(meta: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer of a model with this GGUF metadata. Raises BadModel naming the key."""
    model = meta.get("tokenizer.ggml.model")
    if not isinstance(model, str) or model not in TOKENIZERS:
        known = ", ".join(sorted(TOKENIZERS))
        raise BadModel(f"tokenizer.ggml.model: no tokenizer for {model!r}", hint=f"known: {known}")
    return TOKENIZERS[model](meta)
