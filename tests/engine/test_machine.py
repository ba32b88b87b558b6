"""The thread that steps all models: whose turn it is, with lanes that only count, and with two models at once."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from edged import engine, gguf
from edged.config import EngineConfig
from edged.engine import embedder, room
from edged.engine.engine import Engine
from edged.engine.machine import GENERATE, INGEST, QUERY, SHARES, Machine
from edged.engine.request import Done, Event, Request, Sampling
from edged.errors import LimitTooLow
from tests import tiny

PATIENCE = 20.0


class Lane:
    """Takes `seconds` a step, `n` times; writes down when."""

    def __init__(self, machine: Machine, rank: int, log: list[int], seconds: float = 0.0) -> None:
        self.rank = rank
        self.n = 0
        self.seconds = seconds
        self.brief: list[bool] = []
        self.failed: list[Exception] = []
        self.n_rests = 0
        self._machine = machine
        self._log = log
        machine.add(self)

    def give(self, n: int) -> None:
        with self._machine.changed:
            self.n += n
            self._machine.changed.notify_all()

    def ready(self) -> bool:
        return self.n > 0

    def step(self, brief: bool = False) -> None:
        self.n -= 1
        self._log.append(self.rank)
        self.brief.append(brief)
        end = time.perf_counter() + self.seconds
        while time.perf_counter() < end:
            pass
        if self.seconds < 0:
            raise ZeroDivisionError

    def fail(self, error: Exception) -> None:
        self.failed.append(error)

    def rest(self) -> None:
        self.n_rests += 1


@pytest.fixture
def machine() -> Machine:
    return Machine(EngineConfig(threads=1))


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end
        threading.Event().wait(0.002)


def run(machine: Machine, *lanes: Lane) -> None:
    """Until all is done."""
    machine.start()
    until(lambda: not any(lane.n for lane in lanes))
    machine.close()


def test_each_in_its_turn(machine: Machine) -> None:
    log: list[int] = []
    lanes = [Lane(machine, rank, log) for rank in (INGEST, QUERY, GENERATE)]
    for lane in lanes:
        lane.n = 3
    run(machine, *lanes)
    assert log[:3] == [GENERATE, QUERY, INGEST]
    assert all(log.count(rank) == 3 for rank in (GENERATE, QUERY, INGEST))


@pytest.mark.parametrize("rank", [QUERY, INGEST])
def test_vectors_take_their_share_and_no_more(machine: Machine, rank: int) -> None:
    """While a model generates; between two of their steps it has at least one, and theirs are brief."""
    log: list[int] = []
    vectors, generate = Lane(machine, rank, log, 0.002), Lane(machine, GENERATE, log, 0.001)
    vectors.n, generate.n = 1000, 200
    machine.start()
    until(lambda: not generate.n)
    with machine.changed:
        vectors.n = 0
    machine.close()
    together = "".join(map(str, log))
    together = together[: together.rindex(str(GENERATE))]
    assert str(rank) * 2 not in together
    spent = 0.002 * together.count(str(rank))
    assert SHARES[rank] / 2 < spent / (spent + 0.001 * 200) < 1.5 * SHARES[rank]
    assert all(vectors.brief[: together.count(str(rank))])


def test_background_work_alone_takes_all(machine: Machine) -> None:
    log: list[int] = []
    lane = Lane(machine, INGEST, log)
    lane.n = 50
    run(machine, lane)
    assert log == [INGEST] * 50 and not any(lane.brief)


def test_lanes_that_all_owe_time_do_not_stand_still(machine: Machine) -> None:
    log: list[int] = []
    lanes = [Lane(machine, rank, log, 0.001) for rank in (QUERY, INGEST)]
    for lane in lanes:
        lane.n = 40
    run(machine, *lanes)
    assert log.count(QUERY) == log.count(INGEST) == 40
    assert log[:60].count(QUERY) > log[:60].count(INGEST)


def test_a_fault_while_a_fault_is_told_ends_nothing(machine: Machine) -> None:
    log: list[int] = []
    broken, fine = Lane(machine, QUERY, log, -1.0), Lane(machine, GENERATE, log)
    broken.fail = lambda error: 1 / 0  # type: ignore[method-assign, assignment, return-value]
    broken.n = fine.n = 3
    run(machine, broken, fine)
    assert log.count(GENERATE) == 3


def test_a_fault_of_one_lane_is_its_own(machine: Machine) -> None:
    log: list[int] = []
    broken, fine = Lane(machine, QUERY, log, -1.0), Lane(machine, GENERATE, log)
    broken.n = fine.n = 3
    run(machine, broken, fine)
    assert len(broken.failed) == 3 and not fine.failed


def test_memory_is_given_back_when_there_is_nothing_to_do(machine: Machine) -> None:
    log: list[int] = []
    lane = Lane(machine, QUERY, log)
    machine.start()
    lane.give(1)
    until(lambda: lane.n_rests >= 1 and not lane.n)
    machine.close()


def test_models_are_weighed_together(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two that fit alone, and not both."""
    monkeypatch.setattr(room, "limits", lambda root="": iter([(300_000_000, "MemAvailable")]))
    machine.weigh(120_000_000, 10_000_000)
    with pytest.raises(LimitTooLow, match=r"weights 240, KV cache 20, .* 300 MB are free"):
        machine.weigh(120_000_000, 10_000_000)
    machine.weigh(0, 10_000_000)  # one whose weights are locked: they are not free any more
    machine.close()


def test_two_models_at_once_give_what_they_give_alone(tmp_path: Path) -> None:
    """Tokens and vectors, bit for bit; both are stepped by one thread with one set of workers."""
    request = Request((5, 6, 7, 8), 60, Sampling(temperature=0))
    texts = [np.random.default_rng(i).integers(0, tiny.N_VOCAB, 40 + i).tolist() for i in range(90)]
    llama, bert = tiny.write(tmp_path / "l.gguf"), tiny.write(tmp_path / "b.gguf", "bert")
    config = EngineConfig(threads=2)
    with gguf.open(llama) as first, gguf.open(bert) as second:
        with_alone = engine.open(config, first)
        alone = answer(with_alone, request)
        with_alone.close()
        maker = embedder.open(config, second)
        vectors = maker.embed(texts)
        maker.close()
        before = threading.active_count()
        machine = Machine(config)
        generator = engine.open(config, first, machine=machine)
        maker = embedder.open(config, second, machine=machine)
        machine.start()
        assert threading.active_count() == before + 2  # the engine's, and one worker
        came: queue.SimpleQueue[object] = queue.SimpleQueue()
        maker.submit(texts, came.put, background=True)
        assert answer(generator, request) == alone
        assert came.get(timeout=PATIENCE).vectors.tobytes() == vectors.tobytes()  # type: ignore[attr-defined]
        assert maker.embed(texts[:5]).tobytes() == vectors[:5].tobytes()
        maker.submit([[1]] * 2000, came.put, background=True)
        generator.close()  # each may close while the other works
        maker.close()
        machine.close()
        assert threading.active_count() == before


def answer(generator: Engine, request: Request) -> list[int]:
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    generator.submit(request, events.put)
    ids = []
    while not isinstance(event := events.get(timeout=PATIENCE), Done):
        ids.append(event.id)  # type: ignore[union-attr]
    return ids
