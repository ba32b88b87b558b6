"""Hugging Face models to GGUF: `convert(source, target, type)`.

An architecture is one file that exports `metadata(source, config)` and `tensor_name(name)`, and one row of ARCHS.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from types import ModuleType

from edged.convert import bert
from edged.convert.encode import encode
from edged.convert.safetensors import tensors
from edged.convert.source import Source
from edged.errors import BadModel
from edged.gguf import Writer

__all__ = ["ARCHS", "TYPES", "convert"]

ARCHS: dict[str, ModuleType] = {"bert": bert}  # by model_type of config.json
TYPES = {"f32": 0, "f16": 1, "q8_0": 7, "bf16": 32}  # to general.file_type; source: llama.h, enum llama_ftype

Progress = Callable[[str, int, int], None]  # what, bytes done, bytes in all


def convert(source: str | os.PathLike[str], target: str | os.PathLike[str], type: str,
            progress: Progress | None = None) -> None:
    """Write the model in `source`, a folder or a wheel, as a GGUF file with weights of `type`, one of TYPES.

    Vectors and what the architecture names stay f32; a matrix whose rows are no whole blocks becomes f16. The same
    source gives the same bytes. Raises NotFound for a missing file and BadModel naming what is wrong in one.
    """
    with Source(source) as files:
        config = files.json("config.json")
        arch = ARCHS.get(str(config.get("model_type")))
        if arch is None:
            raise BadModel(f"{files.path}: config.json: model_type is {config.get('model_type')!r}",
                           hint=f"supported: {', '.join(ARCHS)}")
        writer = Writer()
        for key, value in arch.metadata(files, config).items():
            writer.add(key, value)
        writer.add("general.file_type", TYPES[type])
        weights = tensors(files.bytes("model.safetensors"), f"{files.path}: model.safetensors")
        done, total = 0, sum(array.nbytes for _, array in weights.values())
        for name, (dtype, array) in weights.items():
            renamed = arch.tensor_name(name)
            if renamed is not None:
                plain = array.ndim < 2 or renamed in arch.PLAIN
                writer.add_tensor(renamed, *encode(renamed, dtype, array, "f32" if plain else type))
            done += array.nbytes
            if progress is not None:
                progress("converting", done, total)
        writer.write(target)
