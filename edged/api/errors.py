"""Named errors as HTTP: one table gives the status, one function the OpenAI-shaped body.

    {"error": {"message": ..., "type": ..., "param": ..., "code": ...}}
"""

from __future__ import annotations

from typing import Any

from edged.errors import (
    BadRequest,
    BadStore,
    BadTemplate,
    Busy,
    ContextFull,
    DiskFull,
    EdgedError,
    ModelChanged,
    ModelFault,
    NotFound,
    NotReady,
    OtherStore,
)


class TooLate(EdgedError):
    """The deadline of a request is over, and nothing has come that could be its answer."""

    code = "deadline"


STATUS: tuple[tuple[type[EdgedError], int], ...] = (
    (ContextFull, 400),
    (BadRequest, 400),
    (BadTemplate, 400),
    (NotFound, 404),
    (OtherStore, 409),
    (ModelFault, 500),
    (ModelChanged, 503),
    (NotReady, 503),
    (Busy, 503),
    (BadStore, 500),
    (DiskFull, 507),
    (TooLate, 504),
    (EdgedError, 500),
)
"""The first class that fits decides."""


class NotAllowed(EdgedError):
    """The path exists, the method does not. `allow` lists those that do."""

    code = "method_not_allowed"

    def __init__(self, message: str, allow: str) -> None:
        super().__init__(message)
        self.allow = allow


class BadHttp(EdgedError):
    """What came is not an HTTP request that can be answered otherwise; carries its own status."""

    code = "bad_http"

    def __init__(self, message: str, status: int, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.param = param


def status_of(error: EdgedError) -> int:
    """HTTP status of an error."""
    if isinstance(error, BadHttp):
        return error.status
    if isinstance(error, NotAllowed):
        return 405
    return next(status for kind, status in STATUS if isinstance(error, kind))


def headers_of(error: EdgedError) -> list[tuple[str, str]]:
    """Headers that belong to an error: Retry-After with every 503, Allow with 405."""
    if isinstance(error, NotAllowed):
        return [("Allow", error.allow)]
    if status_of(error) == 503:
        return [("Retry-After", str(getattr(error, "retry_after", 1)))]
    return []


def body_of(error: EdgedError) -> dict[str, Any]:
    """The error as clients of OpenAI's API expect it."""
    status = status_of(error)
    kind = "invalid_request_error" if status < 500 else "server_error"
    return {
        "error": {"message": str(error), "type": kind, "param": getattr(error, "param", None), "code": error.code}
    }
