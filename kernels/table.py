"""The one table that drives build, loader, engine and tests. Imports neither numba nor ctypes.

Add a tensor type: one file in `types/`, one row in TYPES. Add an op: one file in `ops/`, one row in OPS.
Add a CPU level: one row in LEVELS, its target in `levels.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

ABI = 2  # raised with every change of OP, STATE, an activation layout or a kernel signature

# -- CPU levels --------------------------------------------------------------------------------------------------------

Family = Literal["x86_64", "aarch64"]


@dataclass(frozen=True)
class Level:
    """One build target. `features` are names as in /proc/cpuinfo flags (x86) or HWCAP bits (aarch64).

    `lanes` is the number of prompt tokens in one activation panel of the tile kernels, `bias` is added to the bytes
    of a panel.
    """

    name: str
    family: Family
    features: tuple[str, ...]
    lanes: int
    bias: int = 0


# best first within a family
LEVELS: tuple[Level, ...] = (
    Level("x86_64_vnni512", "x86_64",
          ("avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl", "avx512_vnni"), lanes=16, bias=128),
    Level("x86_64_v3", "x86_64", ("avx2", "fma", "f16c", "bmi1", "bmi2", "movbe", "abm"), 8),
    Level("aarch64_dotprod", "aarch64", ("asimd", "asimddp"), 8),
    Level("aarch64_neon", "aarch64", ("asimd",), 8),
)  # fmt: skip

LEVEL_BY_NAME = {level.name: level for level in LEVELS}

# -- activations -------------------------------------------------------------------------------------------------------
# An activation buffer holds the rows of one f32 buffer in the form that matmul kernels read: first `max_decode` row
# records (matvec, matvec_rows), then `max_prompt / lanes` panels (tile). k: row width. Every part is 64-byte aligned.
#
# row record        F32    f32[k]
#                   Q8_32  q i8[k] | d f32[k/32]  | s f32[k/32] = d * sum(q)
#                   Q8_256 q i8[k] | d f32[k/256] | s i32[k/32] = sum(q) | t i16[k/16] = sum(q)
# panel (n lanes)   F32    f32[k][n]
#                   Q8_32  q i8[k/4][n][4] | d f32[k/32][n]  | s f32[k/32][n] = d * sum(q)
#                   Q8_256 q i8[k/4][n][4] | d f32[k/256][n] | s f32[k/32][n] = d * sum(q)
# On x86_64_vnni512 panel bytes are biased by +128 (u8); row records are never biased.

ActKind = Literal[0, 1, 2]
ACT_F32: ActKind = 0
ACT_Q8_32: ActKind = 1
ACT_Q8_256: ActKind = 2
ACT_BLOCK = {ACT_F32: 1, ACT_Q8_32: 32, ACT_Q8_256: 256}


def align64(n: int) -> int:
    """Round n up to a multiple of 64."""
    return (n + 63) & ~63


def act_row_parts(kind: ActKind, k: int) -> tuple[int, ...]:
    """Byte offsets of the parts of one row record, its total size last."""
    if kind == ACT_F32:
        sizes = [4 * k]
    elif kind == ACT_Q8_32:
        sizes = [k, k // 8, k // 8]
    else:
        sizes = [k, k // 64, k // 8, k // 8]
    offsets = [0]
    for size in sizes:
        offsets.append(offsets[-1] + align64(size))
    return tuple(offsets)


def act_panel_parts(kind: ActKind, k: int, lanes: int) -> tuple[int, ...]:
    """Byte offsets of the parts of one panel, its total size last."""
    if kind == ACT_F32:
        sizes = [4 * k * lanes]
    else:
        sizes = [k * lanes, 4 * (k // ACT_BLOCK[kind]) * lanes, 4 * (k // 32) * lanes]
    offsets = [0]
    for size in sizes:
        offsets.append(offsets[-1] + align64(size))
    return tuple(offsets)


def act_bytes(kind: ActKind, k: int, max_decode: int, max_prompt: int, lanes: int) -> int:
    """Size of one activation buffer. max_prompt is a multiple of 32."""
    return max_decode * act_row_parts(kind, k)[-1] + max_prompt // lanes * act_panel_parts(kind, k, lanes)[-1]


def tile_rows(k: int) -> int:
    """Weight rows that a tile kernel unpacks at a time: about 64 KB of them, for any row width k."""
    return max(4, min(32, 65536 // k // 4 * 4))


def tile_scratch_bytes(k: int) -> int:
    """Scratch of one thread for tile kernels of row width k: unpacked rows (f32 at most) and one block of output."""
    return tile_rows(k) * 4 * k + 1024


# -- tensor types ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TensorType:
    """A GGML tensor type that has kernels. `id` as in ggml.h; `block` weights take `size` bytes."""

    name: str
    id: int
    block: int
    size: int
    act: ActKind

    def row_bytes(self, k: int) -> int:
        """Bytes of one row of k weights. k is a multiple of `block`."""
        return k // self.block * self.size


TYPES: tuple[TensorType, ...] = (
    TensorType("f32", 0, 1, 4, ACT_F32),
    TensorType("f16", 1, 1, 2, ACT_F32),
    TensorType("q4_0", 2, 32, 18, ACT_Q8_32),
    TensorType("q4_1", 3, 32, 20, ACT_Q8_32),
    TensorType("q5_0", 6, 32, 22, ACT_Q8_32),
    TensorType("q5_1", 7, 32, 24, ACT_Q8_32),
    TensorType("q8_0", 8, 32, 34, ACT_Q8_32),
    TensorType("q2_k", 10, 256, 84, ACT_Q8_256),
    TensorType("q3_k", 11, 256, 110, ACT_Q8_256),
    TensorType("q4_k", 12, 256, 144, ACT_Q8_256),
    TensorType("q5_k", 13, 256, 176, ACT_Q8_256),
    TensorType("q6_k", 14, 256, 210, ACT_Q8_256),
    TensorType("iq2_xxs", 16, 256, 66, ACT_Q8_256),
    TensorType("iq2_xs", 17, 256, 74, ACT_Q8_256),
    TensorType("iq3_xxs", 18, 256, 98, ACT_Q8_256),
    TensorType("iq1_s", 19, 256, 50, ACT_Q8_256),
    TensorType("iq4_nl", 20, 32, 18, ACT_Q8_32),
    TensorType("iq3_s", 21, 256, 110, ACT_Q8_256),
    TensorType("iq2_s", 22, 256, 82, ACT_Q8_256),
    TensorType("iq4_xs", 23, 256, 136, ACT_Q8_256),
    TensorType("iq1_m", 29, 256, 56, ACT_Q8_256),
    TensorType("bf16", 30, 1, 2, ACT_F32),
    TensorType("tq1_0", 34, 256, 54, ACT_Q8_256),
    TensorType("tq2_0", 35, 256, 66, ACT_Q8_256),
    TensorType("mxfp4", 39, 32, 17, ACT_Q8_32),
)
TYPE_BY_ID = {t.id: t for t in TYPES}
TYPE_BY_NAME = {t.name: t for t in TYPES}

# -- the op table ------------------------------------------------------------------------------------------------------
# A program is an array of OP records, interpreted by `run` once per thread and step. Which rows a step has comes from
# one STATE record, so the array is built once per model.
#
# Rows. Every f32 buffer of region BODY has max_decode + max_prompt rows: decode row i at row i, prompt row i at row
# max_decode + i. A step uses the first n_decode and the first n_prompt of each. Region LOGITS has max_decode rows of
# which n_logits are used, all handled as decode rows.

REGION_BODY, REGION_LOGITS = 0, 1
SYNC, ADD = 1, 2  # flags: barrier after this op; add to the output instead of overwriting it

OP = np.dtype(
    {
        "names": ["op", "flags", "region", "type", "n", "k", "stride", "a", "b", "c", "d", "e", "i", "f"],
        "formats": ["u2", "u2", "u2", "u2", "i8", "i8", "i8", "u8", "u8", "u8", "u8", "u8", ("i8", 4), ("f4", 4)],
        "offsets": [0, 2, 4, 6, 8, 16, 24, 32, 40, 48, 56, 64, 72, 104],
        "itemsize": 128,
    }
)

STATE = np.dtype(
    {
        "names": [
            "n_decode", "n_prompt", "n_logits", "max_decode", "max_prompt",
            "tokens", "pos", "seq", "logit_rows", "stop", "progress", "scratch", "scratch_stride",
        ],
        "formats": ["i8"] * 5 + ["u8"] * 8,
        "offsets": list(range(0, 104, 8)),
        "itemsize": 128,
    }
)  # fmt: skip
# tokens, pos, seq: i32 per row of region BODY (token id, absolute position, row of the block tables).
# logit_rows: i32[n_logits], rows of region BODY. stop: i32, non-zero ends the step at the next op or row tile.
# progress: i64, counts ops (thread 0), for the watchdog. scratch: one area of scratch_stride bytes per thread.

# What the threads that run programs share; 64-byte aligned. Each word that is polled has a cache line of its own.
CONTROL = np.dtype(
    {
        "names": ["generation", "sleepers", "ops", "n_ops", "state", "spin", "quit", "arrived", "released"],
        "formats": ["i4", "i4", "u8", "i8", "u8", "i8", "i4", "i4", "i4"],
        "offsets": [0, 4, 8, 16, 24, 32, 40, 64, 128],
        "itemsize": 192,
    }
)  # fmt: skip
# generation: i32 futex word, one more per step; sleepers: workers that wait on it; quit: workers return.
# arrived, released: the barrier; bit 0 of released says that the step ends here. spin: rounds of polling before a
# thread sleeps (worker) or yields its processor (barrier).

KV_BLOCK = 32  # positions in one block of the paged KV cache
KV_PARTITION = 256  # attention reduces over fixed partitions of this many absolute positions
ATTENTION_TILE = 16  # prompt rows that share the conversion of a KV block


@dataclass(frozen=True)
class Op:
    """One opcode. `fields` says what the OP record's columns mean to it."""

    name: str
    code: int
    fields: str


OPS: tuple[Op, ...] = (
    Op("embed", 1, "type; n width; stride row bytes; a weights; d out f32[rows][n]; f0 scale; "
                   "b f32[positions][n] or 0: that of the row's position is added; c f32[n] or 0: added"),
    Op("rmsnorm", 2, "n width; a x f32; b weight f32[n] or 0; d out f32 (ADD: out += norm); f0 eps"),
    Op("layernorm", 3, "n width; a x f32; b weight f32[n]; c bias f32[n] or 0; d out f32; f0 eps"),
    Op("quantise", 4, "n width; type = act kind; a x f32; d activation buffer"),
    Op("matmul", 5, "type; n out rows; k in width; stride row bytes; a weights; b activation buffer; "
                    "c bias f32[n] or 0; d out f32[rows][i0]; i0 out row length in floats (ADD: out += W x)"),
    Op("headnorm", 6, "per-head rmsnorm in place: a x f32[rows][n]; b weight f32[i1]; n row length; i0 heads; "
                      "i1 head dim; f0 eps"),
    Op("rope", 7, "in place: a x f32[rows][n]; b table f32[rows][i2/2][2] (cos, sin); n row length; i0 heads; "
                  "i1 head dim; i2 rotated dim; i3 0 = norm (pairs 2i, 2i+1), 1 = neox (pairs i, i + i2/2)"),
    Op("kv_store", 8, "a k f32[rows][n]; b v f32[rows][n]; n = i0 * i1; i0 kv heads; i1 head dim; "
                      "c block table i32[seqs][i2]; d cache base of this layer; k byte offset of V from K; "
                      "stride block bytes"),
    Op("attention", 9, "a q f32[rows][i0 * i2]; c block table i32[seqs][n]; d out f32[rows][i0 * i2]; e cache base of "
                       "this layer; b partials scratch; k byte offset of V from K; stride block bytes; n block table "
                       "row length; i0 heads; i1 kv heads; i2 head dim; i3 window (0 = none); f0 scale; f1 softcap "
                       "(0 = none); type 1: a prompt row sees all rows of its sequence, which begins in this step"),
    Op("gate", 10, "d out f32[rows][n] = act(a) * b; n width; i0 0 = silu, 1 = gelu (tanh), 2 = gelu (erf); "
                   "b 0: no product"),
    Op("add", 11, "d out f32[rows][n] += a; n width"),
    Op("softcap", 12, "d x f32[rows][n] = f0 * tanh(x / f0); n width"),
    Op("gather", 13, "n width; a x f32[rows][n] (BODY) -> d out f32[n_logits][n] (LOGITS) by logit_rows"),
    Op("scale", 14, "d x f32[rows][n] *= f0; n width"),
)  # fmt: skip
# Cache block (one layer group): [layer][K|V][kv head][KV_BLOCK][head dim] f16. Block b starts at pool + b * stride.
# A block-table entry of -1 is never read (outside the window or past the sequence).
# A thread's share of an elementwise op (rmsnorm, quantise, gate, add, ...): decode rows are split by columns in units
# of 256 (32 where n is no multiple of 256), prompt rows by whole panels; two such ops of equal n in a row therefore
# need no SYNC between them. headnorm, rope and kv_store split decode rows by heads instead: those of equal head count
# need no SYNC between them either. An op that reads what another thread wrote needs a SYNC before it; among the
# elementwise ops rmsnorm and layernorm do too, as they read whole rows (and their d must not be their a).
OP_BY_NAME = {op.name: op for op in OPS}


def partials_bytes(max_decode: int, max_prompt: int, n_heads: int, head_dim: int, n_ctx: int) -> int:
    """Size of the attention op's partials: per decode row, head and KV partition m, l and acc[head_dim] in f32.

    Prompt rows run their partitions in order within one thread and need none.
    """
    parts = (n_ctx + KV_PARTITION - 1) // KV_PARTITION
    return align64(max_decode * n_heads * parts * (head_dim + 16) * 4)


def attention_scratch_bytes(n_heads: int, n_heads_kv: int, head_dim: int) -> int:
    """Scratch of one thread for the attention op: its queries, scores, sums and one KV block, all f32."""
    rows = (ATTENTION_TILE * n_heads // n_heads_kv + 3) // 4 * 4
    wide = (head_dim + 15) // 16 * 16
    return align64(4 * (rows * (head_dim + KV_PARTITION + wide + 2) + KV_BLOCK * wide))


# -- sampling ----------------------------------------------------------------------------------------------------------
#     sample(logits f32[n], n, SAMPLING record) -> token id, or SAMPLE_* below zero
#     logprobs(logits f32[n], n, token, top, ids i32[top], values f32[top]) -> log-probability of the token
# Filters as in llama.cpp, in its order: bias, penalties, top-k, top-p, min-p, temperature, draw. temperature <= 0:
# greedy; top_k <= 0, top_p >= 1, min_p <= 0, repeat 1, presence 0, frequency 0: off. draw: uniform in 0 .. 2**32 - 1.
# bias_ids i32[n_bias], bias f32[n_bias]; seen_ids i32[n_seen] without repeats, seen_counts i32[n_seen].
# scratch: sampling_scratch_bytes.

SAMPLING = np.dtype(
    {
        "names": [
            "temperature", "top_p", "min_p", "repeat", "presence", "frequency", "top_k", "draw",
            "n_bias", "n_seen", "bias_ids", "bias", "seen_ids", "seen_counts", "scratch",
        ],
        "formats": ["f4"] * 6 + ["i4", "u4"] + ["i8"] * 2 + ["u8"] * 5,
        "offsets": [0, 4, 8, 12, 16, 20, 24, 28, 32, 40, 48, 56, 64, 72, 80],
        "itemsize": 96,
    }
)  # fmt: skip
SAMPLE_NOT_FINITE, SAMPLE_NO_TOKEN = -1, -2  # results of `sample`: NaN or +inf among the logits; all of them -inf


def sampling_scratch_bytes(n_vocab: int, n_bias: int, n_seen: int) -> int:
    """Candidates i32[n_vocab], then the logits that bias and penalties change: f32[n_bias + n_seen]."""
    return align64(4 * (n_vocab + n_bias + n_seen))
