"""What the numpy references of the tensor types share. Blocks are u8 arrays (..., n, block size)."""

from __future__ import annotations

import numpy as np


def f16_at(blocks: np.ndarray, byte: int) -> np.ndarray:
    """The f16 at a byte offset of each block, as f32 (..., n, 1)."""
    return blocks[..., byte : byte + 2].copy().view("<f2").astype(np.float32)


def unpack_nibbles(qs: np.ndarray) -> np.ndarray:
    """u8 (..., m) -> u8 (..., 2 m): the low nibbles, then the high nibbles."""
    return np.concatenate([qs & 15, qs >> 4], axis=-1)


def unpack_bits(qh: np.ndarray) -> np.ndarray:
    """u8 (..., m) -> u8 (..., 8 m): bit j of the little-endian number."""
    return np.unpackbits(qh, axis=-1, bitorder="little")


def unpack_pairs(qs: np.ndarray) -> np.ndarray:
    """u8 (..., 64) -> u8 (..., 256): weight 128 h + 32 i + l is in bits 2 i of byte 32 h + l."""
    halves = qs.reshape(*qs.shape[:-1], 2, 1, 32)
    return (halves >> np.array([0, 2, 4, 6], np.uint8)[:, None] & 3).reshape(*qs.shape[:-1], 256)
