"""embed: dequantise the embedding row of each row's token, times f0; add one by position and one for all, if there are.

Decode rows go to the threads in turn.
"""

from __future__ import annotations

import numpy as np

from edged.kernels.export import export, helper
from edged.kernels.ops.attention_cache import position
from edged.kernels.ops.dispatch import by_type
from edged.kernels.ops.record import (
    F0,
    OP_SIGNATURE,
    STRIDE,
    TOKENS,
    TYPE,
    A,
    B,
    C,
    D,
    N,
    decode_rows,
    prompt_rows,
)
from edged.kernels.simd import address, f32, f32x8, i32, i64, load, ptr, splat, store, u16


def reference(weights: np.ndarray, tokens: np.ndarray, scale: float, added: np.ndarray | float = 0.0) -> np.ndarray:
    """weights: (n_vocab, n) dequantised; tokens: (rows,); added: (rows, n)."""
    return weights[tokens] * np.float32(scale) + added


row = by_type("row", "ptr, i64, ptr")


@helper
def add_row(x, out, n):
    for i in range(n // 8):
        store(f32x8, out + i * 32, load(f32x8, out + i * 32) + load(f32x8, x + i * 32))


@helper
def embed_row(op, state, r):
    n = load(i64, op + N)
    token = i64(load(i32, load(ptr, state + TOKENS) + r * 4))
    out = load(ptr, op + D) + r * n * 4
    row(load(u16, op + TYPE), load(ptr, op + A) + token * load(i64, op + STRIDE), n, out)
    scale = load(f32, op + F0)
    if scale != f32(1.0):
        for i in range(n // 8):
            store(f32x8, out + i * 32, load(f32x8, out + i * 32) * splat(f32x8, scale))
    if address(load(ptr, op + B)) != 0:
        add_row(load(ptr, op + B) + position(state, r) * n * 4, out, n)
    if address(load(ptr, op + C)) != 0:
        add_row(load(ptr, op + C), out, n)


@export(OP_SIGNATURE)
def op_embed(op, state, ith, nth):
    for r in range(ith, decode_rows(op, state), nth):
        embed_row(op, state, r)
    r0, r1 = prompt_rows(op, state, ith, nth)
    for r in range(r0, r1):
        embed_row(op, state, r)
