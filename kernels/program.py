"""The run-time side of the interpreter: op tables, the threads that run them, and one native call per step.

    workers = Workers(library, threads=2)
    program = Program(workers, ops)
    completed = program.step(state)     # False: `stop` ended it
    program.stop()                      # from any thread: ends the step in progress, or else the next one
    workers.close()

Any number of programs share the workers, which run one step of one of them at a time. The calling thread works too; the
other threads are Python daemon threads inside one native call each, without the GIL, that sleep on a futex between
steps. A stopped step has no result: logits are unusable, and its rows of the KV cache are to be written again.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from typing import TYPE_CHECKING

import numpy as np

from edged.errors import EdgedError
from edged.kernels.table import CONTROL, OP, OP_BY_NAME, align64, attention_scratch_bytes, tile_scratch_bytes

if TYPE_CHECKING:
    from edged.kernels.load import Library

SPIN = 2000  # rounds of polling before a thread sleeps or yields: some 20 to 50 microseconds


def scratch_bytes(ops: np.ndarray) -> int:
    """Scratch that one thread needs for a program. ops: OP records."""
    need = 0
    for op in ops:
        if op["op"] == OP_BY_NAME["matmul"].code:
            need = max(need, tile_scratch_bytes(int(op["k"])))
        elif op["op"] == OP_BY_NAME["attention"].code:
            heads, kv_heads, dim = (int(op["i"][i]) for i in range(3))
            need = max(need, attention_scratch_bytes(heads, kv_heads, dim))
    return align64(need)


def aligned(size: int) -> np.ndarray:
    """Zeroed bytes whose address is a multiple of 64."""
    raw = np.zeros(size + 64, np.uint8)
    skip = -address(raw) % 64
    return raw[skip : skip + size]


def address(array: np.ndarray) -> int:
    """Address of the first element."""
    return int(array.__array_interface__["data"][0])


class Workers:
    """`threads` threads, the caller's among them. Any thread may call `run`; the steps take turns."""

    def __init__(self, library: Library, threads: int, *, spin: int | None = None) -> None:
        """spin: rounds of polling before a thread sleeps; None: SPIN, or none at all when there are more threads than
        processors.
        """
        if spin is None:
            spin = SPIN if threads <= len(os.sched_getaffinity(0)) else 0
        self.library = library
        self.threads = threads
        self._lock = threading.Lock()  # steps and `close` exclude each other
        raw = aligned(CONTROL.itemsize)
        self._control = raw.view(CONTROL)
        self._control["spin"] = spin
        self._work: tuple[int, int, int] | None = None  # what the threads see
        self._address = address(raw)
        workers = [
            threading.Thread(target=_work, args=(library, raw, i, threads), name=f"edged-worker-{i}", daemon=True)
            for i in range(1, threads)
        ]
        for worker in workers:
            worker.start()
        self._finalizer = weakref.finalize(self, _quit, library, raw, workers)

    def run(self, work: tuple[int, int, int]) -> bool:
        """A step. work: address of OP records, their number, address of a STATE record. False: it was stopped.

        Raises EdgedError once closed.
        """
        with self._lock:
            if not self._finalizer.alive:
                raise EdgedError("the workers are closed")
            if work is not self._work:
                self._control["ops"], self._control["n_ops"], self._control["state"] = self._work = work
            return bool(self.library.program_step(self._address, self.threads))

    def close(self) -> None:
        """End the threads, after the step in progress. Idempotent."""
        with self._lock:
            self._finalizer()


class Program:
    """An op table ready to run. One thread may call `step`; any may call `stop`."""

    def __init__(self, workers: Workers, ops: np.ndarray) -> None:
        """ops: OP records, used in place: addresses in them may change between steps."""
        self._ops = np.ascontiguousarray(ops, OP)
        self._workers = workers
        stride = scratch_bytes(self._ops)
        self._scratch, self._scratch_stride = aligned(workers.threads * stride), stride
        self._state: np.ndarray | None = None
        self._work = 0, 0, 0
        words = aligned(128)  # each word has a cache line of its own
        self._stop, self._progress = words[:4].view(np.int32), words[64:72].view(np.int64)

    def step(self, state: np.ndarray) -> bool:
        """Run the program on the rows that `state` (one STATE record) describes. False: it was stopped.

        stop, progress, scratch and scratch_stride are filled in here, when a record is first seen.
        """
        if state is not self._state:
            state["stop"], state["progress"] = address(self._stop), address(self._progress)
            state["scratch"], state["scratch_stride"] = address(self._scratch), self._scratch_stride
            self._state = state
            self._work = address(self._ops), len(self._ops), address(state)
        done = self._workers.run(self._work)
        if not done:
            self._stop[0] = 0
        return done

    def stop(self) -> None:
        """End the step in progress at its next row tile; if there is none, the next step ends at once."""
        self._stop[0] = 1

    @property
    def progress(self) -> int:
        """Ops done since the program was made: stands still only between steps or when a step hangs."""
        return int(self._progress[0])


def _work(library: Library, control: np.ndarray, thread: int, threads: int) -> None:
    with contextlib.suppress(OSError), open(f"/proc/self/task/{threading.get_native_id()}/comm", "w") as name:
        name.write(threading.current_thread().name)  # for top and perf; Python sets it only since 3.14
    library.program_worker(address(control), thread, threads)


def _quit(library: Library, control: np.ndarray, workers: list[threading.Thread]) -> None:
    # Must hold no reference to the Workers, so that abandoned ones are collected and their threads end.
    library.program_quit(address(control))
    for worker in workers:
        worker.join(timeout=5.0)
