"""edged's own routes: /tokenize, /detokenize, /health, /metrics."""

from __future__ import annotations

from contextlib import suppress

from edged.api.context import Context, LoadedEmbedder, Reply
from edged.api.fields import Fields, token_ids
from edged.api.routes import Route, json_reply, read_body
from edged.errors import BadRequest, NotReady
from edged.protocol.http import HttpRequest


async def tokenize(request: HttpRequest, context: Context) -> Reply:
    """POST /tokenize {"content", "add_special": false, "parse_special": true} -> {"tokens": [...]}.

    add_special: begin and end tokens as the model asks. parse_special: control tokens written in the text become
    control tokens; false encodes them as the characters they are. The tokens are those of the model that answers, or of
    the embedding model where that is the only one.
    """
    model = context.loaded()[0]
    tokenizer = model.tokenizer
    fields = Fields(await read_body(request, context))
    if not fields.present("content"):
        raise BadRequest("content is missing", param="content")
    text = fields.text("content")
    model.check_text(text)
    add_special, parse_special = fields.flag("add_special"), fields.flag("parse_special", True)
    tokens = await context.aside(lambda: tokenizer.encode(text, special=parse_special, add_special=add_special))
    return json_reply({"tokens": [int(token) for token in tokens]})


async def detokenize(request: HttpRequest, context: Context) -> Reply:
    """POST /detokenize {"tokens"} -> {"content"}. Control tokens are written out.

    Bytes that are no UTF-8 become U+FFFD.
    """
    model = context.loaded()[0]
    fields = Fields(await read_body(request, context))
    tokens = token_ids(fields.get("tokens"), "tokens", model.tokenizer.n_vocab)
    return json_reply({"content": await context.aside(lambda: model.tokenizer.decode(tokens, special=True))})


async def health(request: HttpRequest, context: Context) -> Reply:
    """GET /health: 200 only when requests are answered; otherwise 503 with the reasons."""
    found = context.health()
    body = {"status": found.status, "reasons": list(found.reasons), "warnings": list(found.warnings)}
    return json_reply(body, 200 if found.ready else 503, [] if found.ready else [("Retry-After", "1")])


async def metrics(request: HttpRequest, context: Context) -> Reply:
    """GET /metrics in Prometheus' text format 0.0.4: edged_*, edged_http_*, and edged_embedding_* of that model."""
    figures = {f"edged_http_{name}": value for name, value in context.counters().items()}
    with suppress(NotReady):
        for model in context.loaded():
            prefix = "edged_embedding_" if isinstance(model, LoadedEmbedder) else "edged_"
            figures |= {prefix + name: value for name, value in model.engine.stats().items()}
    figures |= {f"edged_{name}": value for name, value in context.machine().items()}
    figures["edged_ready"] = float(context.health().ready)
    kinds = {name: "counter" if name.endswith("_total") else "gauge" for name in figures}
    text = "".join(f"# TYPE {name} {kinds[name]}\n{name} {figures[name]:.12g}\n" for name in sorted(figures))
    return Reply(200, text.encode(), headers=[("Content-Type", "text/plain; version=0.0.4; charset=utf-8")])


ROUTES = (
    Route("POST", "/tokenize", tokenize),
    Route("POST", "/detokenize", detokenize),
    Route("GET", "/health", health),
    Route("GET", "/metrics", metrics),
)
