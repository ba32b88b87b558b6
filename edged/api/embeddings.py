"""POST /v1/embeddings in OpenAI's shape: texts, or token ids, to vectors of length 1.

No text is cut and none is left out: one that has no vector refuses the call, by its index. Token ids are taken as they
are, without what the model puts around a text. The vectors of a call come together. A call of more than FEW texts gives
way to all other work, as an ingest does; one of fewer waits only for such calls before it.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import numpy as np

from edged.api.context import Context, LoadedEmbedder, Reply
from edged.api.fields import Fields, refuse, strings, token_ids, wrong_type
from edged.api.json_body import dumps
from edged.api.routes import Route, read_body
from edged.engine.request import Failed, Handle, Vectors
from edged.errors import BadRequest, ContextFull
from edged.protocol.http import HttpRequest

MAX_INPUTS = 2048

FEW = 16
"""Texts of a call that somebody waits for."""

SLICE = 32 * 1024
"""Characters, token ids or floats that are worked on at once beside the event loop; then others have their turn."""

SMALL = 4096
"""Floats that are written on the event loop."""

UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "truncate": (False, "NONE"),
    "truncate_prompt_tokens": (),
    "normalize": (True,),
    "embd_normalize": (2,),
    "input_type": (),
    "task": (),
    "prompt_name": (),
}
"""Fields of other servers, refused unless they have one of these values, with which they ask for nothing."""

Text = tuple[str, str | tuple[int, ...]]
"""What is embedded, after its name in the request: `input`, or `input[3]`."""

T = TypeVar("T")


async def embeddings(request: HttpRequest, context: Context) -> Reply:
    """POST /v1/embeddings {"input", "encoding_format": "float" | "base64", "dimensions"}."""
    model = context.embedder()
    fields = Fields(await read_body(request, context))
    fields.text("model")  # any name means the loaded model
    refuse(fields, UNSUPPORTED)
    _check_dimensions(fields, model)
    write = WRITERS[fields.choice("encoding_format", "float", tuple(WRITERS))]
    texts = await context.aside(_read_input, fields.get("input"), model)
    ids: list[Sequence[int]] = []
    for some in _slices(texts, lambda text: len(text[1])):
        ids += await context.aside(_encode, some, model)
    vectors = await _vectors(ids, model, context)
    usage = sum(map(len, ids))
    head, tail = b'{"object":"list","data":[', b'],"model":%b,"usage":{"prompt_tokens":%d,"total_tokens":%d}}'
    body = head + await _items(vectors, write, context) + tail % (dumps(model.name), usage, usage)
    return Reply(200, body, headers=[("Content-Type", "application/json")])


ROUTES = (Route("POST", "/v1/embeddings", embeddings),)


def _check_dimensions(fields: Fields, model: LoadedEmbedder) -> None:
    dim = model.engine.info.dim
    asked = fields.integer("dimensions", dim, 1, 2**31 - 1)
    if asked != dim:
        raise BadRequest(f"dimensions is {asked}; the vectors of {model.name} have {dim}", param="dimensions",
                         code="unsupported_parameter", hint="it is refused because a part of a vector means something "
                         "else")  # fmt: skip


def _read_input(given: Any, model: LoadedEmbedder) -> list[Text]:
    """`input`: a string, a list of strings, a list of token ids, or a list of such lists. Raises BadRequest."""
    if isinstance(given, str):
        texts: list[Text] = [("input", given)]
    elif not isinstance(given, list):
        raise wrong_type("input", "a string, a list of strings or a list of token ids", given)
    elif not given:
        raise BadRequest("input is empty; a list must hold at least one string or token id", param="input")
    elif type(given[0]) is int:
        texts = [("input", token_ids(given, "input", model.engine.info.n_vocab))]
    elif len(given) > MAX_INPUTS:
        raise BadRequest(f"input has {len(given)} texts; at most {MAX_INPUTS} are embedded in one call", param="input")
    elif isinstance(given[0], list):
        n_vocab = model.engine.info.n_vocab
        texts = [(f"input[{i}]", token_ids(ids, f"input[{i}]", n_vocab)) for i, ids in enumerate(given)]
    else:
        texts = [(f"input[{i}]", text) for i, text in enumerate(strings(given, "input"))]
    for name, text in texts:
        if not text:
            raise BadRequest(f"{name} is empty; what has no tokens has no vector", param=name)
        if isinstance(text, str):
            model.check_text(text, param=name)
    return texts


def _encode(texts: Iterable[Text], model: LoadedEmbedder) -> list[Sequence[int]]:
    """The token ids of texts. Raises ContextFull for one that is too long."""
    found: list[Sequence[int]] = []
    for name, text in texts:
        ids = model.encode(text) if isinstance(text, str) else text
        if not ids:
            raise BadRequest(f"{name} has no tokens, and so no vector", param=name)
        if len(ids) > model.engine.info.n_ctx:
            raise ContextFull(f"{name} has {len(ids)} tokens; {model.name} takes at most {model.engine.info.n_ctx}",
                              param=name, hint="split the text")
        found.append(ids)
    return found


async def _vectors(ids: list[Sequence[int]], model: LoadedEmbedder, context: Context) -> np.ndarray:
    """f32 (texts, dim). Raises Busy, NotReady, ModelFault, ModelChanged. Whoever stops waiting cancels the work."""
    loop = asyncio.get_running_loop()
    made: asyncio.Future[Vectors | Failed] = loop.create_future()
    handles: list[Handle] = []

    def sink(event: Vectors | Failed) -> None:  # in the engine's thread
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(_settle, made, event)

    def submit() -> None:  # beside the loop, because it looks at every token
        handles.append(model.engine.submit(ids, sink, background=len(ids) > FEW))
        if made.cancelled():
            handles[0].cancel()

    try:
        await context.aside(submit)
        event = await made
    except asyncio.CancelledError:
        made.cancel()
        for handle in handles:
            handle.cancel()
        raise
    model.check()  # rather no answer than one from weights that were overwritten
    if isinstance(event, Failed):
        raise event.error
    return event.vectors


def _settle(made: asyncio.Future[Vectors | Failed], event: Vectors | Failed) -> None:
    if not made.done():
        made.set_result(event)


async def _items(vectors: np.ndarray, write: Callable[[np.ndarray], bytes], context: Context) -> bytes:
    """The elements of `data`, in JSON."""
    def items(rows: list[int]) -> bytes:
        return b",".join(b'{"object":"embedding","index":%d,"embedding":%b}' % (i, write(vectors[i])) for i in rows)

    everything = range(len(vectors))
    if vectors.size <= SMALL:
        return items(list(everything))
    return b",".join([await context.aside(items, rows) for rows in _slices(everything, lambda _: vectors.shape[1])])


def _as_float(vector: np.ndarray) -> bytes:
    """Each number in the fewest digits that give the same f32 back."""
    return b"[" + ",".join(vector.astype(str).tolist()).encode() + b"]"


def _as_base64(vector: np.ndarray) -> bytes:
    """A string of little-endian f32."""
    return b'"' + base64.b64encode(vector.astype("<f4").tobytes()) + b'"'


WRITERS: dict[str, Callable[[np.ndarray], bytes]] = {"float": _as_float, "base64": _as_base64}


def _slices(things: Iterable[T], size: Callable[[T], int]) -> Iterator[list[T]]:
    """Things in lists that reach SLICE with their last."""
    some: list[T] = []
    total = 0
    for thing in things:
        some.append(thing)
        total += size(thing)
        if total >= SLICE:
            yield some
            some, total = [], 0
    if some:
        yield some
