"""rope: rotate pairs of each head by the row's angles, in place (Su et al., arXiv 2104.09864).

    x[p], x[q] = x[p] cos - x[q] sin, x[q] cos + x[p] sin

norm (llama): pair i is (2i, 2i + 1); neox: pair i is (i, i + rotated / 2). Columns past `rotated` are left alone.
Decode rows are shared by heads, prompt rows by panels: headnorm, rope and kv_store of equal heads need no SYNC between
them.
"""

from __future__ import annotations

import numpy as np

from edged.kernels.export import export, helper
from edged.kernels.ops.record import I0, I1, I2, I3, OP_SIGNATURE, A, B, N, decode_rows, prompt_rows, share
from edged.kernels.simd import f32, fma, i64, load, ptr, store


def reference(x: np.ndarray, cos: np.ndarray, sin: np.ndarray, neox: bool) -> np.ndarray:
    """x: (rows, heads, head_dim); cos, sin: (rows, rotated / 2)."""
    half = cos.shape[1]
    y = x.astype(np.float64)
    p, q = (slice(0, half), slice(half, 2 * half)) if neox else (slice(0, 2 * half, 2), slice(1, 2 * half, 2))
    c, s = cos[:, None].astype(np.float64), sin[:, None].astype(np.float64)
    y[..., p], y[..., q] = x[..., p] * c - x[..., q] * s, x[..., q] * c + x[..., p] * s
    return y


@helper
def rope_row(x, table, dim, rotated, neox, h0, h1):
    step, other = 8, 4  # bytes from pair to pair, and from a pair's first to its second float
    if neox:
        step, other = 4, rotated * 2
    for h in range(h0, h1):
        head = x + h * dim * 4
        for i in range(rotated // 2):
            c, s = load(f32, table + i * 8), load(f32, table + (i * 8 + 4))
            p = head + i * step
            u, v = load(f32, p), load(f32, p + other)
            store(f32, p, fma(u, c, -v * s))
            store(f32, p + other, fma(v, c, u * s))


@export(OP_SIGNATURE)
def op_rope(op, state, ith, nth):
    n, heads, dim, rotated = load(i64, op + N), load(i64, op + I0), load(i64, op + I1), load(i64, op + I2)
    neox = load(i64, op + I3) == 1
    x, table = load(ptr, op + A), load(ptr, op + B)
    h0, h1 = share(heads, 1, ith, nth)
    for r in range(decode_rows(op, state)):
        rope_row(x + r * n * 4, table + r * rotated * 4, dim, rotated, neox, h0, h1)
    r0, r1 = prompt_rows(op, state, ith, nth)
    for r in range(r0, r1):
        rope_row(x + r * n * 4, table + r * rotated * 4, dim, rotated, neox, 0, heads)
