"""safetensors: parses, or raises BadModel; never anything else."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edged.convert.safetensors import DTYPES, tensors
from edged.errors import BadModel

NAMES = {np.dtype(code): name for name, code in DTYPES.items() if name not in ("BF16", "BOOL")}


def pack(arrays: dict[str, np.ndarray]) -> bytes:
    """A safetensors file of arrays."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    body = b""
    for name, array in arrays.items():
        raw = array.tobytes()
        span = [len(body), len(body) + len(raw)]
        header[name] = {"dtype": NAMES[array.dtype], "shape": list(array.shape), "data_offsets": span}
        body += raw
    return framed(json.dumps(header).encode(), body)


def framed(header: bytes, body: bytes = b"") -> bytes:
    return len(header).to_bytes(8, "little") + header + body


def parse(data: bytes) -> dict[str, tuple[str, np.ndarray]]:
    return tensors(np.frombuffer(data, np.uint8), "file")


FILE = pack({"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.arange(3, dtype=np.float16), "c": np.int64(7)})


def test_arrays_come_back() -> None:
    found = parse(FILE)
    assert list(found) == ["a", "b", "c"]
    assert [dtype for dtype, _ in found.values()] == ["F32", "F16", "I64"]
    assert found["a"][1].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert found["b"][1].tolist() == [0, 1, 2]
    assert found["c"][1].shape == ()


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"dtype": "F8_E4M3"}, "dtype 'F8_E4M3'"),
        ({"dtype": ["F32"]}, "dtype"),
        ({"shape": [-1]}, "shape"),
        ({"shape": [True]}, "shape"),
        ({"shape": [1.0]}, "shape"),
        ({"shape": [1, 1, 1, 1, 1]}, "shape"),
        ({"shape": [1 << 60]}, "shape"),
        ({"shape": [2]}, "has 4 bytes, its shape needs 8"),
        ({"data_offsets": [4, 0]}, "has -4 bytes"),
        ({"data_offsets": [4, 8]}, "expected to start at 0"),
        ({"data_offsets": [0]}, "data_offsets"),
        ({"data_offsets": [0, 8], "shape": [2]}, "in 4 bytes of data"),
    ],
)
def test_wrong_entries_are_named(entry: dict[str, Any], message: str) -> None:
    row = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4], **entry}
    with pytest.raises(BadModel, match=f"tensor x .*{message}"):
        parse(framed(json.dumps({"x": row}).encode(), bytes(4)))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "0 bytes are no safetensors file"),
        ((1 << 60).to_bytes(8, "little"), "the header has"),
        (framed(b"{")[:-1], "the header has"),
        (framed(b"{"), "no JSON"),
        (framed(b"\xff\xff"), "no JSON"),
        (framed(b"[" * 100_000), "no JSON"),
        (framed(b"[]"), "no JSON object"),
        (framed(b'{"x": 1, "x": 1}'), "given twice"),
        (framed(b'{"x": 1}'), "tensor x"),
        (framed(b"{}", b"1"), "1 bytes after the last tensor"),
        (FILE[:-1], "tensor c"),
    ],
)
def test_wrong_files_are_named(data: bytes, message: str) -> None:
    with pytest.raises(BadModel, match=message):
        parse(data)


@given(data=st.data())
def test_parses_or_raises_bad_model(data: st.DataObject) -> None:
    changed = bytearray(FILE)
    for _ in range(data.draw(st.integers(1, 4))):
        changed[data.draw(st.integers(0, len(FILE) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(BadModel):
        parse(bytes(changed[: data.draw(st.integers(0, len(FILE)))]))
