"""From a request to the route that answers it, and from any error to an answer."""

from __future__ import annotations

import logging

from edged.api import embeddings, native, openai, rag
from edged.api.context import Context, Reply
from edged.api.errors import NotAllowed, body_of, headers_of, status_of
from edged.api.routes import Route, json_reply
from edged.errors import EdgedError, NotFound
from edged.protocol.http import HttpRequest

GROUPS: tuple[tuple[Route, ...], ...] = (openai.ROUTES, embeddings.ROUTES, rag.ROUTES, native.ROUTES)

log = logging.getLogger(__name__)


async def answer(request: HttpRequest, context: Context) -> Reply:
    """The reply to a request; never raises anything but CancelledError."""
    try:
        return await _dispatch(request, context)
    except EdgedError as error:
        return error_reply(error)
    except Exception:
        log.exception("%s %s failed", request.method, request.path)
        return error_reply(EdgedError("an unexpected error, described in the daemon's log"))


def error_reply(error: EdgedError) -> Reply:
    """An error as an answer."""
    return json_reply(body_of(error), status_of(error), headers_of(error))


async def _dispatch(request: HttpRequest, context: Context) -> Reply:
    routes = {route.method: route for group in GROUPS for route in group if route.matches(request.path)}
    method = "GET" if request.method == "HEAD" else request.method
    if method in routes:
        return await routes[method].handler(request, context)
    if not routes and not (method == "OPTIONS" and request.path == "*"):
        raise NotFound(f"there is no {request.path[:200]!a}")
    allow = ", ".join(sorted({*routes, "OPTIONS", *(["HEAD"] if "GET" in routes else [])}))
    if method == "OPTIONS":
        return Reply(204, headers=[("Allow", allow)])
    raise NotAllowed(f"{request.path} takes {allow}, not {method[:20]!a}", allow)
