"""`edged chat --socket`: the client against a real daemon with a scripted engine, and against odd servers."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from edged.cli import client, main
from edged.errors import EdgedError, NotReady
from tests.cli.test_generate import stdin
from tests.service.running import Running
from tests.stub_engine import StubEngine


@contextmanager
def answering(path: Path, reply: bytes) -> Iterator[None]:
    """A server that reads one request and answers with these bytes."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            data = b""
            while b"}]" not in data:
                data += connection.recv(65536)
            connection.sendall(reply)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield
    finally:
        thread.join()
        listener.close()


def say(path: Path, text: str = "hi") -> list[str]:
    return list(client.chat(str(path), [{"role": "user", "content": text}]))


OK = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"


def test_pieces_comments_and_end(tmp_path: Path) -> None:
    events = b'data: {"choices":[{"delta":{"role":"assistant"}}]}\n\n: keep-alive\n\n'
    events += 'data: {"choices":[{"delta":{"content":"Grüße"}}]}\n\ndata: {"choices":[]}\n\ndata: [DONE]\n\n'.encode()
    with answering(tmp_path / "s", OK + events):
        assert say(tmp_path / "s") == ["", "Grüße"]


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (b'HTTP/1.1 400 Bad\r\nContent-Length: 34\r\n\r\n{"error": {"message": "too long"}}', "too long"),
        (b"HTTP/1.1 502 Bad\r\nContent-Length: 4\r\n\r\noops", "oops"),
        (OK + b'data: {"error": {"message": "NaN logits"}}\n\n', "NaN logits"),
        (OK + b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n', "in the middle"),
        (b"nonsense\r\n\r\n", "nonsense"),
        (b"", "closed connection"),
    ],
    ids=["error", "no json", "error in stream", "cut", "no http", "nothing"],
)
def test_errors(tmp_path: Path, reply: bytes, message: str) -> None:
    with answering(tmp_path / "s", reply), pytest.raises(EdgedError, match=message):
        say(tmp_path / "s")


def test_conversation_with_a_daemon(monkeypatch: pytest.MonkeyPatch,
                                    capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    with Running(StubEngine()) as daemon, stdin(monkeypatch, "one\ntwo\n"):
        assert main.run(["chat", "--socket", daemon.path, "-n", "5", "-t", "0.5", "--seed", "3"]) == 0
        first, second = daemon.engine.requests
    assert capsysbinary.readouterr().out == b"Hi\nHi\n"
    assert b"one" in bytes(t for t in second.prompt if t < 256)
    assert (first.max_tokens, first.sampling.temperature, first.sampling.seed) == (5, 0.5, 3)


def test_refusal_of_a_daemon_is_shown(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with Running(StubEngine(n_ctx=32)) as daemon, stdin(monkeypatch, "x" * 32 + "\n"):
        assert main.run(["chat", "--socket", daemon.path]) == 1
    assert "the context holds 32" in capsys.readouterr().err


def test_nobody_listens(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NotReady, match=r"no daemon answers on .*/s: No such file"):
        say(tmp_path / "s")
    with stdin(monkeypatch, "hello\n"):
        assert main.run(["chat", "--socket", str(tmp_path / "s")]) == 1
    assert "hint: start one with `edged serve" in capsys.readouterr().err
