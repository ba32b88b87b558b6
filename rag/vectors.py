"""Embeddings as stored, and the exact nearest of them.

All vectors are scaled to length 1, stored ones and queries alike, and padded with zeros to a multiple of 32. `codes`
keep them as q8_0 blocks (32 values in 34 bytes, as in GGUF), which are scanned; float32 vectors decide the order.

The scan is approximate, its error is not unknown: |x.q - x'.q'| <= |x - x'| |q| + |q - q'| |x'| (Cauchy-Schwarz). All
vectors whose approximate score lies within twice that bound of the k-th best are rescored, so none of the true best
is lost.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

Score = Callable[[np.ndarray], np.ndarray]  # rows u8 (n, bytes) -> scores f32 (n,)
Scan = Callable[[np.ndarray], Score]  # query f32 (k,), made ready once for all rows

_GROUP = 64
BLOCK = np.dtype([("d", "<f2"), ("q", "i1", 32)])


def unit(vectors: np.ndarray) -> np.ndarray:
    """f32 (n, dim) -> f32 (n, k) of length 1, k = dim rounded up to 32; a zero vector stays zero."""
    vectors = np.asarray(vectors, np.float32)
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    scaled = np.divide(vectors, norms, out=np.zeros_like(vectors), where=norms > 0)
    return np.pad(scaled, ((0, 0), (0, -vectors.shape[1] % 32)))


def encode(vectors: np.ndarray) -> tuple[np.ndarray, float]:
    """Unit vectors f32 (n, k) -> codes u8 (n, k / 32 * 34), and the largest |x - x'| among them."""
    blocks = vectors.reshape(len(vectors), -1, 32)
    d = (np.abs(blocks).max(-1) / np.float32(127)).astype(np.float16)
    wide = d.astype(np.float32)[..., None]
    codes = np.empty(d.shape, BLOCK)
    codes["d"] = d
    codes["q"] = np.clip(np.rint(np.divide(blocks, wide, out=np.zeros_like(blocks), where=wide > 0)), -127, 127)
    rows = codes.view(np.uint8).reshape(len(vectors), -1)
    error = np.linalg.norm(vectors.astype(np.float64) - decode(rows), axis=1)
    return rows, float(error.max(initial=0.0))


def decode(rows: np.ndarray) -> np.ndarray:
    """Codes u8 (n, k / 32 * 34) -> f32 (n, k)."""
    blocks = np.ascontiguousarray(rows).view(BLOCK)
    return (blocks["d"].astype(np.float32)[..., None] * blocks["q"]).reshape(len(rows), -1)


def scan(query: np.ndarray) -> Score:
    """The scan in numpy, for where no kernels are."""
    return lambda rows: decode(rows) @ query


def margin(query: np.ndarray, error: float) -> float:
    """Bound of |approximate - true score| for a unit query f32 (k,) that is quantised in blocks of 32 to 8 bits.

    `error`: largest |x - x'| of the scanned codes. The last term covers rounding in float32; a value half-way between
    two steps is as far from either.
    """
    blocks = query.reshape(-1, 32).astype(np.float64)
    step = np.abs(blocks).max(1, keepdims=True) / 127
    steps = np.divide(blocks, step, out=np.zeros_like(blocks), where=step > 0)
    of_query = float(np.linalg.norm((steps - np.rint(steps)) * step))
    return error + of_query * (1 + error) + 1e-5


def candidates(scores: np.ndarray, k: int, bound: float) -> np.ndarray:
    """Indices of all scores f32 (n,) that may belong to the k best true ones."""
    if len(scores) <= k:
        return np.arange(len(scores))
    # the k-th best of the best of each group is a lower bound of the k-th best, at a fraction of its cost
    best = np.maximum.reduceat(scores, np.arange(0, len(scores), _GROUP)) if len(scores) > k * _GROUP else scores
    kth = np.partition(best, len(best) - k)[len(best) - k]
    return np.flatnonzero(scores >= kth - 2 * bound)
