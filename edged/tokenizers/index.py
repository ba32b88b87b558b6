"""Find a string among hundreds of thousands without a Python object for each: vocabulary pieces, merge rules.

`StringIndex(strings).find(piece) -> position or -1`. All hashes are computed by numpy in one pass over the bytes where
they lie (a GGUF string array stays in the mapped file); a match is proven by comparing bytes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import numpy as np

_MULTIPLIER = 0x9E3779B97F4A7C15  # 2**64 / golden ratio (Knuth, TAOCP 3, 6.4: multiplicative hashing)
_MASK = (1 << 64) - 1
_REMEMBERED = 16384  # answers kept: the same pairs are asked for again and again


class Strings(Protocol):
    """What a GGUF string array offers.

    buffer: u8; string i is buffer[offsets[i] : offsets[i] + lengths[i]]; offsets, lengths: i32 (n,)
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
        self.buffer = np.frombuffer(b"".join(encoded), np.uint8)
        self.lengths = np.array([len(s) for s in encoded], np.int32)
        self.offsets = np.cumsum(self.lengths, dtype=np.int32) - self.lengths

    def raw(self, index: int) -> bytes:
        """Bytes of one string."""
        offset = self.offsets[index]
        return self.buffer[offset : offset + self.lengths[index]].tobytes()

    def __len__(self) -> int:
        return len(self.offsets)


class StringIndex:
    """Buckets of string positions, about one string a bucket; equal strings: the lowest position is found."""

    def __init__(self, strings: Strings) -> None:
        lengths = strings.lengths
        count = len(lengths)
        hashes = _hash_all(strings.buffer, strings.offsets, lengths)
        bits = max(count - 1, 1).bit_length()
        self._shift = 64 - bits
        buckets = hashes >> np.uint64(self._shift)
        order = np.sort((buckets << np.uint64(32)) | np.arange(count, dtype=np.uint64))
        starts = np.zeros((1 << bits) + 1, np.int32)
        np.cumsum(np.bincount(buckets.astype(np.int64), minlength=1 << bits), out=starts[1:])
        self._longest = int(lengths.max(initial=0))
        self._found: dict[bytes, int] = {}
        # memoryviews: an element read is a Python int at once, several times cheaper than a numpy scalar
        self._starts = memoryview(starts)
        self._positions = memoryview(order.astype(np.uint32))
        self._buffer = memoryview(strings.buffer)
        self._offsets = memoryview(strings.offsets)
        self._lengths = memoryview(lengths)

    def find(self, piece: bytes) -> int:
        """Position of `piece`, or -1."""
        position = self._found.get(piece)
        if position is None:
            position = self._search(piece)
            if len(self._found) >= _REMEMBERED:
                self._found.clear()
            self._found[piece] = position
        return position

    def _search(self, piece: bytes) -> int:
        length = len(piece)
        if length > self._longest:
            return -1
        bucket = _hash_one(piece) >> self._shift
        for entry in range(self._starts[bucket], self._starts[bucket + 1]):
            position = self._positions[entry]
            if self._lengths[position] == length:
                offset = self._offsets[position]
                if self._buffer[offset : offset + length] == piece:
                    return position
        return -1


def _hash_one(piece: bytes) -> int:
    """The hash of one string, as _hash_all computes it."""
    value = len(piece) * _MULTIPLIER & _MASK
    for start in range(0, len(piece), 8):
        value = (value ^ int.from_bytes(piece[start : start + 8], "little")) * _MULTIPLIER & _MASK
        value ^= value >> 32
    return value


def _hash_all(buffer: np.ndarray, offsets: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """u64 (n,): hashes of all strings, eight bytes a step; a string drops out when its bytes are used up."""
    padded = np.zeros(len(buffer) + 8, np.uint8)  # the last word of the last string may end past the buffer
    padded[:-8] = buffer
    words = np.ndarray((len(buffer) + 1,), "<u8", padded, strides=(1,))  # the unaligned word at every byte
    multiplier, half = np.uint64(_MULTIPLIER), np.uint64(32)
    hashes = lengths.astype(np.uint64) * multiplier
    alive = np.flatnonzero(lengths > 0)
    at, rest = offsets[alive], lengths[alive]
    while len(alive):
        unused = (8 * np.clip(8 - rest, 0, 7)).astype(np.uint64)  # bits of the word past the end of the string
        value = (hashes[alive] ^ (words[at] << unused >> unused)) * multiplier
        hashes[alive] = value ^ (value >> half)
        longer = np.flatnonzero(rest > 8)
        alive, at, rest = alive[longer], at[longer] + 8, rest[longer] - 8
    return hashes
