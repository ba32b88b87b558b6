"""What all loaded models share: the kernels, the worker threads, the memory, and the thread that steps one model at a
time.

    machine = Machine(config)
    ...                         # models are opened on it: each adds its lanes
    machine.start()
    machine.close()             # after the models

A lane is one kind of work of one model. A turn gives each lane that has work one step, in order, so no step waits for
more than one step of each other lane. While others have work a lane's steps are brief and take no more than its share
of the time.
"""

from __future__ import annotations

import sys
import threading
from time import perf_counter
from typing import Protocol

from edged.config import EngineConfig
from edged.engine import room
from edged.engine.threads import worker_count
from edged.kernels import load
from edged.kernels.program import Workers

SWITCH_INTERVAL = 2e-4  # seconds; at the default of 5 ms a busy Python thread holds up each of a step's returns
GENERATE, QUERY, INGEST = range(3)  # ranks
SHARES = (1.0, 0.5, 0.2)  # of the time, by rank: what generates waits for nobody, nobody waits for an ingest


class Lane(Protocol):
    """rank: its place in a turn."""

    rank: int

    def ready(self) -> bool:
        """Whether there is something to compute. Called under `Machine.changed`."""

    def step(self, brief: bool = False) -> object:
        """Compute one step, called in the engine's thread. brief: a short one, other lanes wait."""

    def fail(self, error: Exception) -> None:
        """`step` raised this, a fault of edged's own: leave nobody waiting."""

    def rest(self) -> None:
        """Nothing is to be done: give back memory that no step leaves anything in."""


class Machine:
    """changed: notified when a lane has work; guards the lanes' queues."""

    def __init__(self, config: EngineConfig) -> None:
        """Raises BadKernels."""
        self.library = load.open(config.kernel_level or None)
        self.threads = config.threads or worker_count()
        self.workers = Workers(self.library, self.threads)
        self.changed = threading.Condition()
        self._memory_check = config.memory_check
        self._weights = self._kv = 0
        self._lanes: list[Lane] = []
        self._closed = False
        self._owing: dict[Lane, float] = {}  # seconds of other lanes' work before it is a lane's turn again
        self._thread: threading.Thread | None = None

    def weigh(self, weights: int, kv: int) -> None:
        """Count a model in, by the bytes that it does not hold in memory yet.

        Raises LimitTooLow if it does not fit the free memory beside those counted before.
        """
        room.check(self._weights + weights, self._kv + kv, self._memory_check)
        self._weights, self._kv = self._weights + weights, self._kv + kv

    def add(self, lane: Lane) -> None:
        """Step this lane from now on."""
        with self.changed:
            self._lanes = sorted([*self._lanes, lane], key=lambda each: each.rank)

    def remove(self, lane: Lane) -> None:
        """Forget a lane. It may be stepped once more."""
        with self.changed:
            self._lanes = [each for each in self._lanes if each is not lane]

    def start(self) -> None:
        """Compute in a thread of the machine's own from now on."""
        sys.setswitchinterval(SWITCH_INTERVAL)
        self._thread = threading.Thread(target=self._work, name="edged-engine", daemon=True)
        self._thread.start()

    @property
    def waited_for(self) -> bool:
        """Whether the caller may wait for the engine's thread: there is one, and it is another."""
        return self._thread is not None and self._thread is not threading.current_thread()

    def close(self) -> None:
        """End the threads. Idempotent."""
        with self.changed:
            self._closed = True
            self.changed.notify_all()
        if self._thread is not None and self.waited_for:
            self._thread.join()
        self.workers.close()

    def _work(self) -> None:
        while True:
            with self.changed:
                ready = [lane for lane in self._lanes if lane.ready()]
                if not ready:
                    self._owing.clear()
                    for lane in self._lanes:
                        lane.rest()
                    self.changed.wait_for(lambda: self._closed or any(lane.ready() for lane in self._lanes))
                    if self._closed:
                        return
                    continue
            for lane in [lane for lane in ready if self._owing.get(lane, 0.0) <= 0] or ready[:1]:
                self._step(lane, brief=len(ready) > 1)

    def _step(self, lane: Lane, brief: bool) -> None:
        began = perf_counter()
        try:
            lane.step(brief=brief)
        except Exception as error:
            import logging  # only now: not needed for a first token

            log = logging.getLogger(__name__)
            log.exception("a step failed")
            try:
                lane.fail(error)
            except Exception:
                log.exception("those who wait for it could not be told")
        took = perf_counter() - began
        for other in self._owing:
            self._owing[other] -= took
        share = SHARES[lane.rank]
        self._owing[lane] = took * (1 - share) / share
