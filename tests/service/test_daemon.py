"""The daemon's life: what it says while loading, when it is ready, when it fails, and what it tells systemd."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from edged.api.context import Loaded, LoadedModel
from edged.config import Config, RagConfig
from edged.errors import BadConfig, BadModel, BadTemplate, ModelChanged, ModelFault
from edged.rag.database import Database
from edged.service import daemon as daemon_module
from edged.service.daemon import EXIT_MODEL_CHANGED, Progress
from edged.service.loader import Post
from edged.service.sd_notify import Notifier
from tests.service.running import PATIENCE, Running, request_bytes, until
from tests.stub_engine import StubEmbedder, StubEngine, endless, stub_model


class SlowLoad:
    """A load that takes until `go` is set."""

    def __init__(self, outcome: Exception | None = None) -> None:
        self.go = threading.Event()
        self.engine = StubEngine()
        self._outcome = outcome

    def __call__(self, config: Config, post: Post) -> LoadedModel:
        assert self.go.wait(PATIENCE)
        if self._outcome is not None:
            raise self._outcome
        self.engine._post = post
        return stub_model(self.engine)


def test_health_while_loading() -> None:
    """The socket answers from the start: 503 with the reason on every route, until the self-test token is out."""
    load = SlowLoad()
    with Running(load=load, wait=False) as running:
        health = running.get("/health")
        assert health.status_code == 503
        assert health.json() == {"status": "loading", "reasons": ["the model is being loaded"], "warnings": []}
        assert health.headers["retry-after"] == "1"
        for response in (running.get("/v1/models"), running.post("/tokenize", {"content": "x"}),
                         running.post("/v1/completions", {"prompt": "x"})):  # fmt: skip
            assert response.status_code == 503
            assert response.json()["error"]["code"] == "not_ready"
        assert "edged_ready 0\n" in running.get("/metrics").text
        load.engine.hold()
        load.go.set()
        load.engine.wait(lambda stats: stats["running"] == 1)
        assert running.get("/health").status_code == 503
        load.engine.step()
        until(lambda: running.get("/health").status_code == 200)
        assert running.post("/v1/completions", {"prompt": "x"}).status_code == 200


def test_stop_while_loading() -> None:
    """The model that arrives too late is closed."""
    load = SlowLoad()
    running = Running(load=load, wait=False)
    with running:
        running.call(running.daemon.stop)
        load.go.set()
    assert running.code == 0
    assert load.engine._closed
    assert not os.path.lexists(running.path)


def test_load_failure_is_raised() -> None:
    load = SlowLoad(BadModel("tensor x lies past the end of the file"))
    load.go.set()
    running = Running(load=load)
    with pytest.raises(BadModel, match="past the end"), running:
        pass
    assert not os.path.lexists(running.path)


def test_failed_self_test_is_raised_and_the_model_closed() -> None:
    engine = StubEngine([ModelFault("the logits are not finite")])
    with pytest.raises(ModelFault), Running(engine):
        pass
    assert engine._closed


def test_bad_chat_template_hinders_only_chat(caplog: pytest.LogCaptureFixture) -> None:
    class NoChat:
        def render(self, messages: object) -> list[int]:
            raise BadTemplate("line 3: unexpected end of template")

    running = Running()
    running.model = replace(running.model, chat=NoChat())
    with running:
        assert "chat will be refused: line 3" in caplog.text
        refused = running.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]})
        assert refused.status_code == 400
        assert refused.json()["error"]["code"] == "bad_template"
        assert running.post("/v1/completions", {"prompt": "x"}).status_code == 200


def test_g07_second_daemon_is_refused_and_the_first_goes_on() -> None:
    with Running() as first:
        second = Running()
        second._config = replace(second._config, server=replace(second._config.server, socket=first.path))
        with pytest.raises(BadConfig, match="another process"), second:
            pass
        assert first.get("/health").status_code == 200


@pytest.fixture
def only_requests_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody looks at the model file between requests, so that the one that is sent notices a change."""
    monkeypatch.setattr(daemon_module, "TICK", 3600.0)


@pytest.mark.usefixtures("only_requests_look")
def test_model_changed_on_disk() -> None:
    """Refused from then on, and the daemon ends with a code that makes its unit start again."""
    changed = threading.Event()

    def check() -> None:
        if changed.is_set():
            raise ModelChanged("stub.gguf was changed on disk")

    with Running() as running:
        running.model = replace(running.model, check=check)
        running.daemon._loaded = Loaded(running.model)
        changed.set()
        response = running.post("/v1/completions", {"prompt": "x"})
        assert response.status_code == 503
        assert response.json()["error"]["code"] == "model_changed"
        until(lambda: running.code is not None)
    assert running.code == EXIT_MODEL_CHANGED


@pytest.mark.usefixtures("only_requests_look")
@pytest.mark.parametrize("stream", [False, True])
def test_model_changed_ends_what_runs_with_its_reason(stream: bool) -> None:
    changed = threading.Event()

    def check() -> None:
        if changed.is_set():
            raise ModelChanged("stub.gguf was changed on disk")

    running = Running(StubEngine(endless(65), slots=1, n_ctx=200_000, delay=0.005))
    running.model = replace(running.model, check=check)
    with running:
        client = running.connect()
        client.sendall(request_bytes("/v1/completions", {"prompt": "x", "stream": stream}))
        running.engine.wait(lambda stats: stats["tokens_total"] > 3)
        changed.set()
        assert running.post("/v1/completions", {"prompt": "y"}).status_code == 503
        answer = b"".join(iter(lambda: client.recv(65536), b""))
        assert b"model_changed" in answer


def test_running_out_of_files_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    """asyncio would write a traceback for each connection that cannot be accepted."""
    with Running() as running:
        context = {"message": "socket.accept() out of system resource", "exception": OSError(errno.EMFILE, "Too many")}
        for _ in range(100):
            running.call(running._loop.call_exception_handler, context)
        assert running.get("/health").status_code == 200
    assert caplog.text.count("cannot accept a connection: Too many") == 1
    assert "Traceback" not in caplog.text


def test_model_changed_is_noticed_without_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daemon_module, "TICK", 0.01)

    def check() -> None:
        raise ModelChanged("stub.gguf was changed on disk")

    with Running() as running:
        running.daemon._loaded = Loaded(replace(running.model, check=check))
        until(lambda: running.code is not None)
    assert running.code == EXIT_MODEL_CHANGED


def test_g08_stop_ends_what_runs() -> None:
    """A stream gets an error event, a waiting request a 503, an idle connection its end."""
    with Running(StubEngine(endless(65), slots=1, n_ctx=200_000, delay=0.005)) as running:
        streaming, waiting, idle = running.connect(), running.connect(), running.connect()
        streaming.sendall(request_bytes("/v1/completions", {"prompt": "x", "stream": True}))
        running.engine.wait(lambda stats: stats["tokens_total"] > 3)
        waiting.sendall(request_bytes("/v1/completions", {"prompt": "y"}))
        running.engine.wait(lambda stats: stats["waiting"] == 1)
        running.stop()
        streamed = b"".join(iter(lambda: streaming.recv(65536), b""))
        assert b'"code":"not_ready"' in streamed
        assert b"[DONE]" not in streamed
        assert b"HTTP/1.1 503 " in b"".join(iter(lambda: waiting.recv(65536), b""))
        assert idle.recv(100) == b""
    assert running.code == 0
    assert not os.path.lexists(running.path)


def test_g08_stop_with_a_client_that_does_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daemon_module, "STOP_PATIENCE", 0.2)
    with Running(StubEngine(endless(65), n_ctx=200_000)) as running, running.connect() as client:
        client.sendall(request_bytes("/v1/completions", {"prompt": "x", "stream": True}))
        until(lambda: running.engine.stats()["tokens_total"] > 10_000)
        running.stop()
    assert running.code == 0


def test_wedged_engine_does_not_hold_up_the_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daemon_module, "STOP_PATIENCE", 0.1)
    with Running(StubEngine(endless(65))) as running:
        running.engine.wedge()
        running.stop()
    assert running.code == 0
    assert running.daemon.left_behind


class Systemd:
    """The far end of NOTIFY_SOCKET."""

    def __init__(self, address: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(address.replace("@", "\0", 1) if address.startswith("@") else address)
        self.socket.settimeout(PATIENCE)
        self.messages: list[str] = []

    def wait_for(self, message: str) -> None:
        """Read until a message comes; those before it are in `messages`."""
        self.messages = []
        while (got := self.socket.recv(1000).decode()) != message:
            self.messages.append(got)


@pytest.fixture(params=["path", "abstract"])
def systemd(request: pytest.FixtureRequest) -> Iterator[tuple[Systemd, str]]:
    with tempfile.TemporaryDirectory(prefix="edged-") as folder:
        address = str(Path(folder, "n")) if request.param == "path" else f"@{folder}"
        receiver = Systemd(address)
        yield receiver, address
        receiver.socket.close()


def test_what_systemd_hears(systemd: tuple[Systemd, str]) -> None:
    """STATUS and EXTEND while loading, READY after the self-test, WATCHDOG while the engine moves, STOPPING."""
    receiver, address = systemd
    load = SlowLoad()
    environ = {"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "200000", "WATCHDOG_PID": str(os.getpid())}
    with Running(load=load, environ=environ, wait=False) as running:
        assert environ == {}  # children do not inherit it
        receiver.wait_for("STATUS=loading the model")
        receiver.wait_for("EXTEND_TIMEOUT_USEC=15000000")
        load.engine.hold()
        load.go.set()
        load.engine.wait(lambda stats: stats["running"] == 1)
        load.engine.step()
        receiver.wait_for("READY=1")
        assert not any(message.startswith("WATCHDOG") for message in receiver.messages)
        receiver.wait_for("WATCHDOG=1")
        receiver.wait_for("WATCHDOG=1")
        running.stop()
        receiver.wait_for("STOPPING=1")


def test_watchdog_starves_when_the_engine_is_stuck(systemd: tuple[Systemd, str]) -> None:
    receiver, address = systemd
    with Running(StubEngine(endless(65)), environ={"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "100000"}) as running:
        running.engine.hold()
        with running.connect() as client:
            client.sendall(request_bytes("/v1/completions", {"prompt": "x"}))
            running.engine.wait(lambda stats: stats["running"] == 1)
            receiver.socket.settimeout(0.3)
            with pytest.raises(TimeoutError):
                receiver.wait_for("never")
            receiver.socket.settimeout(PATIENCE)
            running.engine.step(1)
            receiver.wait_for("WATCHDOG=1")


def test_progress() -> None:
    progress = Progress()
    assert progress.seen([{"running": 1, "progress": 5}])
    assert not progress.seen([{"running": 1, "progress": 5}])
    assert not progress.seen([{"running": 1, "progress": 5, "waiting": 1, "requests_total": 9}])  # requests are no work
    assert progress.seen([{"running": 1, "progress": 6}])
    assert progress.seen([{"running": 0, "waiting": 0, "progress": 6}])
    assert not progress.seen([{"running": 0, "waiting": 2, "progress": 6}])


@pytest.mark.parametrize("environ", [{}, {"NOTIFY_SOCKET": "/nowhere/at/all"}, {"NOTIFY_SOCKET": "@nobody listens"}])
def test_nobody_listens_to_notifications(environ: dict[str, str]) -> None:
    notifier = Notifier(environ)
    notifier.ready()
    notifier.status("x")
    notifier.alive()
    notifier.close()
    notifier.ready()


@pytest.mark.parametrize(("environ", "interval"), [
    ({}, None), ({"WATCHDOG_USEC": "0"}, None), ({"WATCHDOG_USEC": "x"}, None), ({"WATCHDOG_USEC": "2500000"}, 2.5),
    ({"WATCHDOG_USEC": "1000000", "WATCHDOG_PID": str(os.getpid())}, 1.0),
    ({"WATCHDOG_USEC": "1000000", "WATCHDOG_PID": "1"}, None),
])  # fmt: skip
def test_watchdog_interval(environ: dict[str, str], interval: float | None) -> None:
    assert Notifier(environ).watchdog_interval == interval


def test_the_app_imports_nothing_heavy() -> None:
    """Commands that do not serve import it too."""
    code = "import sys, edged.service.app; print(sorted({'asyncio', 'h11', 'numpy', 'jinja2'} & set(sys.modules)))"
    output = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert output.strip() == "[]"


def test_j05_a_store_without_an_index_of_words_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Questions are answered by meaning alone, and /health says so."""
    rag = RagConfig(store=str(tmp_path / "manuals.db"))
    with Running(embedder=StubEmbedder(n_ctx=512), rag=rag) as running:
        response = running.post("/v1/documents?path=/m/a.txt", b"The fuse has 2 A.")
        assert '"added"' in response.text
        assert running.get("/health").json()["warnings"] == []
    monkeypatch.setattr(Database, "readable", lambda self, table: False)
    with Running(embedder=StubEmbedder(n_ctx=512), rag=rag) as running:
        assert running.post("/v1/search", {"query": "fuse"}).json()["data"]
        (warning,) = running.get("/health").json()["warnings"]
        assert "FTS5" in warning


def test_a_store_that_cannot_be_used_is_told_before_anybody_asks(tmp_path: Path) -> None:
    """By /health, as a warning: the models answer all the same. It is over when the store is good again."""
    bad = tmp_path / "manuals.db"
    bad.write_bytes(b"no store at all" * 1000)
    with Running(embedder=StubEmbedder(n_ctx=512), rag=RagConfig(store=str(bad))) as running:
        until(lambda: bool(running.get("/health").json()["warnings"]))
        (warning,) = running.get("/health").json()["warnings"]
        assert warning.startswith("questions about manuals: ") and "manuals.db" in warning
        assert running.post("/v1/embeddings", {"input": "x"}).status_code == 200
        assert running.post("/v1/ask", {"question": "x?"}).status_code == 500
        bad.unlink()
        assert '"added"' in running.post("/v1/documents?path=/m/a.txt", b"The fuse has 2 A.").text
        assert running.get("/health").json()["warnings"] == []
