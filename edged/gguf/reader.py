"""Reads the header of one GGUF file: metadata and tensor table, nothing of the weights.

`parse(data, where)` returns a Header or raises BadModel naming the key or tensor; never anything else. Every count and
length is compared with the bytes that are left before anything is allocated for it or looped over; sizes are Python
integers, so that nothing can wrap around. Bytes after the last tensor are ignored.

    magic "GGUF" | version u32 | tensors u64 | keys u64                            little-endian throughout
    per key      name string | kind u32 | value                                    string: length u64 | bytes
                                                                                   array:  kind u32 | count u64 | values
    per tensor   name string | dimensions u32 | ne0 u64, ne1 u64 ... | type u32 | offset u64
    padding to general.alignment | weights, at their offsets from here

Source: gguf.md of the ggml project. Versions 2 and 3 differ only in that 3 allows big-endian files, which are refused.
"""

from __future__ import annotations

import math
import struct
from typing import NamedTuple

import numpy as np

from edged.errors import BadModel
from edged.gguf.types import GGML_TYPES, WITHDRAWN
from edged.gguf.values import ARRAY, BOOL, DTYPES, KINDS, SCALARS, STRING, U32, Scalar, StringArray, Value, scan_strings

VERSIONS = (2, 3)
MAX_KEYS = MAX_TENSORS = 1 << 16  # far above any model; bounds the objects that a hostile header can ask for
MAX_KEY_BYTES = 65535  # gguf.md: at most 2^16 - 1
MAX_NAME_BYTES = 64  # gguf.md
MAX_DIMS = 4  # ggml.h: GGML_MAX_DIMS
MIN_ALIGNMENT, DEFAULT_ALIGNMENT, MAX_ALIGNMENT = 8, 32, 65536  # gguf.md: a multiple of 8; above 64 KiB: no use known

_u32 = struct.Struct("<I").unpack_from
_u64 = struct.Struct("<Q").unpack_from
_TENSOR = {n: struct.Struct(f"<{n}QIQ") for n in range(1, MAX_DIMS + 1)}  # dimensions, type, offset


class TensorInfo(NamedTuple):
    """One tensor. `shape` is in GGML's order: shape[0] is the length of a row, in weights.

    `offset` counts from the start of the file; `address` is where the map has the first byte; `part` is the file it is
    in, 0 unless the model is split.
    """

    name: str
    type_id: int
    shape: tuple[int, ...]
    offset: int
    nbytes: int
    address: int
    part: int = 0


class Header(NamedTuple):
    """What one file says about itself. `kinds` has the value type of each key, of the elements for an array."""

    version: int
    alignment: int
    meta: dict[str, Value]
    kinds: dict[str, int]
    tensors: dict[str, TensorInfo]


def parse(data: np.ndarray, where: str, address: int = 0, part: int = 0) -> Header:
    """Parse a whole file. data: u8, its first byte at `address`. Raises BadModel, messages start with `where`."""
    at = _Cursor(data, where)
    version = _version(at)
    n_tensors = at.count("the number of tensors", MAX_TENSORS)
    n_keys = at.count("the number of keys", MAX_KEYS)
    meta: dict[str, Value] = {}
    kinds: dict[str, int] = {}
    for index in range(n_keys):
        key = _key(at, index)
        if key in meta:
            raise at.error(f"key {_shown(key)} occurs twice")
        what = f"key {_shown(key)}"
        kind = at.u32(what)
        if kind == ARRAY:
            kinds[key], meta[key] = _array(at, what)
        else:
            kinds[key], meta[key] = kind, _scalar(at, kind, what)
    alignment = _alignment(at, meta, kinds)
    rows: dict[str, _Row] = {}
    for index in range(n_tensors):
        row = _tensor(at, index)
        if row.name in rows:
            raise at.error(f"tensor {_shown(row.name)} occurs twice")
        rows[row.name] = row
    start = -(-at.pos // alignment) * alignment
    _check_places(at, rows, start, alignment)
    tensors = {}
    for name, row in rows.items():
        offset = start + row.offset
        tensors[name] = TensorInfo(name, row.type_id, row.shape, offset, row.nbytes, address + offset, part)
    return Header(version, alignment, meta, kinds, tensors)


class _Row(NamedTuple):
    """A row of the tensor table; `offset` counts from the start of the weights."""

    name: str
    type_id: int
    shape: tuple[int, ...]
    offset: int
    nbytes: int


class _Cursor:
    """A position in the file that moves only over bytes that are there."""

    __slots__ = ("data", "end", "pos", "view", "where")

    def __init__(self, data: np.ndarray, where: str) -> None:
        self.data = data
        self.view = data.data
        self.where = where
        self.pos = 0
        self.end = len(data)

    def error(self, message: str, hint: str = "") -> BadModel:
        return BadModel(f"{self.where}: {message}", hint=hint)

    def take(self, size: int, what: str) -> int:
        """Step over `size` bytes and return where they start."""
        pos = self.pos
        if size > self.end - pos:
            raise self.error(
                f"{what} needs {size} bytes at offset {pos}, {self.end - pos} are left", "the file is cut or corrupt"
            )
        self.pos = pos + size
        return pos

    def u32(self, what: str) -> int:
        return int(_u32(self.view, self.take(4, what))[0])

    def u64(self, what: str) -> int:
        return int(_u64(self.view, self.take(8, what))[0])

    def count(self, what: str, limit: int) -> int:
        value = self.u64(what)
        if value > limit:
            raise self.error(f"{what} is {value}, at most {limit} are accepted")
        return value

    def text(self, what: str, limit: int | None = None) -> bytes:
        size = self.u64(what)
        if limit is not None and size > limit:
            raise self.error(f"{what} is {size} bytes long, at most {limit} are allowed")
        pos = self.take(size, what)
        return bytes(self.view[pos : pos + size])


def _shown(text: str) -> str:
    """A name from the file, made safe for a message: quoted, escaped, cut."""
    return ascii(text if len(text) <= 80 else text[:77] + "...")


def _version(at: _Cursor) -> int:
    magic = bytes(at.view[:4])
    if magic != b"GGUF":
        raise at.error(f"not a GGUF file: it starts with {magic!r} instead of b'GGUF'")
    at.pos = 4
    version = at.u32("the version")
    if version in VERSIONS:
        return version
    if version and not version & 0xFFFF:
        raise at.error("the file is big-endian", "convert it again for little-endian machines")
    if version == 1:
        raise at.error("GGUF version 1 is not supported", "convert the model again with current tools")
    raise at.error(f"GGUF version {version} is not supported, only {VERSIONS[0]} and {VERSIONS[1]}")


def _key(at: _Cursor, index: int) -> str:
    what = f"the name of key {index}"
    raw = at.text(what, MAX_KEY_BYTES)
    try:
        key = raw.decode("utf-8")
    except UnicodeDecodeError:
        raise at.error(f"{what} is not UTF-8: {raw[:64]!r}") from None
    if not key or not key.isprintable():
        raise at.error(f"{what} is {'empty' if not key else 'not printable: ' + _shown(key)}")
    return key


def _scalar(at: _Cursor, kind: int, what: str) -> Scalar:
    if kind == STRING:
        return at.text(what).decode("utf-8", "replace")
    if kind == BOOL:
        value = at.view[at.take(1, what)]
        if value > 1:
            raise at.error(f"{what} is a bool of value {value}")
        return bool(value)
    packed = SCALARS.get(kind)
    if packed is None:
        raise at.error(f"{what} has the unknown value type {kind}")
    number: int | float = packed.unpack_from(at.view, at.take(packed.size, what))[0]
    return number


def _array(at: _Cursor, what: str) -> tuple[int, np.ndarray | StringArray]:
    kind = at.u32(what)
    count = at.u64(what)
    if kind == STRING:
        start = at.pos
        if count > (at.end - start) // 8:
            raise at.error(f"{what} claims {count} strings, {at.end - start} bytes are left")
        rest = at.data[start:]
        bounds = scan_strings(rest, count)
        if bounds is None:
            raise at.error(f"the strings of {what} pass the end of the file", "the file is cut or corrupt")
        at.pos = start + int(bounds[-1])
        return kind, StringArray(rest[: bounds[-1]], bounds)
    if kind == ARRAY:
        raise at.error(f"{what} is an array of arrays, which no known model needs")
    dtype = DTYPES.get(kind)
    if dtype is None:
        raise at.error(f"{what} is an array of the unknown value type {kind}")
    start = at.take(count * dtype.itemsize, what)
    values = at.data[start : at.pos]
    if kind == BOOL and count and values.max() > 1:
        raise at.error(f"{what} holds a bool of value {values.max()}")
    return kind, values.view(dtype)


def _alignment(at: _Cursor, meta: dict[str, Value], kinds: dict[str, int]) -> int:
    key = "general.alignment"
    value = meta.get(key, DEFAULT_ALIGNMENT)
    if key in kinds and (kinds[key] != U32 or not isinstance(value, int)):
        is_array = isinstance(value, np.ndarray | StringArray)
        raise at.error(f"key {key!r} must be a u32, not {'an array of ' if is_array else ''}{KINDS[kinds[key]][0]}")
    assert isinstance(value, int)
    if not MIN_ALIGNMENT <= value <= MAX_ALIGNMENT or value & (value - 1):
        raise at.error(f"key {key!r} is {value}, not a power of two from {MIN_ALIGNMENT} to {MAX_ALIGNMENT}")
    return value


def _tensor(at: _Cursor, index: int) -> _Row:
    what = f"the name of tensor {index}"
    name = at.text(what, MAX_NAME_BYTES).decode("utf-8", "backslashreplace")
    if not name:
        raise at.error(f"{what} is empty")
    what = f"tensor {_shown(name)}"
    n_dims = at.u32(what)
    if not 1 <= n_dims <= MAX_DIMS:
        raise at.error(f"{what} has {n_dims} dimensions, not 1 to {MAX_DIMS}")
    packed = _TENSOR[n_dims]
    *dims, type_id, offset = packed.unpack_from(at.view, at.take(packed.size, what))
    if not all(0 < n < 1 << 63 for n in dims):
        raise at.error(f"{what} has the shape {dims}: dimensions must be from 1 to 2^63 - 1")
    kind = GGML_TYPES.get(type_id)
    if kind is None:
        if type_id in WITHDRAWN:
            raise at.error(
                f"{what} has the withdrawn type {type_id} ({WITHDRAWN[type_id]})", "quantise the model again"
            )
        raise at.error(f"{what} has the unknown type {type_id}")
    if dims[0] % kind.block:
        raise at.error(f"{what}: rows of {dims[0]} weights do not fill {kind.name} blocks of {kind.block}")
    return _Row(name, type_id, tuple(dims), offset, math.prod(dims) // kind.block * kind.size)


def _check_places(at: _Cursor, rows: dict[str, _Row], start: int, alignment: int) -> None:
    """Offsets are aligned, ends are inside the file, no two tensors share a byte."""
    before: _Row | None = None
    for tensor in sorted(rows.values(), key=lambda row: row.offset):
        what = f"tensor {_shown(tensor.name)}"
        if tensor.offset % alignment:
            raise at.error(f"{what} has the offset {tensor.offset}, no multiple of the alignment {alignment}")
        end = start + tensor.offset + tensor.nbytes
        if end > at.end:
            raise at.error(
                f"{what} ends at byte {end}, the file has {at.end}",
                "the download is incomplete or the file was cut: fetch it again",
            )
        if before is not None and before.offset + before.nbytes > tensor.offset:
            raise at.error(f"{what} overlaps tensor {_shown(before.name)}")
        before = tensor
