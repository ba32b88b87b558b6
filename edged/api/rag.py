"""Questions about manuals, and the manuals: /v1/search, /v1/ask, /v1/documents.

Fields and parameters that are not known are refused. Streams are server-sent events that end with `[DONE]`, or with
`{"error": {...}}` for what fails after the first event; what fails before it has a status of its own. README.md holds
the shapes.
"""

from __future__ import annotations

import unicodedata
from collections.abc import AsyncIterator

from edged.api.asking import (
    FILTERS,
    MAX_PASSAGES,
    OPTIONS,
    Asking,
    begin,
    read_filter,
    read_question,
    refuse_unknown,
)
from edged.api.context import Context, Reply
from edged.api.errors import BadHttp, body_of
from edged.api.fields import Fields
from edged.api.ingesting import Ingesting
from edged.api.openai_replies import Object, usage_of
from edged.api.openai_requests import MAX_DEADLINE
from edged.api.routes import Route, json_reply, read_body
from edged.api.sse import DONE, SSE_HEADERS, event
from edged.errors import BadRequest, EdgedError, NotFound
from edged.protocol.http import HttpRequest

MAX_NAME = 1024
"""Characters of a document's path, collection, product or version."""


async def search(request: HttpRequest, context: Context) -> Reply:
    """POST /v1/search {"query", "passages", FILTERS} -> the passages, best first."""
    from edged.rag.reply import passage_of

    body = await read_body(request, context)
    refuse_unknown(body, ("query", "passages", *FILTERS))
    fields = Fields(body)
    if not fields.present("query"):
        raise BadRequest("query is missing", param="query")
    query, only = fields.text("query"), read_filter(body)
    passages = fields.integer("passages", context.rag.passages, 1, MAX_PASSAGES)
    found = await context.manuals(lambda manuals: manuals.search(query, passages=passages, only=only))
    return json_reply({"object": "list", "data": [passage_of(passage) for passage in found]})


async def ask(request: HttpRequest, context: Context) -> Reply:
    """POST /v1/ask {"question", "stream", "max_tokens", "deadline", OPTIONS} -> an answer and what it is made of."""
    body = await read_body(request, context)
    refuse_unknown(body, ("question", "stream", "max_tokens", "deadline", *OPTIONS))
    fields = Fields(body)
    text, stream = fields.text("question"), fields.flag("stream")
    if not text.strip():
        raise BadRequest("question is empty" if fields.present("question") else "question is missing",
                         param="question")
    max_tokens = fields.integer("max_tokens", None, 1, 2**31 - 1)
    deadline = fields.number("deadline", 0, 0.001, MAX_DEADLINE) if fields.present("deadline") else None
    asking = await begin(context, read_question(text, body, context.rag, max_tokens=max_tokens, deadline=deadline))
    if stream:
        return Reply(200, parts=_answer_events(asking), headers=SSE_HEADERS, cancel=asking.cancel)
    try:
        await asking.whole()
    finally:  # also when the client leaves: its task is cancelled
        asking.cancel()
    return json_reply(_answer(asking))


async def documents(request: HttpRequest, context: Context) -> Reply:
    """GET /v1/documents?FILTERS -> the documents in the store; none where there is no store yet."""
    from edged.rag.reply import document_of

    refuse_unknown(request.query, FILTERS)
    only = read_filter(request.query)
    path, model, rows = await context.manuals(lambda m: (m.path, m.embedding and m.embedding.name, m.documents(only)))
    return json_reply({"object": "list", "store": str(path), "embedding": model, "data": [*map(document_of, rows)]})


async def remove(request: HttpRequest, context: Context) -> Reply:
    """DELETE /v1/documents/ID. In the thread that searches, so that it need not wait for an ingest."""
    refuse_unknown(request.query, ())
    name = request.path.removeprefix("/v1/documents/")
    if not (name.isascii() and name.isdecimal() and len(name) < 19):
        raise NotFound(f"there is no document {name[:80]!a}; GET /v1/documents lists them with their ids")
    await context.manuals(lambda manuals: manuals.remove(int(name)))
    return json_reply({"id": int(name), "deleted": True})


async def ingest(request: HttpRequest, context: Context) -> Reply:
    """POST /v1/documents?path=...&collection=...&product=...&version=... with the document's bytes as body.

    The path is only its name; nothing is opened. Without product or version a document that is there keeps its own. A
    client that goes away ends it.
    """
    refuse_unknown(request.query, ("path", "collection", "product", "version"))
    if request.headers.get("content-type", "").startswith("multipart/"):
        raise BadHttp("the body is a form; send the document's bytes alone, as curl --data-binary does", 415)
    names = {name: _name(name, value) for name, value in request.query.items()}
    if not names.get("path", "").strip():
        raise BadRequest("path is missing: it says what the document is called", param="path")
    if len(request.body) > context.rag.max_document:
        raise BadRequest(f"the document has {len(request.body)} bytes; rag.max_document allows "
                         f"{context.rag.max_document}")
    ingesting = Ingesting(context, names.pop("path"), request.body, names)
    try:
        stage = await ingesting.next()
        if stage is None:
            await ingesting.done()  # what fails before anything was said has a status
    except BaseException:
        ingesting.cancel()
        raise
    return Reply(200, parts=_ingest_events(ingesting, stage), headers=SSE_HEADERS, cancel=ingesting.cancel)


ROUTES = (
    Route("POST", "/v1/search", search),
    Route("POST", "/v1/ask", ask),
    Route("GET", "/v1/documents", documents),
    Route("POST", "/v1/documents", ingest),
    Route("DELETE", "/v1/documents/*", remove),
)


def _answer(asking: Asking) -> Object:
    return {
        **asking.told(),
        **({"usage": usage_of(asking.usage)} if asking.usage else {}),
        **({"ended_by": "deadline"} if asking.late else {}),
    }


async def _answer_events(asking: Asking) -> AsyncIterator[bytes]:
    from edged.rag.reply import passage_of

    yield event({"passages": [passage_of(passage) for passage in asking.passages]})
    try:
        async for text in asking.pieces():
            yield event({"delta": text})
    except EdgedError as error:
        yield event(body_of(error))
        return
    yield event({"answer": _answer(asking)}) + DONE


async def _ingest_events(ingesting: Ingesting, stage: Object | None) -> AsyncIterator[bytes]:
    try:
        while stage is not None:
            yield event(stage)
            stage = await ingesting.next()
        done = await ingesting.done()
    except EdgedError as error:
        yield event(body_of(error))
        return
    yield event({"document": done}) + DONE


def _name(field: str, value: str) -> str:
    if len(value) > MAX_NAME:
        raise BadRequest(f"{field} has {len(value)} characters; at most {MAX_NAME} are kept", param=field)
    for character in value:
        if unicodedata.category(character) in ("Cc", "Cs"):
            raise BadRequest(f"{field} holds U+{ord(character):04X}, which no name may", param=field)
    return value
