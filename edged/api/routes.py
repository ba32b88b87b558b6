"""What a route is, and what routes share. A route group is one file with ROUTES and one row in GROUPS (router.py)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from edged.api.context import Context, Reply
from edged.api.json_body import dumps, loads
from edged.protocol.http import HttpRequest

LARGE_BODY = 64 * 1024
"""Bodies above this are parsed beside the event loop."""

Handler = Callable[[HttpRequest, Context], Awaitable[Reply]]


@dataclass(frozen=True)
class Route:
    """One method on one path; a path that ends with /* stands for all below it."""

    method: str
    path: str
    handler: Handler

    def matches(self, path: str) -> bool:
        if self.path.endswith("/*"):
            return path.startswith(self.path[:-1]) and len(path) >= len(self.path)
        return path == self.path


async def read_body(request: HttpRequest, context: Context) -> dict[str, Any]:
    """The JSON object in the body. Raises BadRequest."""
    if len(request.body) > LARGE_BODY:
        return await context.aside(loads, request.body)
    return loads(request.body)


def json_reply(value: Any, status: int = 200, headers: list[tuple[str, str]] | None = None) -> Reply:
    """A whole answer in JSON."""
    return Reply(status, dumps(value), headers=[("Content-Type", "application/json"), *(headers or [])])
