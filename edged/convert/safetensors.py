"""safetensors files: `tensors(data, what)` gives the arrays in a file, or raises BadModel; never anything else.

    u64 n | n bytes of JSON: {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, ...} | data

Offsets count from the start of the data; tensors fill the data without gaps or overlaps.
Source: github.com/huggingface/safetensors, README, "Format".
"""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np

from edged.errors import BadModel

LONGEST_HEADER = 100_000_000  # bytes; the limit of the format
_MOST_DIMENSIONS = 4  # of a GGUF tensor
# bf16 is no numpy type: such an array holds its bits
DTYPES = {"F32": "<f4", "F16": "<f2", "BF16": "<u2", "F64": "<f8", "I64": "<i8", "I32": "<i4", "U8": "u1", "BOOL": "u1"}


def tensors(data: np.ndarray, what: str) -> dict[str, tuple[str, np.ndarray]]:
    """dtype and array by name, in the order of the data; arrays are views of `data`, u8 (n,)."""
    if data.size < 8:
        raise BadModel(f"{what}: {data.size} bytes are no safetensors file")
    length = int.from_bytes(data[:8].tobytes(), "little")
    if length > min(LONGEST_HEADER, data.size - 8):
        raise BadModel(f"{what}: the header has {length} bytes, the file {data.size}", hint="download it again")
    try:
        header = json.loads(data[8 : 8 + length].tobytes(), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as e:
        raise BadModel(f"{what}: the header is no JSON: {e}") from e
    if not isinstance(header, dict):
        raise BadModel(f"{what}: the header is no JSON object")
    header.pop("__metadata__", None)
    rows = [(*_row(name, entry, what), name) for name, entry in header.items()]
    body, end, found = data[8 + length :], 0, {}
    for start, stop, dtype, shape, name in sorted(rows):
        if start != end or stop > body.size:
            raise BadModel(f"{what}: tensor {name} has the bytes {start} to {stop}: expected to start at {end}, in "
                           f"{body.size} bytes of data")  # fmt: skip
        end = stop
        found[name] = dtype, body[start:stop].view(DTYPES[dtype]).reshape(shape)
    if end != body.size:
        raise BadModel(f"{what}: {body.size - end} bytes after the last tensor")
    return found


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name is given twice")
    return found


def _row(name: str, entry: Any, what: str) -> tuple[int, int, str, tuple[int, ...]]:
    """Start, end, dtype and shape of a tensor, with sizes that agree."""
    fields: dict[str, Any] = entry if isinstance(entry, dict) else {}
    dtype, shape, offsets = (fields.get(key) for key in ("dtype", "shape", "data_offsets"))
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise BadModel(f"{what}: tensor {name} has the dtype {dtype!r}", hint=f"supported: {', '.join(DTYPES)}")
    if not isinstance(shape, list) or not _counts(shape) or len(shape) > _MOST_DIMENSIONS:
        raise BadModel(f"{what}: tensor {name} has the shape {shape!r}")
    if not isinstance(offsets, list) or not _counts(offsets) or len(offsets) != 2:
        raise BadModel(f"{what}: tensor {name} has the data_offsets {offsets!r}")
    need = math.prod(shape) * np.dtype(DTYPES[dtype]).itemsize
    if offsets[1] - offsets[0] != need:
        raise BadModel(f"{what}: tensor {name} has {offsets[1] - offsets[0]} bytes, its shape needs {need}")
    return offsets[0], offsets[1], dtype, tuple(shape)


def _counts(values: list[Any]) -> bool:
    return all(type(n) is int and 0 <= n < 1 << 48 for n in values)
