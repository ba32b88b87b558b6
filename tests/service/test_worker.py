"""The thread beside the event loop: what it holds, and what it leaves out."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Iterator

import pytest

from edged.service.worker import Worker
from tests.service.running import PATIENCE, until


class Large:
    """What a job is about."""


@pytest.fixture
def worker() -> Iterator[Worker]:
    made = Worker("test")
    yield made
    made.close()


def test_a_job_whose_caller_leaves_is_let_go_at_once(worker: Worker) -> None:
    async def main() -> None:
        began, go = threading.Event(), threading.Event()
        seen: list[Large] = []

        def hold() -> None:
            began.set()
            go.wait(PATIENCE)

        first = asyncio.ensure_future(worker.run(hold))
        large = Large()
        held = weakref.ref(large)
        second = asyncio.ensure_future(worker.run(seen.append, large))
        await asyncio.to_thread(began.wait, PATIENCE)
        del large
        assert held() is not None
        second.cancel()
        await asyncio.wait([second])
        del second
        assert held() is None
        go.set()
        await first
        assert await worker.run(lambda: len(seen)) == 0

    asyncio.run(main())


def test_nothing_is_held_of_a_job_that_is_done(worker: Worker) -> None:
    async def main() -> None:
        large = Large()
        held = weakref.ref(large)
        assert await worker.run(lambda each: type(each) is Large, large)
        del large
        until(lambda: held() is None)

    asyncio.run(main())
