"""Architectures by their name in GGUF files. Each exports `hyperparameters(meta)` and `graph(hparams, tensors)`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edged.errors import BadModel
from edged.models import bert, gemma3, llama
from edged.models.blocks import Graph, Tensor

ARCHS = {"llama": llama, "gemma3": gemma3, "bert": bert}


def graph(meta: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Graph:
    """The steps of a model. Raises BadModel naming the key or tensor that is wrong."""
    name = meta.get("general.architecture")
    arch: Any = ARCHS.get(name) if isinstance(name, str) else None
    if arch is None:
        raise BadModel(f"key general.architecture is {name!r}; supported: {', '.join(ARCHS)}")
    result: Graph = arch.graph(arch.hyperparameters(meta), tensors)
    return result
