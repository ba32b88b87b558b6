"""kv_store: write the K and V rows of a step into the paged cache as f16.

Position p of a sequence lives in block `table[seq][p / 32]`, at its row p % 32:

    cache + block * stride [+ k for V]  ->  f16 (kv head, KV_BLOCK, head_dim)

Decode rows are shared by heads, prompt rows by panels, as in rope.
"""

from __future__ import annotations

import numpy as np

from edged.kernels.export import export, helper
from edged.kernels.ops.record import (
    I0,
    I1,
    I2,
    OP_SIGNATURE,
    POS,
    SEQ,
    STRIDE,
    A,
    B,
    C,
    D,
    K,
    N,
    decode_rows,
    prompt_rows,
    share,
)
from edged.kernels.simd import cvt_f16, f16x8, f32x8, i32, i64, load, ptr, store
from edged.kernels.table import KV_BLOCK


def reference(k: np.ndarray, table: np.ndarray, pos: np.ndarray, seq: np.ndarray, blocks: np.ndarray) -> None:
    """k: (rows, kv_heads, head_dim) into blocks: f16 (block, kv_head, KV_BLOCK, head_dim)."""
    for row, p, s in zip(k, pos, seq, strict=True):
        blocks[table[s, p // KV_BLOCK], :, p % KV_BLOCK] = row.astype(np.float16)


@helper
def block_row(op, state, r):
    """Where head 0 of row r lives in the K half of the cache."""
    pos = i64(load(i32, load(ptr, state + POS) + r * 4))
    seq = i64(load(i32, load(ptr, state + SEQ) + r * 4))
    table = load(ptr, op + C) + seq * load(i64, op + I2) * 4
    block = i64(load(i32, table + pos // KV_BLOCK * 4))
    return load(ptr, op + D) + (block * load(i64, op + STRIDE) + pos % KV_BLOCK * load(i64, op + I1) * 2)


@helper
def store_row(op, state, r, h0, h1):
    n, dim, v_offset = load(i64, op + N), load(i64, op + I1), load(i64, op + K)
    k, v = load(ptr, op + A) + r * n * 4, load(ptr, op + B) + r * n * 4
    cache = block_row(op, state, r)
    for h in range(h0, h1):
        to = cache + h * KV_BLOCK * dim * 2
        for i in range(dim // 8):
            at = (h * dim + i * 8) * 4
            store(f16x8, to + i * 16, cvt_f16(load(f32x8, k + at)))
            store(f16x8, to + (v_offset + i * 16), cvt_f16(load(f32x8, v + at)))


@export(OP_SIGNATURE)
def op_kv_store(op, state, ith, nth):
    heads = load(i64, op + I0)
    h0, h1 = share(heads, 1, ith, nth)
    for r in range(decode_rows(op, state)):
        store_row(op, state, r, h0, h1)
    r0, r1 = prompt_rows(op, state, ith, nth)
    for r in range(r0, r1):
        store_row(op, state, r, 0, heads)
