"""From engine events to text: the one place where answers are detokenised, stopped and counted.

A `Generation` is all the choices of one call. `await next()` returns what every choice has gained since the last look,
as one batch however many tokens that is, so a client that reads slowly gets fewer and larger pieces instead of a queue
of small ones. Engine events are put in on the event loop's thread.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from edged.api.context import LoadedModel
from edged.engine.request import Done, Event, Failed, PromptScores, Request, Sink, Token, Usage
from edged.errors import EdgedError, ModelFault, NotReady

MAX_PENDING = 32_768
"""Tokens and alternatives kept for a client that does not read; more cancels the generation."""


@dataclass(frozen=True)
class Piece:
    """What one choice has gained: text, the tokens it came from, and why it ended if it did.

    `late`: it ended because its time was up.
    """

    index: int
    text: str
    tokens: tuple[Token, ...] = ()
    finish: Literal["stop", "length"] | None = None
    late: bool = False


class Choice:
    """One answer being made. `stream`: a TextStream, which holds back what may be a stop string or half a character."""

    def __init__(self, index: int, request: Request, stream: Any) -> None:
        self.index = index
        self.request = request
        self.scores: PromptScores | None = None
        self.n_tokens = 0
        self.n_cached = 0
        self.finish: Literal["stop", "length"] | None = None
        self.over = False
        self.late = False
        self._stream = stream
        self._text = ""
        self._out: list[Token] = []
        self._held: list[Token] = []

    def take(self, event: Event) -> None:
        """Raises the error of a failed request, ModelFault for NaN, NotReady if the engine gave up."""
        if isinstance(event, Token):
            if self.finish is None:
                self._take_token(event)
        elif isinstance(event, PromptScores):
            _check(event.logprobs)
            self.scores = event
        elif isinstance(event, Failed):
            raise event.error
        else:
            self._take_done(event)

    def piece(self) -> Piece | None:
        """What was gained since the last call; None for nothing."""
        finish = self.finish if self.over else None
        piece = Piece(self.index, self._text, tuple(self._out), finish, self.late and self.over)
        self._text = ""
        self._out.clear()
        return piece if piece.text or piece.tokens or piece.finish else None

    def _take_token(self, token: Token) -> None:
        self.n_tokens += 1
        if token.stop:
            return
        if token.logprob is not None:
            _check((token.logprob, *(logprob for _, logprob in token.top)))
            self._held.append(token)
        text = self._stream.push(token.id)
        if text:
            self._release(text)
        if self._stream.stopped:
            self.finish = "stop"
            self._held.clear()

    def _take_done(self, done: Done) -> None:
        self.over = True
        self.n_cached = done.usage.cached_tokens
        self.n_drafted, self.n_accepted = done.usage.drafted_tokens, done.usage.accepted_tokens
        if self.finish is not None:
            return
        if done.reason == "cancelled" and not self.late:
            raise NotReady("the request was cancelled because the daemon is stopping")
        self.late = done.reason == "cancelled"  # else it ended by itself at the last moment
        self.finish = "length" if done.reason == "cancelled" else done.reason
        self._release(self._stream.finish())

    def _release(self, text: str) -> None:
        self._text += text
        self._out += self._held
        self._held.clear()


class Inbox:
    """Events of several requests in the order they came, for one reader; `overrun` is called if it does not read."""

    def __init__(self, overrun: Callable[[], None]) -> None:
        self.overrun = False
        self._on_overrun = overrun
        self._events: list[tuple[int, Event]] = []
        self._size = 0
        self._waiter: asyncio.Future[None] | None = None

    def sink(self, index: int) -> Sink:
        """The sink of request `index`."""
        return lambda event: self._put(index, event)

    async def take(self) -> list[tuple[int, Event]]:
        """All events that have come; waits for the first."""
        if not self._events:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        events, self._events, self._size = self._events, [], 0
        return events

    def _put(self, index: int, event: Event) -> None:
        self._events.append((index, event))
        self._size += 1 + len(event.top) if isinstance(event, Token) else 1
        if self._size > MAX_PENDING and not self.overrun:
            self.overrun = True
            self._on_overrun()
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Generation:
    """The choices of one call, `per_prompt` for each prompt.

    Submits all requests or none: raises ContextFull, BadRequest or Busy. What runs `deadline` seconds later is ended:
    its answer so far is its answer, with `finish` "length" and `late`.
    """

    def __init__(
        self, model: LoadedModel, requests: Sequence[Request], stops: tuple[str, ...] = (), per_prompt: int = 1,
        deadline: float | None = None,
    ) -> None:  # fmt: skip
        self._inbox = Inbox(self.cancel)
        self._check_model = model.check
        self._per_prompt = per_prompt
        self._handles: list[Any] = []
        self._timer: asyncio.TimerHandle | None = None
        self.choices = [Choice(i, request, model.tokenizer.stream(stops)) for i, request in enumerate(requests)]
        try:
            for choice in self.choices:
                self._handles.append(model.engine.submit(choice.request, self._inbox.sink(choice.index)))
        except EdgedError:
            self.cancel()
            raise
        if deadline is not None:
            self._timer = asyncio.get_running_loop().call_later(deadline, self._expire)

    async def next(self) -> list[Piece]:
        """The next pieces, at most one for each choice; an empty list when all are over.

        Raises the error of the first choice that fails, ModelChanged if the model's file did; the others are cancelled.
        """
        while not all(choice.over for choice in self.choices):
            touched: dict[int, Choice] = {}
            try:
                events = await self._inbox.take()
                if self._inbox.overrun:
                    raise EdgedError("the client reads too slowly", code="slow_client")
                for index, event in events:
                    choice = touched[index] = self.choices[index]
                    choice.take(event)
                    if choice.finish is not None and not choice.over:
                        self._handles[index].cancel()
                if any(choice.over for choice in touched.values()):
                    self._check_model()  # rather no answer than one from weights that were overwritten
            except EdgedError:
                self.cancel()
                self._check_model()
                raise
            pieces = [piece for choice in touched.values() if (piece := choice.piece())]
            if pieces:
                return pieces
        self._forget_timer()
        return []

    async def all(self) -> list[Piece]:
        """The whole answers, one piece for each choice."""
        whole = [Piece(choice.index, "") for choice in self.choices]
        texts: list[list[str]] = [[] for _ in whole]
        tokens: list[list[Token]] = [[] for _ in whole]
        while pieces := await self.next():
            for piece in pieces:
                texts[piece.index].append(piece.text)
                tokens[piece.index] += piece.tokens
        return [replace(piece, text="".join(texts[i]), tokens=tuple(tokens[i]), finish=self.choices[i].finish,
                        late=self.choices[i].late)
                for i, piece in enumerate(whole)]

    async def end(self) -> None:
        """Stop what still runs, as if it had come to its end, and wait for that. Raises as `next`."""
        for choice in self.choices:
            choice.finish = choice.finish or "stop"
        self.cancel()
        while await self.next():
            pass

    def cancel(self) -> None:
        """Stop what still runs. Idempotent."""
        self._forget_timer()
        for handle in self._handles:
            handle.cancel()

    def _expire(self) -> None:
        """The time is up: what still runs ends with what it has."""
        for choice, handle in zip(self.choices, self._handles, strict=True):
            if choice.finish is None:
                choice.late = True
                handle.cancel()

    def _forget_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def usage(self) -> Usage:
        """Tokens of all choices; a prompt that several choices share counts once."""
        first_of_prompt = self.choices[:: self._per_prompt]
        return Usage(
            prompt_tokens=sum(len(choice.request.prompt) for choice in first_of_prompt),
            completion_tokens=sum(choice.n_tokens for choice in self.choices),
            cached_tokens=sum(choice.n_cached for choice in first_of_prompt),
            drafted_tokens=sum(choice.n_drafted for choice in self.choices),
            accepted_tokens=sum(choice.n_accepted for choice in self.choices),
        )


def _check(logprobs: Sequence[float]) -> None:
    if any(math.isnan(logprob) for logprob in logprobs):
        raise ModelFault("the model produced a log-probability that is not a number")
