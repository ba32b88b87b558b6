"""A client of a running daemon: HTTP over its Unix socket, by the standard library."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Iterator
from typing import Any

from edged.errors import EdgedError, NotReady


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


def chat(path: str, messages: list[dict[str, str]], **options: Any) -> Iterator[str]:
    """The pieces of the answer as they come. Raises NotReady, or EdgedError with the daemon's message."""
    body = {"model": "default", "messages": messages, "stream": True, **options}
    connection = UnixConnection(path)
    try:
        connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        if response.status != 200:
            raise _error(response.read())
        for line in response:
            data = line.strip().removeprefix(b"data: ")
            if data == b"[DONE]":
                return
            if not line.startswith(b"data: "):
                continue
            event = json.loads(data)
            if "error" in event:
                raise _error(data)
            for choice in event["choices"]:
                yield choice["delta"].get("content") or ""
        raise EdgedError(f"{path}: the daemon closed the connection in the middle of the answer")
    except (OSError, http.client.HTTPException) as e:
        raise EdgedError(f"{path}: {str(e) or type(e).__name__}") from e
    finally:
        connection.close()


def _error(body: bytes) -> EdgedError:
    """The daemon's error, from its OpenAI-shaped body."""
    try:
        error = json.loads(body)["error"]
        return EdgedError(error["message"], code=error.get("code") or EdgedError.code)
    except (ValueError, KeyError, TypeError):
        return EdgedError(f"the daemon answered {body[:200]!r}")
