"""The engine: requests in, tokens out. `open` makes one; its face is in `request`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from edged.config import EngineConfig
    from edged.engine.engine import Engine
    from edged.engine.machine import Machine
    from edged.engine.request import Event, Sink
    from edged.gguf import Model


def open(config: EngineConfig, model: Model, *, post: Callable[[list[tuple[Sink, Event]]], None] | None = None,
         thread: bool = True, machine: Machine | None = None) -> Engine:
    """An engine for an open model, which must stay open as long as the engine.

    post: called once a step with all its events; by default each event goes to its sink, in the engine's thread.
    machine: to share with other models; its owner starts and closes it. Without one the engine has its own, and
    without `thread` `Engine.step` is the caller's to call. Raises BadModel, BadConfig, BadKernels or LimitTooLow.
    """
    from edged.engine.opening import open_engine  # numpy and the kernels: not for who only needs `request`

    return open_engine(config, model, post, thread, machine)
