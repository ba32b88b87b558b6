"""A document on its way into the store, in the thread that writes there, and what a client is told meanwhile."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from edged.api.context import Context
from edged.errors import EdgedError

if TYPE_CHECKING:
    from edged.rag.ingest import Done
    from edged.rag.manuals import Manuals

PACE = 0.1
"""Seconds between two reports at least."""

Object = dict[str, Any]


class Ingesting:
    """One ingest. `await next()` returns what there is to report, at most each PACE, None when it is over."""

    def __init__(self, context: Context, name: str, data: bytes, about: dict[str, str]) -> None:
        self._loop = asyncio.get_running_loop()
        self._gone = threading.Event()
        self._next_report = 0.0  # on the loop's clock
        self._reading = False
        self._reports: list[Object] = []  # of each stage the last
        self._changed = self._loop.create_future()
        self._job: asyncio.Future[Done] = asyncio.ensure_future(
            context.manuals(_ingest, name, data, about, self._progress, writing=True)
        )
        self._job.add_done_callback(lambda job: job.cancelled() or job.exception())  # seen, if nobody asks for it

    async def next(self) -> Object | None:
        """The next report; waits for it."""
        if (early := self._next_report - self._loop.time()) > 0:
            await asyncio.wait([self._job], timeout=early)
        while not self._job.done() and not self._reports:
            await asyncio.wait([self._job, self._changed], return_when=asyncio.FIRST_COMPLETED)
            self._changed = self._loop.create_future()
        self._next_report = self._loop.time() + PACE
        return self._reports.pop(0) if self._reports else None

    async def done(self) -> Object:
        """What became of the document. Raises what ended the ingest."""
        from edged.rag.reply import done_of

        return done_of(await self._job)

    def cancel(self) -> None:
        """Nobody waits for it any more. Idempotent."""
        self._gone.set()
        self._job.cancel()

    def _progress(self, done: int, total: int) -> None:
        """In the thread that writes."""
        if self._gone.is_set():
            raise EdgedError("the client went away", code="cancelled")
        if not total and self._reading:  # told once
            return
        self._reading = True
        stage = {"stage": "embedding", "done": done, "total": total} if total else {"stage": "reading"}
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._tell, stage)

    def _tell(self, stage: Object) -> None:
        if self._reports and self._reports[-1]["stage"] == stage["stage"]:
            self._reports.pop()
        self._reports.append(stage)
        if not self._changed.done():
            self._changed.set_result(None)


def _ingest(manuals: Manuals, name: str, data: bytes, about: dict[str, str], progress: Any) -> Done:
    return manuals.ingest(name, data, **about, progress=progress)
