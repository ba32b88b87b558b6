"""The routes of OpenAI's API: /v1/chat/completions, /v1/completions, /v1/models.

Streams are server-sent events: for chat the role first, then text as it comes, then the finish reason of each choice,
then the usage if `stream_options.include_usage` asks for it, then `[DONE]`. The status line waits for the first token,
so a request that cannot be computed has a proper status. One that fails later ends with an event
`{"error": {...}}` and no `[DONE]`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from edged.api import openai_manuals
from edged.api.context import Context, LoadedEmbedder, LoadedModel, Reply
from edged.api.errors import body_of
from edged.api.fields import Fields
from edged.api.generation import Generation, Piece
from edged.api.openai_replies import ChatFormat, CompletionFormat, Format, Object
from edged.api.openai_requests import (
    Options,
    check_size,
    read_chat_logprobs,
    read_completion_logprobs,
    read_messages,
    read_options,
    read_prompts,
)
from edged.api.routes import Route, json_reply, read_body
from edged.api.sse import DONE, SSE_HEADERS, event
from edged.errors import EdgedError, NotFound
from edged.protocol.http import HttpRequest


async def chat_completions(request: HttpRequest, context: Context) -> Reply:
    """POST /v1/chat/completions. With the field `edged` manuals answer."""
    fields = Fields(await read_body(request, context))
    if fields.present("edged"):
        return await openai_manuals.answer(fields, context)
    model = context.model()
    options = read_options(fields, context.limits, model.tokenizer.n_vocab)
    top_logprobs = read_chat_logprobs(fields)
    messages = read_messages(fields)
    model.check_text(*(message["content"] for message in messages))
    prompt = tuple(await context.aside(model.chat.render, messages))
    check_size([prompt], options.n, context.limits)
    requests = options.requests([prompt], frozenset(model.tokenizer.eog_ids), top_logprobs)
    generation = Generation(model, requests, options.stops, options.n, options.deadline)
    return await _answer(generation, ChatFormat(model, top_logprobs is not None), options)


async def completions(request: HttpRequest, context: Context) -> Reply:
    """POST /v1/completions. A prompt given as text is taken as written: control tokens in it are control tokens.

    `echo` with `logprobs` scores the prompt; with `max_tokens` 0 nothing else is computed.
    """
    model = context.model()
    fields = Fields(await read_body(request, context))
    options = read_options(fields, context.limits, model.tokenizer.n_vocab)
    top_logprobs = read_completion_logprobs(fields)
    echo = fields.flag("echo")
    given = await context.aside(read_prompts, fields, model.tokenizer.n_vocab)  # millions of ids take a while
    for prompt in given:
        if isinstance(prompt, str):
            model.check_text(prompt)
    prompts = [tuple(await context.aside(_encode, model, prompt)) if isinstance(prompt, str) else prompt
               for prompt in given]
    check_size(prompts, options.n, context.limits)
    score_prompt = echo and top_logprobs is not None
    requests = options.requests(prompts, frozenset(model.tokenizer.eog_ids), top_logprobs, score_prompt)
    echoes = [_shown(model, prompt) if echo else "" for prompt in given for _ in range(options.n)]
    generation = Generation(model, requests, options.stops, options.n, options.deadline)
    return await _answer(generation, CompletionFormat(model, top_logprobs is not None, echoes), options)


async def models(request: HttpRequest, context: Context) -> Reply:
    """GET /v1/models."""
    return json_reply({"object": "list", "data": [_describe(model) for model in context.loaded()]})


async def one_model(request: HttpRequest, context: Context) -> Reply:
    """GET /v1/models/{name}; "default" is the one that answers, or else the embedding model."""
    loaded = context.loaded()
    name = request.path.removeprefix("/v1/models/")
    for model in loaded:
        if name in (model.name, "default"):
            return json_reply(_describe(model))
    names = ", ".join(ascii(model.name) for model in loaded)
    raise NotFound(f"there is no model {name!a}; loaded: {names}", code="model_not_found")


ROUTES = (
    Route("POST", "/v1/chat/completions", chat_completions),
    Route("POST", "/v1/completions", completions),
    Route("GET", "/v1/models", models),
    Route("GET", "/v1/models/*", one_model),
)


async def _answer(generation: Generation, form: Format, options: Options) -> Reply:
    try:
        if not options.stream:
            pieces = await generation.all()
            return json_reply(form.answer(pieces, generation.choices, generation.usage()))
        first = await generation.next()
    except BaseException:  # also when the client leaves: its task is cancelled
        generation.cancel()
        raise
    events = _events(generation, form, first, options.include_usage)
    return Reply(200, parts=events, headers=SSE_HEADERS, cancel=generation.cancel)


async def _events(generation: Generation, form: Format, pieces: list[Piece], usage: bool) -> AsyncIterator[bytes]:
    """The stream of one call; every batch of pieces is one write."""
    started: set[int] = set()
    try:
        while pieces:
            parts: list[Object] = []
            for piece in pieces:
                if piece.index not in started:
                    started.add(piece.index)
                    parts += form.first_parts(generation.choices[piece.index])
                parts += form.parts(piece)
            yield b"".join(event(form.chunks([part], usage)) for part in parts)
            pieces = await generation.next()
    except EdgedError as error:
        yield event(body_of(error))
        return
    yield (event(form.last(generation.usage())) if usage else b"") + DONE


def _encode(model: LoadedModel, text: str) -> list[int]:
    return model.tokenizer.encode(text, special=True, add_special=True)


def _shown(model: LoadedModel, prompt: str | tuple[int, ...]) -> str:
    return prompt if isinstance(prompt, str) else model.tokenizer.decode(prompt, special=True)


def _describe(model: LoadedModel | LoadedEmbedder) -> Object:
    found: Object = {"id": model.name, "object": "model", "created": model.created, "owned_by": "edged"}
    size: Object = {"n_ctx": model.engine.info.n_ctx, "n_vocab": model.engine.info.n_vocab}
    if isinstance(model, LoadedEmbedder):
        own: Object = {"n_embd": model.engine.info.dim, "pooling": model.engine.info.pooling}
        kind = {"kind": "embed", "fingerprint": model.fingerprint}
    else:
        own, kind = {"n_seqs": model.engine.info.n_seqs}, {"kind": "generate"}
    return {**found, "meta": {**size, **own}, "edged": kind}
