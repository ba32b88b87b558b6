"""Server-sent events, as OpenAI's API has them: one line of JSON each, then `[DONE]` if all went well."""

from __future__ import annotations

from typing import Any

from edged.api.json_body import dumps

SSE_HEADERS = [("Content-Type", "text/event-stream; charset=utf-8"), ("Cache-Control", "no-cache")]
DONE = b"data: [DONE]\n\n"


def event(value: Any) -> bytes:
    """One event."""
    return b"data: " + dumps(value) + b"\n\n"
