"""Generate in this process, without an event loop: what `run`, `chat` and `bench` share."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from edged.engine.request import Done, Event, Failed, Request, Sampling, Token, Usage
from edged.service import loader

if TYPE_CHECKING:
    from edged.config import Config
    from edged.engine.machine import Machine
    from edged.service.loader import LoadedModel


def load(config: Config, machine: Machine | None = None) -> LoadedModel:
    """The model, with what the start has made put out of the garbage collector's sight."""
    model = loader.load(config, machine=machine)
    if not gc.isenabled():  # see main
        gc.freeze()
        gc.enable()
    return model


def write(text: str) -> None:
    """Show text at once, whatever the encoding of the terminal."""
    if text:
        sys.stdout.buffer.write(text.encode("utf-8", "replace"))
        sys.stdout.buffer.flush()


def request(model: LoadedModel, prompt: Sequence[int], max_tokens: int | None, sampling: dict[str, Any],
            ignore_eos: bool = False) -> Request:
    """A request for this prompt. max_tokens None or negative: up to the end of the context."""
    limit = None if max_tokens is None or max_tokens < 0 else max_tokens
    stops = frozenset() if ignore_eos else frozenset(model.tokenizer.eog_ids)
    return Request(tuple(prompt), limit, Sampling(**sampling), stops)


def stream(model: LoadedModel, wanted: Request, stops: Sequence[str], write: Callable[[str], None],
           over: Callable[[], bool] = lambda: False) -> Done:
    """Call `write` with each piece of the answer as it comes; how it ended. Raises the error of a failed request.

    `over` is asked after each piece whether that is enough: what is not written yet is left out then. An exception,
    KeyboardInterrupt too, cancels the request.
    """
    events: SimpleQueue[Event] = SimpleQueue()
    text = model.tokenizer.stream(stops)
    handle = model.engine.submit(wanted, events.put)
    enough = False
    try:
        while True:
            event = events.get()
            if isinstance(event, Token):
                if not (event.stop or text.stopped or enough):
                    write(text.push(event.id))
                    enough = over()
                    if enough or text.stopped:
                        handle.cancel()
            elif isinstance(event, Failed):
                raise event.error
            elif isinstance(event, Done):
                if not enough:
                    write(text.finish())
                return event
    except BaseException:
        handle.cancel()
        raise


def figures(usage: Usage) -> str:
    """Token counts and speeds on one line."""
    fresh = usage.prompt_tokens - usage.cached_tokens
    return (
        f"prompt {usage.prompt_tokens} tokens ({usage.cached_tokens} cached), {_rate(fresh, usage.prefill_s)}; "
        f"answer {usage.completion_tokens} tokens, {_rate(usage.completion_tokens - 1, usage.decode_s)}"
        + (f"; {usage.accepted_tokens} of {usage.drafted_tokens} guesses right" if usage.drafted_tokens else "")
    )


def _rate(tokens: int, seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms, {tokens / seconds:.1f} tokens/s" if tokens > 0 and seconds > 0 else "0 ms"
