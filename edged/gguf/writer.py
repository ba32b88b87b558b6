"""Writes GGUF files: what the tests read and what conversion produces.

    writer = Writer()
    writer.add("general.architecture", "llama")
    writer.add_tensor("token_embd.weight", rows)                               # f32 or f16 array (n_vocab, width)
    writer.add_tensor("blk.0.ffn_up.weight", blocks, "q4_k", (1024, 4096))     # bytes, type, shape in GGML's order
    writer.write(path)

`encode_*` are the pieces a file is made of; the layout is drawn in `reader`.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

from edged.errors import BadModel
from edged.gguf.reader import DEFAULT_ALIGNMENT
from edged.gguf.types import TYPE_BY_NAME
from edged.gguf.values import ARRAY, BOOL, DTYPES, F32, I32, KIND_BY_NAME, SCALARS, STRING, StringArray

_KIND_BY_DTYPE = {dtype: kind for kind, dtype in DTYPES.items()}
_TYPE_BY_DTYPE = {
    np.dtype(code): name
    for code, name in (
        ("<f4", "f32"), ("<f2", "f16"), ("<f8", "f64"), ("<i1", "i8"), ("<i2", "i16"), ("<i4", "i32"), ("<i8", "i64"),
    )
}  # fmt: skip


def encode_string(text: str | bytes) -> bytes:
    """u64 length, bytes."""
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw)) + raw


def encode_value(value: Any) -> bytes:
    """u32 kind, value. The kind follows from the value:

    str, bytes: string; bool: bool; float: f32; int: the first of u32, i32, u64, i64 that holds it; numpy scalar or
    array: that of its dtype; other sequence: array of its elements' kind. Raises TypeError or OverflowError.
    """
    kind, payload = _encode(value)
    return struct.pack("<I", kind) + payload


def encode_tensor(name: str | bytes, shape: Sequence[int], type_id: int, offset: int) -> bytes:
    """A row of the tensor table; shape in GGML's order, offset from the start of the weights."""
    return encode_string(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, type_id, offset)


class Writer:
    """Collects metadata and tensors, then writes them in the order in which they came."""

    def __init__(self, *, version: int = 3, alignment: int = DEFAULT_ALIGNMENT) -> None:
        self._version = version
        self._alignment = alignment
        self._values: dict[str, bytes] = {}
        self._tensors: dict[str, tuple[int, tuple[int, ...], memoryview]] = {}
        if alignment != DEFAULT_ALIGNMENT:
            self.add("general.alignment", np.uint32(alignment))

    def add(self, key: str, value: Any) -> None:
        """Set a metadata key; `encode_value` says which type it gets."""
        self._values[key] = encode_value(value)

    def add_tensor(self, name: str, data: Any, type: str = "", shape: Sequence[int] = ()) -> None:
        """Add a tensor: either a numpy array of a type that GGML has, or any buffer with its type and shape.

        data: (ne_n, ..., ne0) if an array, else the rows' blocks; shape: (ne0, ..., ne_n). The data are kept, not
        copied, until `write`. Raises BadModel if size and shape disagree.
        """
        if not type:
            type, shape = _TYPE_BY_DTYPE[data.dtype], data.shape[::-1]
            data = np.ascontiguousarray(data)
        kind = TYPE_BY_NAME[type]
        raw = memoryview(data).cast("B")
        weights = int(np.prod(shape, dtype=object))
        if shape[0] % kind.block or weights // kind.block * kind.size != raw.nbytes:
            raise BadModel(f"tensor {name!r}: {raw.nbytes} bytes are no {type} tensor of shape {list(shape)}")
        self._tensors[name] = kind.id, tuple(shape), raw

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the file beside `path`, flush it to the disk, then rename: no reader ever sees half a model."""
        path = os.fspath(path)
        partial = f"{path}.partial"
        try:
            with open(partial, "wb") as file:
                file.write(self._header())
                for _, _, raw in self._tensors.values():
                    file.write(bytes(self._padding(file.tell())))
                    file.write(raw)
                file.flush()
                os.fsync(file.fileno())
            os.rename(partial, path)
        except BaseException:
            if os.path.exists(partial):
                os.unlink(partial)
            raise
        folder = os.open(os.path.dirname(path) or ".", os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)  # the rename itself
        finally:
            os.close(folder)

    def _header(self) -> bytes:
        parts = [b"GGUF", struct.pack("<IQQ", self._version, len(self._tensors), len(self._values))]
        parts += [encode_string(key) + value for key, value in self._values.items()]
        offset = 0
        for name, (type_id, shape, raw) in self._tensors.items():
            offset += self._padding(offset)
            parts.append(encode_tensor(name, shape, type_id, offset))
            offset += raw.nbytes
        header = b"".join(parts)
        return header + bytes(self._padding(len(header)))

    def _padding(self, pos: int) -> int:
        return -pos % self._alignment


def _encode(value: Any) -> tuple[int, bytes]:
    if isinstance(value, str | bytes):
        return STRING, encode_string(value)
    if isinstance(value, bool | np.bool_):
        return BOOL, b"\1" if value else b"\0"
    if isinstance(value, np.ndarray | np.generic):
        kind = _KIND_BY_DTYPE.get(value.dtype.newbyteorder("<"))
        if kind is None or value.ndim > 1:
            raise TypeError(f"GGUF metadata has no kind for {value.ndim}-dimensional {value.dtype}")
        raw = value.astype(DTYPES[kind]).tobytes()
        return (ARRAY, struct.pack("<IQ", kind, value.size) + raw) if value.ndim else (kind, raw)
    if isinstance(value, float):
        return F32, SCALARS[F32].pack(value)
    if isinstance(value, int):
        kind = _int_kind(value, value)
        return kind, SCALARS[kind].pack(value)
    if isinstance(value, StringArray):
        value = [value.raw(i) for i in range(len(value))]
    return _sequence(value)


def _sequence(values: Sequence[Any]) -> tuple[int, bytes]:
    """An array; integers get the one kind that holds them all."""
    if not values:
        return ARRAY, struct.pack("<IQ", I32, 0)
    if all(type(value) is int for value in values):
        kind = _int_kind(min(values), max(values))
        return ARRAY, struct.pack("<IQ", kind, len(values)) + b"".join(SCALARS[kind].pack(value) for value in values)
    encoded = [_encode(value) for value in values]
    kind = encoded[0][0]
    if any(other != kind for other, _ in encoded):
        raise TypeError("the elements of a GGUF array must be of one kind")
    return ARRAY, struct.pack("<IQ", kind, len(values)) + b"".join(payload for _, payload in encoded)


def _int_kind(low: int, high: int) -> int:
    for name, start, end in (("u32", 0, 32), ("i32", -(1 << 31), 31), ("u64", 0, 64), ("i64", -(1 << 63), 63)):
        if start <= low and high < 1 << end:
            return KIND_BY_NAME[name]
    raise OverflowError(f"no GGUF integer holds both {low} and {high}")
