"""HTTP over the socket: pipelining, limits, slow and vanishing clients, many at once."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from tests.service.running import Running, parse_events, request_bytes, until
from tests.stub_engine import EOS, StubEngine, endless

COMPLETIONS = "/v1/completions"
GET_HEALTH = b"GET /health HTTP/1.1\r\nHost: e\r\n\r\n"
FOREVER = {"prompt": "x", "max_tokens": 100_000}


@pytest.fixture
def daemon() -> Iterator[Running]:
    with Running() as running:
        yield running


def read_until(client: socket.socket, end: bytes) -> bytes:
    data = b""
    while end not in data:
        piece = client.recv(65536)
        assert piece, data
        data += piece
    return data


def read_all(client: socket.socket) -> bytes:
    data = b""
    while piece := client.recv(65536):
        data += piece
    return data


def status_of(reply: bytes) -> int:
    return int(reply.split(b" ", 2)[1])


@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_pieces(daemon: Running, size: int) -> None:
    """A request that comes in pieces is answered like a whole one."""
    data = request_bytes(COMPLETIONS, {"prompt": "x"})
    with daemon.connect() as client:
        for start in range(0, len(data), size):
            client.sendall(data[start : start + size])
        assert b'"text":"Hi"' in read_until(client, b"cached_tokens")


def test_pipelining(daemon: Running) -> None:
    """Answers come in the order of the requests, whatever each takes."""
    one = request_bytes(COMPLETIONS, {"prompt": "x", "stream": True})
    two = request_bytes("/tokenize", {"content": "ab"})
    with daemon.connect() as client:
        client.sendall(one + two + GET_HEALTH + request_bytes("/tokenize", {"content": "end"}, "Connection: close\r\n"))
        data = read_all(client)
    places = [data.index(part) for part in (b"[DONE]", b'{"tokens":[97,98]}', b'{"status":"ok"', b'{"tokens":[101')]
    assert places == sorted(places)
    assert data.count(b"HTTP/1.1 200 OK\r\n") == 4


def test_expect_continue(daemon: Running) -> None:
    body = b'{"content":"ab"}'
    head = f"POST /tokenize HTTP/1.1\r\nHost: e\r\nExpect: 100-continue\r\nContent-Length: {len(body)}\r\n\r\n"
    with daemon.connect() as client:
        client.sendall(head.encode())
        assert read_until(client, b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.sendall(body)
        assert b"[97,98]" in read_until(client, b"}")


def test_body_limit() -> None:
    """413 with the limit, even to a client that sends everything before it reads."""
    with Running(max_body=1000) as running:
        response = running.post("/tokenize", b" " * 5_000_000)
        assert response.status_code == 413
        assert "1000 bytes" in response.json()["error"]["message"]
        assert running.post("/tokenize", {"content": "x" * 900}).status_code == 200


@pytest.mark.parametrize("sent", [b"GET / HT", b"GET / HTTP/1.1\r\n", request_bytes("/tokenize", {})[:-1]])
def test_request_timeout(sent: bytes) -> None:
    with Running(header_timeout=0.05) as running:
        with running.held():
            client = running.connect()
            client.sendall(sent)
        reply = read_all(client)
        client.close()
    assert status_of(reply) == 408
    assert b"0.05 seconds" in reply


def test_silent_connections_are_closed() -> None:
    """Without a word: at first after header_timeout, between requests after idle_timeout."""
    with Running(header_timeout=0.2, idle_timeout=0.05) as running:
        with running.connect() as client:
            assert read_all(client) == b""
        with running.held():
            client = running.connect()
            client.sendall(GET_HEALTH)
        assert status_of(read_all(client)) == 200
        client.close()


def test_too_many_connections() -> None:
    with Running(max_connections=3) as running:
        clients = [running.connect() for _ in range(3)]
        for client in clients:
            client.sendall(GET_HEALTH)
            read_until(client, b"}")
        with running.connect() as one_more:
            reply = read_all(one_more)
        assert status_of(reply) == 503
        assert b"Retry-After: 1\r\n" in reply
        for client in clients:
            client.close()
        until(lambda: running.daemon.counters()["connections"] == 0)
        assert running.get("/health").status_code == 200


def test_any_host_header(daemon: Running) -> None:
    for host in (b"localhost", b"", b"%2Frun%2Fedged.sock", b"a.b:99999"):
        with daemon.connect() as client:
            client.sendall(b"GET /health HTTP/1.1\r\nHost: " + host + b"\r\nConnection: close\r\n\r\n")
            assert status_of(read_all(client)) == 200


def test_half_closed_client_is_answered() -> None:
    """As `socat - UNIX-CONNECT:...` does: it sends, closes its half and waits for the answer."""
    with Running(StubEngine([65] * 50 + [EOS], delay=0.01)) as running, running.connect() as client:
        client.sendall(request_bytes(COMPLETIONS, {"prompt": "x"}))
        client.shutdown(socket.SHUT_WR)
        assert b"A" * 50 in read_all(client)


@pytest.mark.parametrize("stream", [True, False])
def test_g01_client_killed_in_its_answer(stream: bool) -> None:
    """The slot is free at once, and the next client gets it."""
    with Running(StubEngine(endless(65), slots=1, n_ctx=200_000, delay=0.005)) as running:
        client = running.connect()
        client.sendall(request_bytes(COMPLETIONS, {**FOREVER, "stream": stream}))
        if stream:
            read_until(client, b'"text":"A')
        running.engine.wait(lambda stats: stats["tokens_total"] >= 3)
        client.close()
        stats = running.engine.wait(lambda stats: stats["running"] == 0)
        assert stats["cancelled_total"] == 1
        assert running.post(COMPLETIONS, {"prompt": "y", "max_tokens": 1}).status_code == 200


def test_g01_client_that_leaves_with_much_behind_its_request() -> None:
    """More than is read ahead: the end of the connection lies behind bytes that nobody takes."""
    with Running(StubEngine(endless(65), slots=1, n_ctx=200_000, delay=0.005)) as running:
        client = running.connect()
        client.sendall(request_bytes(COMPLETIONS, FOREVER) + b"x" * 400_000)
        running.engine.wait(lambda stats: stats["tokens_total"] >= 3)
        client.close()
        assert running.engine.wait(lambda stats: stats["running"] == 0)["cancelled_total"] == 1


def test_g02_client_that_leaves_the_queue() -> None:
    """B never starts, C is next."""
    with Running(StubEngine(endless(65), slots=1, n_ctx=200_000, delay=0.005)) as running:
        first, second, third = running.connect(), running.connect(), running.connect()
        first.sendall(request_bytes(COMPLETIONS, {**FOREVER, "stream": True}))
        running.engine.wait(lambda stats: stats["running"] == 1)
        second.sendall(request_bytes(COMPLETIONS, {"prompt": "B", "max_tokens": 1}))
        running.engine.wait(lambda stats: stats["waiting"] == 1)
        second.close()
        running.engine.wait(lambda stats: stats["waiting"] == 0)
        third.sendall(request_bytes(COMPLETIONS, {"prompt": "C", "max_tokens": 1}))
        running.engine.wait(lambda stats: stats["waiting"] == 1)
        first.close()
        assert status_of(read_until(third, b"cached_tokens")) == 200
        third.close()
        assert [request.prompt[-1:] for request in running.engine.started] == [(ord("x"),), (ord("C"),)]


def resident() -> int:
    """Bytes of this process in memory."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


def run_in_turns(running: Running) -> None:
    """Let the engine run until it has nothing to do, but not far ahead of the loop: one that computes never is."""
    engine = running.engine
    while engine.stats()["running"]:
        goal = engine.stats()["steps_total"] + 100
        engine.step(100)
        engine.wait(lambda stats: not stats["running"] or stats["steps_total"] >= goal)  # noqa: B023
        running.settle()
    engine.step()


@pytest.mark.parametrize("fields", [{}, {"logprobs": 20}], ids=["text", "logprobs"])
def test_g04_client_that_does_not_read(fields: dict[str, int]) -> None:
    """20 000 tokens for a client with a small buffer that reads none: bounded memory, others are answered, and it is
    dropped in the end.
    """
    with Running(StubEngine(endless(65), n_ctx=30_000), write_timeout=3.0) as running:
        running.post(COMPLETIONS, {"prompt": "x", "max_tokens": 2000, "stream": True, **fields})  # warm
        running.engine.hold()
        client = running.connect()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.sendall(request_bytes(COMPLETIONS, {"prompt": "x", "max_tokens": 20_000, "stream": True, **fields}))
        running.engine.wait(lambda stats: stats["running"] == 1)
        before = resident()
        run_in_turns(running)
        assert resident() - before < 5_000_000
        assert running.post(COMPLETIONS, {"prompt": "y", "max_tokens": 5}).json()["choices"][0]["text"] == "AAAAA"
        until(lambda: running.daemon.counters()["connections"] == 0)
        assert running.daemon.counters()["dropped_total"] == 1
        client.close()


def test_g04_client_that_reads_late_gets_everything() -> None:
    with Running(StubEngine(endless(65), n_ctx=30_000)) as running, running.connect() as client:
        client.sendall(request_bytes(COMPLETIONS, {"prompt": "x", "max_tokens": 20_000, "stream": True},
                                     "Connection: close\r\n"))
        running.engine.wait(lambda stats: stats["tokens_total"] > 20_000)
        data = read_all(client)
    assert data.count(b"A") >= 20_000
    assert b"data: [DONE]\n\n" in data


def test_g04_client_that_reads_far_too_late_is_told() -> None:
    """With 20 alternatives for each token the bound comes first: the generation is cancelled, the stream says why."""
    with Running(StubEngine(endless(65), n_ctx=30_000)) as running, running.connect() as client:
        body = {"prompt": "x", "max_tokens": 20_000, "stream": True, "logprobs": 20}
        client.sendall(request_bytes(COMPLETIONS, body, "Connection: close\r\n"))
        running.engine.wait(lambda stats: stats["cancelled_total"] == 1)
        data = read_all(client)
    assert b'"code":"slow_client"' in data
    assert b"[DONE]" not in data


def test_g05_queue_limit() -> None:
    """One runs, two wait, the others are told at once; /health goes on."""
    with Running(StubEngine(endless(65), slots=1, queue=2, n_ctx=200_000)) as running:
        running.engine.hold()
        clients = []
        for place in range(3):
            clients.append(running.connect())
            clients[-1].sendall(request_bytes(COMPLETIONS, {"prompt": "x", "max_tokens": 1}))
            running.engine.wait(lambda stats, place=place: stats["running"] + stats["waiting"] == place + 1)
        for stream in (False, True, False):
            refused = running.post(COMPLETIONS, {"prompt": "x", "stream": stream})
            assert refused.status_code == 503
            assert refused.headers["retry-after"] == "1"
            assert refused.json()["error"]["code"] == "busy"
            assert running.get("/health").status_code == 200
        running.engine.step()
        for client in clients:
            assert status_of(read_until(client, b"cached_tokens")) == 200
            client.close()


@pytest.mark.parametrize("n_clients", [4, 8])
def test_clients_at_once(n_clients: int) -> None:
    """None is dropped, each gets its own answer."""
    def script(request: object) -> list[int]:
        return [*request.prompt[1:], EOS]  # type: ignore[attr-defined]

    answers: dict[str, list[str]] = {}

    def ask(running: Running, name: str) -> None:
        with running.client() as client:
            for stream in (False, True, False):
                response = client.post(COMPLETIONS, json={"prompt": name, "stream": stream})
                events = parse_events(response.text)[:-1] if stream else [response.json()]
                answers.setdefault(name, []).append("".join(event["choices"][0]["text"] for event in events))

    with Running(StubEngine(script, slots=3)) as running:
        names = [f"client {i} " + "x" * i for i in range(n_clients)]
        threads = [threading.Thread(target=ask, args=(running, name)) for name in names]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert answers == {name: [name] * 3 for name in names}


def test_long_work_does_not_hold_up_health() -> None:
    """A large body is parsed and tokenised beside the loop."""
    with Running() as running:
        started, finish = threading.Event(), threading.Event()
        encode = running.words.encode

        def slow(text: str, **how: bool) -> list[int]:
            started.set()
            assert finish.wait(20)
            return encode(text, **how)

        running.words.encode = slow  # type: ignore[method-assign]
        with running.connect() as client:
            client.sendall(request_bytes("/tokenize", {"content": "x" * 200_000}))
            assert started.wait(20)
            assert running.get("/health").status_code == 200
            finish.set()
            assert status_of(read_until(client, b"]}")) == 200


def test_a_fault_of_the_code_is_a_500_with_a_log_line(daemon: Running, caplog: pytest.LogCaptureFixture) -> None:
    def broken(*args: object, **how: object) -> list[int]:
        raise RuntimeError("a secret of the inside")

    daemon.words.encode = broken  # type: ignore[method-assign]
    response = daemon.post("/tokenize", {"content": "x"})
    assert response.status_code == 500
    assert response.json()["error"]["code"] == "internal"
    assert "secret" not in response.text
    assert "a secret of the inside" in caplog.text
    assert daemon.get("/health").status_code == 200


def test_keep_alive_is_used(daemon: Running) -> None:
    before = daemon.daemon.counters()["connections_total"]
    with daemon.client() as client:
        for _ in range(5):
            assert client.get("/health").status_code == 200
            assert client.post(COMPLETIONS, json={"prompt": "x", "stream": True}).status_code == 200
            assert client.post("/tokenize", content=b"no json").status_code == 400
    assert daemon.daemon.counters()["connections_total"] == before + 1


def test_replies_carry_a_date(daemon: Running) -> None:
    import email.utils

    date = daemon.get("/health").headers["date"]
    assert abs(email.utils.parsedate_to_datetime(date).timestamp() - time.time()) < 60
    assert date.endswith(" GMT")


def test_http_1_0_stream_ends_with_the_connection(daemon: Running) -> None:
    body = json.dumps({"prompt": "x", "stream": True}).encode()
    with daemon.connect() as client:
        client.sendall(b"POST /v1/completions HTTP/1.0\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        data = read_all(client)
    assert b"Transfer-Encoding" not in data
    assert data.endswith(b"data: [DONE]\n\n")


def test_client_that_never_finished_its_request_is_forgotten(daemon: Running) -> None:
    with daemon.connect() as client:
        client.sendall(b"POST /tokenize HTTP/1.1\r\nHost: e\r\nContent-Length: 100\r\n\r\n{")
        until(lambda: daemon.daemon.counters()["connections"] == 1)
    until(lambda: daemon.daemon.counters()["connections"] == 0)


def test_bad_query(daemon: Running) -> None:
    response = daemon.get("/v1/models?a=1&a=2")
    assert response.status_code == 400
    assert response.json()["error"] == {"message": "the query parameter 'a' is given twice", "param": "a",
                                        "type": "invalid_request_error", "code": "bad_http"}  # fmt: skip
    assert daemon.get("/health?a=1&b").status_code == 200
