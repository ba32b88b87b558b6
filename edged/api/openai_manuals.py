"""Chat completions that manuals answer: `"edged": {"collection": NAME}` in the request.

The last user message is the question; what was said before it is not looked at. `message["edged"]`, or the last delta's
in a stream, says what the answer cites. Sampling fields have no effect, since the answer is made at temperature 0; what
would be lost otherwise is refused. Without a model that generates, the answer is quotes.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from edged.api.asking import OPTIONS, Asking, Question, begin, read_question, refuse_unknown
from edged.api.context import Context, LoadedEmbedder, LoadedModel, Reply
from edged.api.errors import body_of
from edged.api.fields import Fields, wrong_type
from edged.api.generation import Choice, Piece
from edged.api.openai_replies import ManualsFormat
from edged.api.openai_requests import Options, read_chat_logprobs, read_messages, read_options
from edged.api.routes import json_reply
from edged.api.sse import DONE, SSE_HEADERS, event
from edged.engine.request import Request, Usage
from edged.errors import BadRequest, EdgedError, NotFound

_CHOICE = Choice(0, Request(()), None)


async def answer(fields: Fields, context: Context) -> Reply:
    """The answer to a request whose field `edged` is given."""
    model = _speaker(context)
    options = read_options(fields, context.limits, model.tokenizer.n_vocab)
    question = _question(fields, options, context)
    asking = await begin(context, question)
    form = ManualsFormat(model, False)
    pieces = asking.pieces()
    try:
        if not options.stream:
            text = "".join([piece async for piece in pieces])
            form.cited = _cited(asking)
            return json_reply(form.answer([_last(asking, text)], [_CHOICE], asking.usage or Usage(0, 0)))
        first = await anext(pieces)
    except BaseException:  # also when the client leaves: its task is cancelled
        asking.cancel()
        raise
    events = _events(asking, form, first, pieces, options.include_usage)
    return Reply(200, parts=events, headers=SSE_HEADERS, cancel=asking.cancel)


async def _events(asking: Asking, form: ManualsFormat, first: str, pieces: AsyncIterator[str], usage: bool
                  ) -> AsyncIterator[bytes]:
    def chunks(parts: list[dict]) -> bytes:
        return b"".join(event(form.chunks([part], usage)) for part in parts)

    try:
        yield chunks(form.first_parts(_CHOICE) + form.parts(Piece(0, first)))
        async for text in pieces:
            yield chunks(form.parts(Piece(0, text)))
    except EdgedError as error:
        yield event(body_of(error))
        return
    form.cited = _cited(asking)
    last = chunks(form.parts(_last(asking, "")))
    yield last + (event(form.last(asking.usage or Usage(0, 0))) if usage else b"") + DONE


def _last(asking: Asking, text: str) -> Piece:
    return Piece(0, text, finish="length" if asking.cut else "stop", late=asking.late)


def _cited(asking: Asking) -> dict:
    told = asking.told()
    names = ("refused", "confidence", "mode", "dropped_sentences", "dropped_passages")
    return {"citations": told["quotes"], **{name: told[name] for name in names}}


def _question(fields: Fields, options: Options, context: Context) -> Question:
    edged = fields.get("edged")
    if not isinstance(edged, dict):
        raise wrong_type("edged", "an object", edged)
    refuse_unknown(edged, OPTIONS, "edged.")
    if not edged.get("collection"):
        raise BadRequest("edged.collection is missing: it names the manuals that answer", param="edged.collection")
    for name, lost in {
        "n": options.n > 1,
        "logprobs": read_chat_logprobs(fields) is not None,
        "stop": bool(options.stops),
        "logit_bias": bool(options.sampling.logit_bias),
    }.items():
        if lost:
            raise BadRequest(f"{name} is not supported with edged.collection", param=name,
                             code="unsupported_parameter")
    text = next((m["content"] for m in reversed(read_messages(fields)) if m["role"] == "user"), None)
    if text is None or not text.strip():
        reason = "hold no message of the user" if text is None else "end with an empty message of the user"
        raise BadRequest(f"messages {reason}: the last one is the question to the manuals", param="messages")
    return read_question(text, edged, context.rag, "edged.", max_tokens=options.max_tokens, deadline=options.deadline)


def _speaker(context: Context) -> LoadedModel | LoadedEmbedder:
    """The model in whose name the answer is given."""
    try:
        return context.model()
    except NotFound:
        return context.embedder()
