"""Find a string among hundreds of thousands without a Python object for each: vocabulary pieces, merge rules.

`StringIndex(strings).find(piece) -> position or -1`. All hashes are computed by numpy in one pass over the bytes where
they lie (a GGUF string array stays in the mapped file); a match is proven by comparing bytes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable
from typing import Protocol, TypeVar

import numpy as np

K = TypeVar("K")
T = TypeVar("T")

_MULTIPLIER = 0x9E3779B97F4A7C15  # 2**64 / golden ratio (Knuth, TAOCP 3, 6.4: multiplicative hashing)
_MASK = (1 << 64) - 1
_CHUNK = 16384  # strings hashed at once: the temporaries stay in the second-level cache and on the heap
_REMEMBERED = 32768  # answers kept


class Strings(Protocol):
    """What a GGUF string array offers.

    buffer: u8 (at least 8,); string i is buffer[offsets[i] : offsets[i] + lengths[i]]; offsets, lengths: i32 (n,)
    """

    buffer: np.ndarray
    offsets: np.ndarray

    @property
    def lengths(self) -> np.ndarray: ...
    def raw(self, index: int) -> bytes: ...
    def __len__(self) -> int: ...


class PackedStrings:
    """Strings of a plain list, packed into one buffer."""

    def __init__(self, strings: Iterable[str | bytes]) -> None:
        encoded = [s.encode("utf-8", "surrogateescape") if isinstance(s, str) else s for s in strings]
        self.buffer = np.frombuffer(b"".join(encoded) + bytes(8), np.uint8)
        self.lengths = np.array([len(s) for s in encoded], np.int32)
        self.offsets = np.cumsum(self.lengths, dtype=np.int32) - self.lengths

    def raw(self, index: int) -> bytes:
        """Bytes of one string."""
        offset = self.offsets[index]
        return self.buffer[offset : offset + self.lengths[index]].tobytes()

    def __len__(self) -> int:
        return len(self.offsets)


class StringIndex:
    """Sorted hashes, each with the position of its string in the low bits. Of equal strings, the first is found."""

    def __init__(self, strings: Strings) -> None:
        lengths = strings.lengths
        self._position_bits = max(len(lengths) - 1, 1).bit_length()
        keys = _hash_all(strings.buffer, strings.offsets, lengths)
        keys >>= np.uint64(self._position_bits)
        keys <<= np.uint64(self._position_bits)
        keys |= np.arange(len(lengths), dtype=np.uint64)
        keys.sort()
        self.longest = int(lengths.max(initial=0))  # bytes
        # .data: an element read from a memoryview is a Python int at once, several times cheaper than a numpy scalar
        self._keys = keys.data
        self._buffer = strings.buffer.data
        self._offsets = strings.offsets.data
        self._lengths = lengths.data

    def find(self, piece: bytes) -> int:
        """Position of `piece`, or -1. The empty string is never found."""
        length = len(piece)
        if not 0 < length <= self.longest:
            return -1
        prefix = _hash_one(piece) >> self._position_bits
        at = bisect_left(self._keys, prefix << self._position_bits)
        while at < len(self._keys) and self._keys[at] >> self._position_bits == prefix:
            position = self._keys[at] & ((1 << self._position_bits) - 1)
            offset = self._offsets[position]
            if self._lengths[position] == length and self._buffer[offset : offset + length] == piece:
                return position
            at += 1
        return -1


class Memo(dict[K, T]):
    """A function with its latest answers: the same pieces and characters are asked for again and again."""

    def __init__(self, function: Callable[[K], T]) -> None:
        super().__init__()
        self._function = function

    def __missing__(self, key: K) -> T:
        value = self._function(key)
        if len(self) >= _REMEMBERED:
            self.clear()
        self[key] = value
        return value


def _hash_one(piece: bytes) -> int:
    """The hash of one string, as _hash_all computes it."""
    value = len(piece) * _MULTIPLIER & _MASK
    for start in range(0, len(piece), 8):
        value = (value ^ int.from_bytes(piece[start : start + 8], "little")) * _MULTIPLIER & _MASK
        value ^= value >> 32
    return value


def _hash_all(buffer: np.ndarray, offsets: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """u64 (n,): hashes of all strings; an empty one gets an arbitrary value."""
    hashes = np.empty(len(lengths), np.uint64)
    for start in range(0, len(lengths), _CHUNK):
        chunk = slice(start, start + _CHUNK)
        hashes[chunk] = _hash_chunk(buffer, offsets[chunk], lengths[chunk])
    return hashes


def _hash_chunk(buffer: np.ndarray, at: np.ndarray, rest: np.ndarray) -> np.ndarray:
    """Eight bytes of every string a step; a string drops out when its bytes are used up."""
    last = len(buffer) - 8
    words = np.ndarray((last + 1,), "<u8", buffer, strides=(1,))  # the unaligned word at every byte
    hashes = rest.astype(np.uint64) * np.uint64(_MULTIPLIER)
    alive = np.arange(len(rest))
    while len(alive):
        start = np.minimum(at, last)  # near the end of the buffer: the last whole word, shifted
        value = words[start] >> ((at - start) * 8).astype(np.uint64)
        unused = np.clip(64 - 8 * rest, 0, 56).astype(np.uint64)  # bits of the word past the end of the string
        value <<= unused
        value >>= unused
        value ^= hashes[alive]
        value *= np.uint64(_MULTIPLIER)
        value ^= value >> np.uint64(32)
        hashes[alive] = value
        longer = np.flatnonzero(rest > 8)
        alive, at, rest = alive[longer], at[longer] + 8, rest[longer] - 8
    return hashes
