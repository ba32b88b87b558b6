"""attention: softmax(scale q k + mask) v over the paged f16 cache, with grouped heads, a sliding window and a soft cap.

Position p is attended by a row at position `pos` when max(0, pos - window + 1) <= p <= pos. The reduction runs over
fixed partitions of KV_PARTITION absolute positions, whose partial results are merged in order (online softmax, Milakov
and Gimelshein, arXiv 1805.02867); so a row's result depends on nothing but its own position, query and cache.

A bidirectional op (type 1) is for models without a cache that outlives the step: position p is then attended by every
row of its sequence, all of whose rows are prompt rows of this step.

Decode rows (`attention_decode.py`): every (row, kv head, partition) is a task of its own that leaves m, l and acc in
the partials; after a barrier `op_attention_merge` joins them. Prompt rows (`attention_prompt.py`): a task is a run of
up to ATTENTION_TILE rows of one sequence and one kv head; it converts each cache block to f32 once for all of them.
"""

from __future__ import annotations

import numpy as np

from edged.kernels.export import export
from edged.kernels.ops.attention_decode import attend_decode, merge_decode
from edged.kernels.ops.attention_prompt import attend_prompt
from edged.kernels.ops.record import N_DECODE, N_PROMPT, OP_SIGNATURE
from edged.kernels.simd import i64, load
from edged.kernels.table import KV_BLOCK


def reference(
    q: np.ndarray, blocks_k: np.ndarray, blocks_v: np.ndarray, table: np.ndarray, pos: np.ndarray, seq: np.ndarray,
    scale: float, window: int = 0, softcap: float = 0.0, bidirectional: bool = False,
) -> np.ndarray:  # fmt: skip
    """q: (rows, heads, dim); blocks: (block, kv_head, KV_BLOCK, dim); table: (seqs, blocks); returns f64 like q."""
    out = np.empty(q.shape)
    group = q.shape[1] // blocks_k.shape[1]
    for r, (p, s) in enumerate(zip(pos, seq, strict=True)):
        end = pos[seq == s].max() + 1 if bidirectional else p + 1
        at = np.arange(max(0, p - window + 1) if window else 0, end)
        k = blocks_k[table[s, at // KV_BLOCK], :, at % KV_BLOCK].astype(np.float64)  # (position, kv head, dim)
        v = blocks_v[table[s, at // KV_BLOCK], :, at % KV_BLOCK].astype(np.float64)
        for h in range(q.shape[1]):
            score = k[:, h // group] @ q[r, h].astype(np.float64) * scale
            if softcap:
                score = softcap * np.tanh(score / softcap)
            weight = np.exp(score - score.max())
            out[r, h] = weight @ v[:, h // group] / weight.sum()
    return out


@export(OP_SIGNATURE)
def op_attention(op, state, ith, nth):
    if load(i64, state + N_DECODE) > 0:
        attend_decode(op, state, ith, nth)
    if load(i64, state + N_PROMPT) > 0:
        attend_prompt(op, state, ith, nth)


@export(OP_SIGNATURE)
def op_attention_merge(op, state, ith, nth):
    """Second half of op_attention for the decode rows; a barrier lies between the two."""
    merge_decode(op, state, ith, nth)
