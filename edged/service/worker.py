"""A thread for work that would hold up the event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")


class Worker:
    """Runs jobs in order. Its thread never delays the end of the process, unlike those of an executor."""

    def __init__(self, name: str) -> None:
        self._jobs: SimpleQueue[tuple[asyncio.Future[Any], list[Callable[[], Any]]] | None] = SimpleQueue()
        self._last: Callable[[], object] = lambda: None
        threading.Thread(target=self._work, name=name, daemon=True).start()

    async def run(self, work: Callable[..., T], *args: Any) -> T:
        """The result of `work(*args)`. A job whose caller is cancelled before its turn is left out, and its arguments
        are let go at once: they may be large."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        job: list[Callable[[], Any]] = [partial(work, *args)]
        self._jobs.put((future, job))
        try:
            return await future
        finally:
            job.clear()

    def close(self, last: Callable[[], object] = lambda: None) -> None:
        """End the thread after the jobs that are waiting and `last`, which is done in it."""
        self._last = last
        self._jobs.put(None)

    def _work(self) -> None:
        while self._next():
            pass
        self._last()

    def _next(self) -> bool:
        """Do the next job; False: there are no more. Nothing of it is held while the one after it is waited for."""
        queued = self._jobs.get()
        if queued is None:
            return False
        future, job = queued
        try:
            work = job.pop()
        except IndexError:  # its caller was cancelled
            return True
        if future.cancelled():  # only just
            return True
        try:
            report = partial(_set_result, future, work())
        except Exception as error:
            report = partial(_set_exception, future, error)
        with suppress(RuntimeError):  # the loop has ended meanwhile
            future.get_loop().call_soon_threadsafe(report)
        return True


def _set_result(future: asyncio.Future[Any], result: Any) -> None:
    if not future.done():
        future.set_result(result)


def _set_exception(future: asyncio.Future[Any], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
