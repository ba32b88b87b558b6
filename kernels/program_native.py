"""The compiled interpreter: every thread walks the op table of one step, meeting at barriers. Build-time only.

    program_run(ops, n_ops, thread, threads, state, control) -> 1 done, 0 stopped
    program_step(control, threads) -> as program_run; wakes the workers and takes part as thread 0
    program_worker(control, thread, threads): runs step after step, sleeping in between, until program_quit
    program_quit(control): makes the workers return

Stopping. Any thread may see the stop word at any op or row tile; it then skips the rest of its work but still comes to
the next barrier. There the last thread to arrive decides, once and for all threads: since the stop word stays set
until the step has ended, work was skipped only if that thread sees it too.
"""

from __future__ import annotations

from edged.kernels.export import export, extern, helper
from edged.kernels.ops.dispatch import choose
from edged.kernels.ops.record import CODE, FLAGS, N_DECODE, OP_SIGNATURE, PROGRESS, STOP
from edged.kernels.simd import (
    NR_FUTEX,
    atomic_add,
    atomic_load,
    atomic_store,
    i32,
    i64,
    load,
    pause,
    ptr,
    sched_yield,
    syscall,
    u16,
)
from edged.kernels.table import CONTROL, OP, OP_BY_NAME, OPS, SYNC

GENERATION, SLEEPERS, OP_TABLE, N_OPS, STATE, SPIN, QUIT, ARRIVED, RELEASED = (
    CONTROL.fields[name][1] for name in CONTROL.names
)
OP_SIZE = OP.itemsize
ATTENTION = OP_BY_NAME["attention"].code
FUTEX_WAIT, FUTEX_WAKE = 128, 129  # linux/futex.h, with FUTEX_PRIVATE_FLAG
EVERYONE = 0x7FFFFFFF

perform = choose("op", OP_SIGNATURE, [(op.code, f"op_{op.name}") for op in OPS])
merge_attention = extern("op_attention_merge", OP_SIGNATURE)


@helper
def barrier(control, nth, stop):
    """Wait until all threads are here; true when the step ends here."""
    if nth == 1:
        return atomic_load(i32, stop) != 0
    before = atomic_load(i32, control + RELEASED)
    after = before
    if atomic_add(i32, control + ARRIVED, i32(1)) == nth - 1:
        atomic_store(i32, control + ARRIVED, i32(0))
        after = i32((before & -2) + 2)
        if atomic_load(i32, stop) != 0:
            after = i32(after | 1)
        atomic_store(i32, control + RELEASED, after)
    else:
        spin, rounds = load(i64, control + SPIN), 0
        while after == before:
            pause()
            rounds += 1
            if rounds > spin:
                sched_yield()
            after = atomic_load(i32, control + RELEASED)
    return after & 1 != 0


@export("ptr, i64, i64, i64, ptr, ptr -> i64")
def program_run(ops, n_ops, ith, nth, state, control):
    stop, progress = load(ptr, state + STOP), load(ptr, state + PROGRESS)
    for i in range(n_ops):
        op = ops + i * OP_SIZE
        code = load(u16, op + CODE)
        if atomic_load(i32, stop) == 0:
            perform(code, op, state, ith, nth)
        if code == ATTENTION and load(i64, state + N_DECODE) > 0:
            if barrier(control, nth, stop):
                return 0
            merge_attention(op, state, ith, nth)
        if ith == 0:
            atomic_store(i64, progress, atomic_load(i64, progress) + 1)
        if load(u16, op + FLAGS) & SYNC != 0 and barrier(control, nth, stop):
            return 0
    if barrier(control, nth, stop):
        return 0
    return 1


run = extern("program_run", "ptr, i64, i64, i64, ptr, ptr -> i64")


@helper
def run_current(control, ith, nth):
    return run(load(ptr, control + OP_TABLE), load(i64, control + N_OPS), ith, nth, load(ptr, control + STATE), control)


@helper
def next_generation(control):
    """Let the workers go. Raise the generation, then look for sleepers: the worker does the reverse, so one of the two
    sees the other (both words are sequentially consistent)."""
    atomic_add(i32, control + GENERATION, i32(1))
    if atomic_load(i32, control + SLEEPERS) > 0:
        syscall(NR_FUTEX, control + GENERATION, FUTEX_WAKE, EVERYONE, 0, 0, 0)


@export("ptr, i64 -> i64")
def program_step(control, nth):
    next_generation(control)
    return run_current(control, 0, nth)


@export("ptr, i64, i64")
def program_worker(control, ith, nth):
    generation = i32(0)
    while True:
        rounds = 0
        while atomic_load(i32, control + GENERATION) == generation:
            pause()
            rounds += 1
            if rounds > load(i64, control + SPIN):
                atomic_add(i32, control + SLEEPERS, i32(1))
                if atomic_load(i32, control + GENERATION) == generation:
                    syscall(NR_FUTEX, control + GENERATION, FUTEX_WAIT, i64(generation), 0, 0, 0)
                atomic_add(i32, control + SLEEPERS, i32(-1))
        generation = i32(generation + 1)
        if atomic_load(i32, control + QUIT) != 0:
            return
        run_current(control, ith, nth)


@export("ptr")
def program_quit(control):
    atomic_store(i32, control + QUIT, i32(1))
    next_generation(control)
