"""The manuals as the daemon and the commands open them: the store that is configured, with the embedding model.

    manuals = open_manuals(config, embedder)        # for one thread
    desk = Desk(config, embedder)                   # two threads of its own, for an event loop
    await desk.run(work, *args, writing=False)      # work(manuals, *args)
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from edged.config import Config
from edged.engine.request import EmbedderLike
from edged.errors import BadStore, DiskFull, EdgedError
from edged.store.folder import manuals_file

if TYPE_CHECKING:
    import numpy as np

    from edged.api.context import LoadedEmbedder
    from edged.rag.manuals import Manuals

T = TypeVar("T")

log = logging.getLogger(__name__)

REMEMBERED = 64  # texts whose tokens are kept: those of a batch, which are counted before they are embedded
LONGEST = 4096  # characters of such a text


class Embedding:
    """A LoadedEmbedder as edged.rag knows it, for one thread."""

    def __init__(self, loaded: LoadedEmbedder) -> None:
        self._loaded = loaded
        self._remembered: dict[str, list[int]] = {}
        self._engine: EmbedderLike = loaded.engine
        self.name, self.fingerprint = loaded.name, loaded.fingerprint
        info = self._engine.info
        self.dim, self.pooling, self.n_ctx = info.dim, info.pooling, info.n_ctx

    def embed(self, texts: Sequence[str], background: bool = False) -> np.ndarray:
        """f32 (texts, dim). Raises what the embedder does, and ModelChanged if the model's file did."""
        vectors = self._engine.embed([self._encode(text) for text in texts], background=background)
        self._loaded.check()  # rather no vectors than those of weights that were overwritten
        return vectors

    def count_tokens(self, text: str) -> int:
        """Tokens of a text, with those that the model puts around it."""
        return len(self._encode(text))

    def _encode(self, text: str) -> list[int]:
        ids = self._remembered.pop(text, None)
        if ids is None:
            ids = self._loaded.encode(text)
        if len(text) <= LONGEST:
            self._remembered[text] = ids  # as the newest
            if len(self._remembered) > REMEMBERED:
                del self._remembered[next(iter(self._remembered))]
        return ids


def open_manuals(config: Config, embedder: LoadedEmbedder | None) -> Manuals:
    """The manuals of the store that is configured, to be used by one thread. Nothing is opened before the first use."""
    from edged.kernels import load
    from edged.kernels.scan import scanner
    from edged.rag.manuals import Manuals

    scan = scanner(load.open(config.engine.kernel_level or None))
    embedding = Embedding(embedder) if embedder else None
    return Manuals(manuals_file(config.rag.store), embedding, scan=scan, chunk=config.rag.chunk)


class Desk:
    """The manuals for an event loop: a thread that searches and removes, and one that takes documents in, so that no
    search waits for an ingest. Each opens the store for itself, when it is first asked."""

    def __init__(self, config: Config, embedder: LoadedEmbedder | None) -> None:
        from edged.service.worker import Worker  # with asyncio: not for commands

        self._config = config
        self._embedder = embedder
        self._workers = Worker("edged-search"), Worker("edged-ingest")
        self._opened: list[Manuals | None] = [None, None]
        self._fault = ""

    async def run(self, work: Callable[..., T], *args: Any, writing: bool = False) -> T:
        """The result of work(manuals, *args), in its turn."""
        return await self._workers[writing].run(self._with_manuals, writing, work, *args)

    async def probe(self) -> None:
        """Find out what is wrong with the store before anybody asks; `warnings` and the log tell it."""
        try:
            await self.run(lambda manuals: manuals.probe())
        except EdgedError as error:
            log.warning("questions about manuals: %s", error)

    def warnings(self) -> tuple[str, ...]:
        """What is wrong with the store, and what makes answers worse, as far as it was opened."""
        lacking = any(manuals is not None and manuals.lacks_words for manuals in self._opened)
        words = ("manuals are searched by meaning alone: this SQLite has no FTS5",) if lacking else ()
        return (f"questions about manuals: {self._fault}", *words) if self._fault else words

    def close(self) -> None:
        """Close the stores after what runs, and end the threads. Waits for nothing."""
        for i, worker in enumerate(self._workers):
            worker.close(lambda i=i: self._close(i))  # type: ignore[misc]

    def _with_manuals(self, i: int, work: Callable[..., T], *args: Any) -> T:
        manuals = self._opened[i]
        if manuals is None:
            manuals = self._opened[i] = open_manuals(self._config, self._embedder)
        try:
            done = work(manuals, *args)
        except (BadStore, DiskFull) as error:
            self._fault = str(error)
            raise
        self._fault = ""
        return done

    def _close(self, i: int) -> None:
        manuals = self._opened[i]
        if manuals is not None:
            manuals.close()
