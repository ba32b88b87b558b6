"""A client of a running daemon: HTTP over its Unix socket, by the standard library.

Raises NotReady where nobody listens, EdgedError with the daemon's code and message where it refuses, and EdgedError
where the connection ends too early.
"""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import urlencode

from edged.errors import BadRequest, Busy, EdgedError, NotReady

JSON = {"Content-Type": "application/json"}


class UnixConnection(http.client.HTTPConnection):
    """HTTP/1.1 over a Unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost")
        self.path = path

    def connect(self) -> None:
        """Raises NotReady if nobody listens."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self.sock.connect(self.path)
        except OSError as e:
            self.sock.close()
            raise NotReady(f"no daemon answers on {self.path}: {e.strerror or e}",
                           hint="start one with `edged serve --socket PATH`") from e  # fmt: skip


def answers(path: str) -> bool:
    """Whether somebody listens on the socket. Raises EdgedError if this user may not ask."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as tried:
        try:
            tried.connect(path)
        except PermissionError as e:
            raise EdgedError(f"{path}: {e.strerror}",
                             hint="join the group that owns the socket, or name another with --socket") from e
        except OSError:
            return False
    return True


def fetch(path: str, method: str, target: str, query: dict[str, str] | None = None, body: Any = None) -> Any:
    """The JSON that answers one request; `body` is sent as JSON."""
    data = None if body is None else json.dumps(body).encode()
    with _asked(path, method, target, query, data, JSON) as response:
        answer = response.read()
        try:
            return json.loads(answer)
        except ValueError as e:
            raise EdgedError(f"the daemon answered {answer[:200]!r}") from e


def events(path: str, target: str, query: dict[str, str] | None, body: bytes,
           headers: dict[str, str]) -> Iterator[dict[str, Any]]:
    """The events that answer a POST, as they come, up to [DONE]."""
    with _asked(path, "POST", target, query, body, headers) as response:
        for line in response:
            data = line.strip().removeprefix(b"data: ")
            if data == b"[DONE]":
                return
            if not line.startswith(b"data: "):
                continue
            event = json.loads(data)
            if "error" in event:
                raise _error(data)
            yield event
    raise EdgedError(f"{path}: the daemon closed the connection in the middle of the answer")


def chat(path: str, messages: list[dict[str, str]], **options: Any) -> Iterator[str]:
    """The pieces of the answer as they come."""
    body = {"model": "default", "messages": messages, "stream": True, **options}
    for event in events(path, "/v1/chat/completions", None, json.dumps(body).encode(), JSON):
        for choice in event["choices"]:
            yield choice["delta"].get("content") or ""


@contextmanager
def _asked(path: str, method: str, target: str, query: dict[str, str] | None, body: bytes | None,
           headers: dict[str, str]) -> Iterator[http.client.HTTPResponse]:
    """The answer to a request, its head read and good."""
    connection = UnixConnection(path)
    try:
        if query:
            target = f"{target}?{urlencode(query)}"
        # a daemon that refuses a large body answers without reading all of it
        with suppress(BrokenPipeError, ConnectionResetError):
            connection.request(method, target, body, headers)
        response = connection.getresponse()
        if response.status >= 300:
            raise _error(response.read(), response.getheader("Retry-After"))
        yield response
    except UnicodeEncodeError as e:
        raise BadRequest(f"{e.object!r} is not valid Unicode") from e
    except (OSError, http.client.HTTPException) as e:
        raise EdgedError(f"{path}: {str(e) or type(e).__name__}") from e
    finally:
        connection.close()


def _error(body: bytes, retry_after: str | None = None) -> EdgedError:
    """The daemon's error, from its OpenAI-shaped body and, where it is only busy, the seconds it asks for."""
    try:
        error = json.loads(body)["error"]
        if error.get("code") == Busy.code:
            return Busy(error["message"], retry_after=int(retry_after or 1))
        return EdgedError(error["message"], code=error.get("code") or EdgedError.code)
    except (ValueError, KeyError, TypeError):
        return EdgedError(f"the daemon answered {body[:200]!r}")
