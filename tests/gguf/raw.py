"""GGUF files put together by hand, so that any field of them can be wrong."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from edged.gguf.reader import Header, parse
from edged.gguf.writer import encode_string, encode_tensor, encode_value

F32 = 0


def u32(n: int) -> bytes:
    return struct.pack("<I", n)


def u64(n: int) -> bytes:
    return struct.pack("<Q", n)


def key(name: str | bytes, value: Any) -> bytes:
    return encode_string(name) + encode_value(value)


def array(name: str, kind: int, count: int, payload: bytes = b"") -> bytes:
    """A key that holds an array of any element kind and claimed length."""
    return encode_string(name) + u32(9) + u32(kind) + u64(count) + payload


def tensor(name: str = "t", shape: Sequence[int] = (4,), type_id: int = F32, offset: int = 0) -> bytes:
    return encode_tensor(name, shape, type_id, offset)


def gguf(
    keys: Sequence[bytes] = (),
    tensors: Sequence[bytes] = (),
    data: bytes = b"",
    *,
    n_keys: int | None = None,
    n_tensors: int | None = None,
    version: int = 3,
    alignment: int = 32,
) -> bytes:
    """A file of these keys and tensors; `data` starts at the first multiple of `alignment` after them."""
    head = b"GGUF" + u32(version)
    head += u64(len(tensors) if n_tensors is None else n_tensors) + u64(len(keys) if n_keys is None else n_keys)
    head += b"".join(keys) + b"".join(tensors)
    return head + bytes(-len(head) % alignment) + data if tensors else head


def read(content: bytes) -> Header:
    return parse(np.frombuffer(content, np.uint8), "x.gguf")


def save(folder: Path, content: bytes, name: str = "x.gguf") -> Path:
    path = folder / name
    path.write_bytes(content)
    return path
