"""A document on its way into the store, in the thread that writes there, and what a client is told meanwhile."""

from __future__ import annotations

import asyncio
import threading
import time
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
    """One ingest. `await next()` returns the last report that was not read yet, None when it is over."""

    def __init__(self, context: Context, name: str, data: bytes, about: dict[str, str]) -> None:
        self._loop = asyncio.get_running_loop()
        self._gone = threading.Event()
        self._next_report = 0.0
        self._report: Object | None = None
        self._changed = self._loop.create_future()
        self._job: asyncio.Future[Done] = asyncio.ensure_future(
            context.manuals(_ingest, name, data, about, self._progress, writing=True)
        )
        self._job.add_done_callback(lambda job: job.cancelled() or job.exception())  # seen, if nobody asks for it

    async def next(self) -> Object | None:
        while not self._job.done() and self._report is None:
            await asyncio.wait([self._job, self._changed], return_when=asyncio.FIRST_COMPLETED)
            self._changed = self._loop.create_future()
        report, self._report = self._report, None
        return report

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
        stage = {"stage": "embedding", "done": done, "total": total} if total else {"stage": "reading"}
        now = time.monotonic()
        if now >= self._next_report and (total or not self._next_report):  # that it is read is told once
            self._next_report = now + PACE
            with suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._tell, stage)

    def _tell(self, stage: Object) -> None:
        self._report = stage
        if not self._changed.done():
            self._changed.set_result(None)


def _ingest(manuals: Manuals, name: str, data: bytes, about: dict[str, str], progress: Any) -> Done:
    return manuals.ingest(name, data, **about, progress=progress)
