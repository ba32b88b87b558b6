"""How op bodies read OP and STATE records, and how threads share the rows of a step. Build-time only.

Constants are byte offsets: `load(i64, op + N)`, `load(ptr, op + A)`, `load(i64, state + N_DECODE)`.
"""

from __future__ import annotations

from edged.kernels.export import helper
from edged.kernels.simd import NT, i64, load, ptr, u16
from edged.kernels.table import OP, REGION_LOGITS, STATE

OP_SIGNATURE = "ptr, ptr, i64, i64"  # op record, state record, thread, threads

CODE, FLAGS, REGION, TYPE, N, K, STRIDE, A, B, C, D, E, I0, F0 = (OP.fields[name][1] for name in OP.names)
I1, I2, I3, F1 = I0 + 8, I0 + 16, I0 + 24, F0 + 4

(
    N_DECODE, N_PROMPT, N_LOGITS, MAX_DECODE, MAX_PROMPT,
    TOKENS, POS, SEQ, LOGIT_ROWS, STOP, PROGRESS, SCRATCH, SCRATCH_STRIDE,
) = (STATE.fields[name][1] for name in STATE.names)  # fmt: skip


@helper
def columns(n, ith, nth):
    """This thread's columns [c0, c1) of every decode row of n columns."""
    unit = 32
    if n % 256 == 0:
        unit = 256
    units = (n + unit - 1) // unit
    return units * ith // nth * unit, min(n, units * (ith + 1) // nth * unit)


@helper
def share(n, unit, ith, nth):
    """This thread's part [i0, i1) of n things dealt out in whole units."""
    units = (n + unit - 1) // unit
    return min(n, units * ith // nth * unit), min(n, units * (ith + 1) // nth * unit)


@helper
def decode_rows(op, state):
    """Number of rows handled as decode rows: they start at row 0 of every buffer."""
    if load(u16, op + REGION) == REGION_LOGITS:
        return load(i64, state + N_LOGITS)
    return load(i64, state + N_DECODE)


@helper
def prompt_rows(op, state, ith, nth):
    """This thread's prompt rows [r0, r1), as rows of the buffers: whole panels."""
    if load(u16, op + REGION) == REGION_LOGITS:
        return 0, 0
    first = load(i64, state + MAX_DECODE)
    r0, r1 = share(load(i64, state + N_PROMPT), NT, ith, nth)
    return first + r0, first + r1


@helper
def scratch(state, ith):
    """This thread's scratch area."""
    return load(ptr, state + SCRATCH) + ith * load(i64, state + SCRATCH_STRIDE)
