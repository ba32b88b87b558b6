"""Architectures by their name in GGUF files. Each exports `hyperparameters(meta)` and `graph(hparams, tensors)`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edged.errors import BadModel
from edged.models import bert, gemma3, llama
from edged.models.blocks import POOLINGS, Graph, Pooling, Tensor

ARCHS = {"llama": llama, "gemma3": gemma3, "bert": bert}


def graph(meta: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Graph:
    """The steps of a model. Raises BadModel naming the key or tensor that is wrong."""
    name = meta.get("general.architecture")
    arch: Any = ARCHS.get(name) if isinstance(name, str) else None
    if arch is None:
        raise BadModel(f"key general.architecture is {name!r}; supported: {', '.join(ARCHS)}")
    result: Graph = arch.graph(arch.hyperparameters(meta), tensors)
    return result


def pooling(meta: Mapping[str, Any]) -> Pooling | None:
    """How the file says that its vectors are pooled; None if it does not. Raises BadModel for a way not known."""
    key = f"{meta.get('general.architecture')}.pooling_type"
    number = meta.get(key, 0)
    if number != 0 and number not in POOLINGS:
        known = ", ".join(f"{each} ({name})" for each, name in POOLINGS.items())
        raise BadModel(f"key {key} is {number!r}; supported: {known}")
    return POOLINGS.get(number)
