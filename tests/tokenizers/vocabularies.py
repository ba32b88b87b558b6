"""Vocabularies for tests: the golden ones of golden/tokenizers.json, and tokenizers of the real models."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import edged.gguf
import edged.tokenizers
from edged.tokenizers import Tokenizer

GOLDEN = Path(__file__).parent.parent / "golden"


@cache
def golden(name: str) -> Any:
    """A golden file."""
    return json.loads((GOLDEN / f"{name}.json").read_text("utf-8"))


def meta(model: str, **fields: Any) -> dict[str, Any]:
    """Metadata of a tokenizer; a field of None is left out."""
    keys = {f"tokenizer.ggml.{name}": value for name, value in fields.items() if value is not None}
    return {"tokenizer.ggml.model": model, **keys}


def small(model: str, **fields: Any) -> Tokenizer:
    """The golden vocabulary for "gpt2" or "llama", with some fields different."""
    vocabulary = golden("tokenizers")["bpe" if model == "gpt2" else "spm"]["vocabulary"]
    return edged.tokenizers.open(meta(model, **{**vocabulary, **fields}))


@cache
def of_file(path: Path) -> Tokenizer:
    """The tokenizer of a model file."""
    return edged.tokenizers.open(edged.gguf.open(path).meta)
