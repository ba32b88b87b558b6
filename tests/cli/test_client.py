"""The client of a daemon: against a real daemon with a scripted engine, and against odd servers."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from edged.cli import client, main
from edged.errors import BadRequest, EdgedError, NotReady
from tests.cli.test_generate import stdin
from tests.service.running import Running
from tests.stub_engine import StubEngine


@contextmanager
def answering(path: Path, reply: bytes, end: bytes = b"}]") -> Iterator[list[bytes]]:
    """A server that reads one request, up to `end`, and answers with these bytes; what it has read."""
    heard: list[bytes] = []
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            data = b""
            while end not in data:
                data += connection.recv(65536)
            heard.append(data)
            connection.sendall(reply)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield heard
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


def test_a_request_with_a_query(tmp_path: Path) -> None:
    reply = b'HTTP/1.1 200 OK\r\nContent-Length: 12\r\n\r\n{"data": []}'
    with answering(tmp_path / "s", reply, b"\r\n\r\n") as heard:
        query = {"collection": "Grüße & mehr"}
        assert client.fetch(str(tmp_path / "s"), "GET", "/v1/documents", query) == {"data": []}
    assert heard[0].startswith(b"GET /v1/documents?collection=Gr%C3%BC%C3%9Fe+%26+mehr HTTP/1.1\r\n")
    with answering(tmp_path / "t", reply, b'{"query": 1}') as heard:
        assert client.fetch(str(tmp_path / "t"), "POST", "/v1/search", body={"query": 1}) == {"data": []}
    assert b"Content-Type: application/json" in heard[0]
    with pytest.raises(BadRequest, match="is not valid Unicode"):
        client.fetch(str(tmp_path / "s"), "GET", "/v1/documents", {"collection": "\udcff"})


def test_an_answer_that_is_no_json(tmp_path: Path) -> None:
    reply = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\noops"
    with answering(tmp_path / "s", reply, b"\r\n\r\n"), pytest.raises(EdgedError, match="answered b'oops'"):
        client.fetch(str(tmp_path / "s"), "GET", "/v1/models")


def test_the_reason_is_heard_though_the_body_is_not_taken(tmp_path: Path) -> None:
    body = b'{"error": {"message": "larger than 9 bytes", "code": "bad_http"}}'
    reply = b"HTTP/1.1 413 Large\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
    with answering(tmp_path / "s", reply, b"\r\n\r\n"), pytest.raises(EdgedError, match="larger than 9") as caught:
        list(client.events(str(tmp_path / "s"), "/v1/documents", {"path": "a"}, bytes(1 << 24), {}))
    assert caught.value.code == "bad_http"


def test_who_answers(tmp_path: Path) -> None:
    assert not client.answers(str(tmp_path / "s")), "nothing there"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        assert not client.answers(str(tmp_path / "s")), "left behind by a daemon that was killed"
        listener.listen()
        assert client.answers(str(tmp_path / "s"))
    assert not client.answers("x" * 200), "no path of a socket is as long"


def test_a_socket_that_is_not_for_this_user_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: socket.socket, path: str) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    with pytest.raises(EdgedError, match="Permission denied") as caught:
        client.answers("/run/edged/edged.sock")
    assert "join the group" in caught.value.hint


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
