"""A question on its way to an answer: what the manuals say is found, then quoted, or worded by a model and checked.

    asking = await begin(context, question)    # raises what makes an answer impossible
    async for text in asking.pieces(): ...     # whole sentences; together they are asking.answer.text
    asking.answer, asking.passages, asking.usage

A model that generates is asked only where the manuals bear an answer out, at temperature 0. Of its text, sentences that
the passages do not bear out are dropped; if nothing is left, the answer is quotes. A deadline counts from `begin` on,
all waiting included: what is kept of a model's text by then is the answer; if there is nothing, TooLate is raised.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from edged.api.context import Context, LoadedModel
from edged.api.errors import TooLate
from edged.api.fields import Fields
from edged.api.generation import Generation
from edged.config import RagConfig
from edged.engine.request import Request, Sampling, Usage
from edged.errors import BadRequest, BadTemplate, ContextFull, NotFound

if TYPE_CHECKING:
    from edged.rag.answer import Answer, Evidence
    from edged.rag.manuals import Manuals
    from edged.rag.prompt import Prompt
    from edged.rag.search import Passage
    from edged.rag.store import Filter

MODES = ("auto", "extract", "generate")
SMALLEST = 1_000_000_000
"""Parameters of a model that `auto` lets word an answer; smaller ones add more errors than help."""

MAX_PASSAGES = 50
FILTERS = ("collection", "document", "product", "version")
OPTIONS = (*FILTERS, "answer", "passages", "least")

Object = dict[str, Any]
T = TypeVar("T")


@dataclass(frozen=True)
class Question:
    """What is asked, of which documents, and how it is to be answered. `read`: chunks that a model is given."""

    text: str
    only: Filter
    mode: str
    passages: int
    read: int
    least: float
    max_tokens: int | None = None
    deadline: float | None = None


def refuse_unknown(values: Iterable[str], known: Iterable[str], at: str = "") -> None:
    """Raise BadRequest for a field that has no meaning here: a filter that is spelled wrong would filter nothing."""
    for name in values:
        if name not in known:
            raise BadRequest(f"{at}{name[:80]} is not known here; known: {', '.join(known)}", param=f"{at}{name[:80]}",
                             code="unknown_parameter")


def read_filter(values: Mapping[str, Any], at: str = "") -> Filter:
    """Which documents are asked."""
    from edged.rag.store import Filter

    fields = Fields({at + name: value for name, value in values.items()})
    return Filter(**{name: fields.text(at + name) for name in FILTERS})


def read_question(text: str, values: Mapping[str, Any], rag: RagConfig, at: str = "", *, max_tokens: int | None = None,
                  deadline: float | None = None) -> Question:
    """The fields OPTIONS, whose names begin with `at` in errors; what is absent is as configured."""
    fields = Fields({at + name: value for name, value in values.items()})
    mode = fields.text(f"{at}answer", rag.answer)
    if mode not in MODES:
        raise BadRequest(f"{at}answer is {mode[:40]!a}; it must be one of {', '.join(MODES)}", param=f"{at}answer")
    return Question(
        text=text,
        only=read_filter(values, at),
        mode=mode,
        passages=fields.integer(f"{at}passages", rag.passages, 1, MAX_PASSAGES),
        read=fields.integer(f"{at}passages", rag.read, 1, MAX_PASSAGES),
        least=fields.number(f"{at}least", rag.least, 0, 1),
        max_tokens=max_tokens,
        deadline=deadline,
    )


async def begin(context: Context, question: Question) -> Asking:
    """Find what answers the question, and make the answer or have a model begin with it."""
    asking = Asking(context, question)
    model = _generator(context, question.mode)
    asking.found = await asking.in_time(context.manuals(_look, question))
    if model is not None and asking.found.bearing:
        # who leaves it to edged gets quotes from a model without a template, or with too small a context
        with suppress(*((BadTemplate, ContextFull) if question.mode == "auto" else ())):
            await asking.generate(model)
            return asking
    asking.answer = await asking.in_time(context.manuals(_quote, asking.found))
    return asking


class Asking:
    """See the module. Cancelled at any time by `cancel`."""

    found: Evidence
    answer: Answer

    def __init__(self, context: Context, question: Question) -> None:
        self.question = question
        self.usage: Usage | None = None
        self.late = False
        """The time was up before the model had ended."""

        self.cut = False
        """The answer is a model's that had more to say."""

        self._context = context
        self._began = asyncio.get_running_loop().time()
        self._prompt: Prompt | None = None
        self._generation: Generation | None = None

    @property
    def passages(self) -> tuple[Passage, ...]:
        """What was found, best first. What a model was given: [n] of its answer is the n-th."""
        return self._prompt.used if self._prompt else self.found.passages

    @property
    def _left(self) -> float | None:
        """Seconds until the deadline, if there is one."""
        deadline = self.question.deadline
        return None if deadline is None else max(0.0, self._began + deadline - asyncio.get_running_loop().time())

    async def in_time(self, work: Awaitable[T]) -> T:
        """What `work` gives. Raises TooLate if that does not come before the deadline."""
        try:
            return await asyncio.wait_for(work, self._left)
        except asyncio.TimeoutError as error:
            raise TooLate(f"there is no answer yet after {self.question.deadline:g} seconds",
                          hint="ask again with a longer deadline") from error

    async def generate(self, model: LoadedModel) -> None:
        """Have the model begin. Raises ContextFull, Busy, BadTemplate, TooLate."""
        from edged.rag.prompt import chunks, pack, room

        limits = self._context.limits
        tokens, most = room(model.engine.info.n_ctx, self.question.max_tokens, most=limits.max_tokens,
                            most_prompt=limits.max_prompt_tokens)  # fmt: skip
        passages = chunks(self.found.bearing)
        prompt = await self.in_time(self._context.aside(pack, self.question.text, passages, model.chat.render, most,
                                                        self.question.read))  # fmt: skip
        request = Request(prompt.ids, max_tokens=tokens, sampling=Sampling(temperature=0),
                          stop_ids=frozenset(model.tokenizer.eog_ids), speculate=True)
        self._generation = Generation(model, [request], deadline=self._left)
        self._prompt = prompt

    async def pieces(self) -> AsyncIterator[str]:
        """The answer as it is made. Raises what ends it."""
        if self._generation is None or self._prompt is None:
            yield self.answer.text
            return
        from edged.rag.citations import Checked

        checked, whole = Checked(self._prompt.used, self.question.text), True
        while not checked.over and (pieces := await self._generation.next()):
            for piece in pieces:
                if text := checked.push(piece.text):
                    yield text
                if piece.finish is not None and not checked.over:
                    whole, self.late, self.cut = piece.finish == "stop", piece.late, piece.finish == "length"
        if text := checked.finish(whole):
            yield text
        await self._generation.end()  # a model that has nothing to say goes on about that
        self.usage = self._generation.usage()
        self.answer = checked.answer(self.found.confidence)
        if self.answer.refused:
            quotes = await self.in_time(self._context.manuals(_quote, self.found))
            self.answer, self.cut = replace(quotes, dropped=self.answer.dropped), False
            yield self.answer.text

    async def whole(self) -> str:
        """The whole answer."""
        return "".join([piece async for piece in self.pieces()])

    def cancel(self) -> None:
        """Stop what runs for it. Idempotent."""
        if self._generation is not None:
            self._generation.cancel()

    def told(self) -> Object:
        """The answer and what it is made of, once all pieces have come."""
        from edged.rag.reply import answer_of

        return answer_of(self.question.text, self.answer, self.passages, self._prompt.dropped if self._prompt else 0)


def _generator(context: Context, mode: str) -> LoadedModel | None:
    """The model that words the answer, None if none does."""
    if mode == "extract":
        return None
    try:
        model = context.model()
    except NotFound as error:
        if mode == "auto":
            return None
        raise BadRequest(f"answer is 'generate', but {error.message}", param="answer", code=error.code,
                         hint="set model.path, or ask with answer 'extract'") from error
    return model if mode == "generate" or model.n_params >= SMALLEST else None


def _look(manuals: Manuals, question: Question) -> Evidence:
    return manuals.look(question.text, passages=question.passages, least=question.least, only=question.only)


def _quote(manuals: Manuals, found: Evidence) -> Answer:
    return manuals.quote(found)
