"""Metadata value types, and string arrays that stay in the mapped file.

A string is a u64 length and that many bytes; an array of strings is a run of them, so that finding its end means
visiting every element. A vocabulary has up to 262 144 of them and as many merges: `scan_strings` visits them with
numpy, and `StringArray` makes a Python object only for an element that is asked for.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias, overload

import numpy as np

# Source: gguf.md, enum gguf_metadata_value_type. The code of a kind (struct and numpy agree) is empty for kinds without
# a fixed size.
KINDS: tuple[tuple[str, str], ...] = (
    ("u8", "B"),
    ("i8", "b"),
    ("u16", "H"),
    ("i16", "h"),
    ("u32", "I"),
    ("i32", "i"),
    ("f32", "f"),
    ("bool", "?"),
    ("string", ""),
    ("array", ""),
    ("u64", "Q"),
    ("i64", "q"),
    ("f64", "d"),
)
KIND_BY_NAME = {name: kind for kind, (name, _) in enumerate(KINDS)}
U32, I32, F32, BOOL, STRING, ARRAY = (KIND_BY_NAME[n] for n in ("u32", "i32", "f32", "bool", "string", "array"))
SCALARS = {kind: struct.Struct("<" + code) for kind, (_, code) in enumerate(KINDS) if code}
DTYPES: dict[int, np.dtype[Any]] = {kind: np.dtype("<" + code) for kind, (_, code) in enumerate(KINDS) if code}

_u64 = struct.Struct("<Q").unpack_from
_WINDOW = 1 << 16  # bytes guessed at once by scan_strings; its temporaries fit the second-level cache of a small core
_WALK = 1 << 13  # bytes walked string by string after a wrong guess


class StringArray(Sequence[str]):
    """Strings of one metadata array, left where they are in the file.

    buffer: u8 (bytes of the array,), the length fields included
    offsets: i32 (n,), where the bytes of string i start in `buffer`
    lengths: i32 (n,)

    An element is decoded when it is asked for; bytes that are not UTF-8 become U+FFFD (`raw` gives them unchanged).
    """

    __slots__ = ("_ends", "buffer", "offsets")

    def __init__(self, buffer: np.ndarray, bounds: np.ndarray) -> None:
        """bounds: i32 (n + 1,), where the length fields start, and the end of the last string."""
        self.buffer = buffer
        self._ends = bounds[1:]
        self.offsets = bounds[:-1] + np.int32(8)

    @property
    def lengths(self) -> np.ndarray:
        """i32 (n,): bytes of each string. Computed at every access."""
        return self._ends - self.offsets

    def raw(self, index: int) -> bytes:
        """Bytes of one string. Raises IndexError."""
        return self.buffer[self.offsets[index] : self._ends[index]].tobytes()

    def __len__(self) -> int:
        return len(self.offsets)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        return self.raw(index).decode("utf-8", "replace")

    def __iter__(self) -> Iterator[str]:
        data = self.buffer.tobytes()
        for start, end in zip(self.offsets.tolist(), self._ends.tolist(), strict=True):
            yield data[start:end].decode("utf-8", "replace")

    def __repr__(self) -> str:
        return f"StringArray({len(self)} strings, {len(self.buffer)} bytes)"


Scalar: TypeAlias = "bool | int | float | str"
Value: TypeAlias = "Scalar | np.ndarray | StringArray"


def scan_strings(data: np.ndarray, count: int) -> np.ndarray | None:
    """Bounds of the `count` strings that start at data[0]: i32 (count + 1,), or None if one passes the end of `data`.

    data: u8; count <= len(data) / 8.

    Strings below 256 bytes that hold no NUL show their length fields by seven zero bytes in a row. Each window guesses
    the fields from that, and keeps the guesses that form an unbroken chain from the first on: field, bytes, next field.
    A chain is a proof, so the guess costs nothing in certainty; what breaks it is walked string by string.
    """
    bounds = np.empty(count + 1, np.int32)
    limit = min(len(data), np.iinfo(np.int32).max)
    done = pos = 0
    while done < count:
        if pos + 8 > limit:
            return None
        window = data[pos : pos + _WINDOW]
        chain = _chain(window)[: count - done]
        bounds[done : done + len(chain)] = chain + pos
        done += len(chain)
        unseen = pos + len(window) - 7  # the first field that this window does not hold whole
        if len(chain):
            pos += int(chain[-1]) + 8 + int(window[chain[-1]])
        if pos < unseen and done < count:  # an odd string broke the chain
            walked = _walk(data, pos, min(pos + _WALK, limit - 7), count - done)
            bounds[done : done + len(walked) - 1] = walked[:-1]
            done += len(walked) - 1
            pos = walked[-1]
    if pos > limit:
        return None
    bounds[count] = pos
    return bounds


def _chain(window: np.ndarray) -> np.ndarray:
    """Positions of length fields in a window (>= 8 bytes) that starts with one, as far as each leads to the next."""
    zeros = window[1:] == 0
    zeros = zeros[:-1] & zeros[1:]  # two in a row
    zeros = zeros[:-2] & zeros[2:]  # four
    zeros = zeros[:-3] & zeros[3:]  # seven
    fields = np.flatnonzero(zeros)
    if not len(fields) or fields[0] != 0:
        return fields[:0]
    broken = np.flatnonzero(fields[:-1] + 8 + window[fields[:-1]] != fields[1:])
    return fields[: broken[0] + 1] if len(broken) else fields


def _walk(data: np.ndarray, pos: int, stop: int, count: int) -> list[int]:
    """Positions of up to `count` length fields from `pos` on that start before `stop`, and where the next one is."""
    view = data.data
    found = [pos]
    while pos < stop and len(found) <= count:
        pos += 8 + _u64(view, pos)[0]
        found.append(pos)
    return found
