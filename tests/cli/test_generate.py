"""run, chat and bench on a scripted engine: what they ask of it, what they print, how they end."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from edged.cli import main
from edged.config import Config
from edged.errors import ModelFault
from edged.service import loader
from tests.stub_engine import EOS, IM_END, IM_START, StubEngine, endless, stub_model

HI = [72, 105, EOS]


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., StubEngine]]:
    """serve(script, words) makes the commands load a stub with that script."""
    engines: list[StubEngine] = []

    def start(script=HI, words=(), **options) -> StubEngine:
        engine = StubEngine(script, **options)
        engines.append(engine)
        monkeypatch.setattr(loader, "load", lambda config, machine=None: stub_model(engine, words))
        return engine

    yield start
    for engine in engines:
        assert engine.stats()["running"] == 0  # every command takes its request back
        engine.close()


@contextmanager
def stdin(monkeypatch: pytest.MonkeyPatch, text: str) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode()), "utf-8"))
        yield


Capture = pytest.CaptureFixture[bytes]


def test_run_prints_the_answer(serve: Callable, capsysbinary: Capture) -> None:
    engine = serve()
    assert main.run(["run", "Hello"]) == 0
    assert capsysbinary.readouterr() == (b"Hi\n", b"")
    (request,) = engine.requests
    assert request.prompt[:1] == (IM_START,)
    assert bytes(request.prompt[1:11]) == b"user\nHello"
    assert request.stop_ids == {IM_END}
    assert request.max_tokens is None


def test_run_flags_reach_the_engine(serve: Callable, capsysbinary: Capture) -> None:
    engine = serve()
    flags = "--raw -n 7 -t 0 --top-k 5 --top-p 0.5 --min-p 0.1 --repeat-penalty 1.1 --presence-penalty 0.2 "
    flags += "--frequency-penalty 0.3 --repeat-last-n -1 --seed 42"
    assert main.run(["run", *flags.split(), "--ignore-eos", "abc"]) == 0
    (request,) = engine.requests
    assert bytes(request.prompt[1:]) == b"abc"  # BOS first, no template
    assert (request.max_tokens, request.stop_ids) == (7, frozenset())
    sampling = request.sampling
    assert (sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p) == (0, 5, 0.5, 0.1)
    assert (sampling.repeat_penalty, sampling.presence_penalty, sampling.frequency_penalty) == (1.1, 0.2, 0.3)
    assert (sampling.repeat_last_n, sampling.seed) == (-1, 42)


def test_run_takes_the_prompt_from_stdin(serve: Callable, monkeypatch: pytest.MonkeyPatch,
                                         capsysbinary: Capture) -> None:
    engine = serve()
    with stdin(monkeypatch, "Grüße\n"):
        assert main.run(["run", "--raw"]) == 0
    assert bytes(engine.requests[0].prompt[1:]) == "Grüße\n".encode()


def test_run_system_message_comes_first(serve: Callable, capsysbinary: Capture) -> None:
    engine = serve()
    assert main.run(["run", "--system", "Be kind", "Hello"]) == 0
    assert bytes(t for t in engine.requests[0].prompt if t < 256).startswith(b"system\nBe kind\nuser\nHello\n")


def test_run_token_limit_verbose_figures(serve: Callable, capsysbinary: Capture) -> None:
    serve(endless(65))
    assert main.run(["run", "-n", "3", "-v", "x"]) == 0
    out, err = capsysbinary.readouterr()
    assert out == b"AAA\n"
    assert b"answer 3 tokens" in err


def test_run_b04_split_characters_come_out_whole(serve: Callable, capsysbinary: Capture) -> None:
    serve([*"😸".encode(), EOS])
    assert main.run(["run", "x"]) == 0
    assert capsysbinary.readouterr().out == "😸\n".encode()


def test_run_d04_stop_text_over_several_tokens_ends_an_endless_answer(serve: Callable, capsysbinary: Capture) -> None:
    engine = serve(endless(*b"abc "))
    assert main.run(["run", "--stop", "c a", "x"]) == 0
    assert capsysbinary.readouterr().out == b"ab\n"
    assert engine.stats()["cancelled_total"] == 1


def test_run_shows_tokens_as_they_come(serve: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each token is written and flushed before the next is awaited."""
    engine = serve([65, 66, EOS])
    engine.hold()
    written: list[tuple[str, str]] = []

    class Out:
        def write(self, data: bytes) -> None:
            written.append(("write", data.decode()))

        def flush(self) -> None:
            written.append(("flush", ""))
            engine.step(1)

    monkeypatch.setattr(sys, "stdout", type("", (), {"buffer": Out(), "flush": lambda self: None})())
    engine.step(1)
    assert main.run(["run", "x"]) == 0
    assert written == [("write", "A"), ("flush", ""), ("write", "B"), ("flush", ""), ("write", "\n"), ("flush", "")]


def test_run_failure_in_the_middle(serve: Callable, capsysbinary: Capture) -> None:
    serve([72, ModelFault("NaN logits at step 2", hint="check the model")])
    assert main.run(["run", "x"]) == 1
    assert capsysbinary.readouterr() == (b"H", b"error: NaN logits at step 2\nhint: check the model\n")


def test_run_d03_too_long_prompt_names_both_numbers(serve: Callable, capsysbinary: Capture) -> None:
    serve(n_ctx=64)
    assert main.run(["run", "--raw", "x" * 64]) == 1
    error = capsysbinary.readouterr().err
    assert b"65" in error and b"64" in error


def test_run_interrupted_cancels(serve: Callable, monkeypatch: pytest.MonkeyPatch, capsysbinary: Capture) -> None:
    engine = serve(endless(65))
    monkeypatch.setattr("edged.cli.generate.write", lambda text: (_ for _ in ()).throw(KeyboardInterrupt))
    assert main.run(["run", "x"]) == 130
    engine.wait(lambda stats: stats["cancelled_total"] == 1)


def test_run_loads_what_the_flags_say(serve: Callable, monkeypatch: pytest.MonkeyPatch, capsysbinary: Capture) -> None:
    engine = serve()
    seen: list[Config] = []
    monkeypatch.setattr(loader, "load", lambda config, machine=None: (seen.append(config), stub_model(engine))[1])
    assert main.run(["run", "-m", "some.gguf", "-c", "512", "--threads", "3", "--mlock", "hot", "x"]) == 0
    (config,) = seen
    assert (config.model.path, config.model.mlock) == ("some.gguf", "hot")
    assert (config.engine.context, config.engine.threads) == (512, 3)


def test_chat_keeps_the_conversation(serve: Callable, monkeypatch: pytest.MonkeyPatch, capsysbinary: Capture) -> None:
    engine = serve()
    with stdin(monkeypatch, "one\n\ntwo\n/reset\nthree\n/quit\nfour\n"):
        assert main.run(["chat", "--system", "S"]) == 0
    assert capsysbinary.readouterr().out == b"Hi\nHi\nHi\n"
    said = [bytes(t for t in request.prompt if t < 256) for request in engine.requests]
    assert said == [
        b"system\nS\nuser\none\nassistant\n",
        b"system\nS\nuser\none\nassistant\nHi\nuser\ntwo\nassistant\n",
        b"system\nS\nuser\nthree\nassistant\n",
    ]


def test_chat_ctrl_c_stops_only_the_answer(serve: Callable, monkeypatch: pytest.MonkeyPatch,
                                           capsysbinary: Capture) -> None:
    from edged.cli import generate

    engine = serve(endless(65))
    write, calls = generate.write, []

    def interrupted(text: str) -> None:
        write(text)
        calls.append(text)
        if calls.count("A") == 2 and len(calls) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(generate, "write", interrupted)
    with stdin(monkeypatch, "one\ntwo\n"):
        assert main.run(["chat", "-n", "3"]) == 0
    assert capsysbinary.readouterr().out == b"AA [stopped]\nAAA\n"
    assert b"assistant\nAA\nuser\ntwo" in bytes(t for t in engine.requests[1].prompt if t < 256)


def test_chat_on_a_terminal_goes_on_after_an_error(serve: Callable, monkeypatch: pytest.MonkeyPatch,
                                                   capsysbinary: Capture) -> None:
    engine = serve()
    with stdin(monkeypatch, f"one\n{'x' * 5000}\ntwo\n"):
        monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
        assert main.run(["chat"]) == 0
    out, err = capsysbinary.readouterr()
    assert out.count(b"Hi\n") == 2
    assert err.startswith(b"error: the prompt has ")
    assert b"assistant\nHi\nuser\ntwo" in bytes(t for t in engine.requests[-1].prompt if t < 256)


def test_chat_from_a_pipe_ends_with_an_error(serve: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = serve()
    with stdin(monkeypatch, f"{'x' * 5000}\ntwo\n"):
        assert main.run(["chat"]) == 1
    assert not engine.requests


def test_bench_rows(serve: Callable, monkeypatch: pytest.MonkeyPatch, capsysbinary: Capture) -> None:
    engine = timed(serve(endless(65)))
    assert main.run(["bench", "-p", "16", "-p", "32", "-n", "8", "-r", "2", "--json"]) == 0
    rows = [json.loads(line) for line in capsysbinary.readouterr().out.splitlines()]
    assert [(row["test"], row["tokens_per_s"], row["runs"]) for row in rows] == [
        ("pp16", 16 / 2.0, [8.0, 8.0]), ("pp32", 32 / 2.0, [16.0, 16.0]), ("tg8", 8 / 4.0, [2.0, 2.0]),
    ]  # fmt: skip
    assert {len(request.prompt) for request in engine.requests} == {16, 32, 1}
    assert len({request.prompt for request in engine.requests if len(request.prompt) > 1}) == 6  # no prefix is reused
    timed(serve(endless(65)))
    assert main.run(["bench", "-p", "16", "-n", "8", "-r", "1"]) == 0
    table = capsysbinary.readouterr().out.decode().splitlines()
    assert [line.split()[-4] for line in table[1:]] == ["pp16", "tg8"]


def timed(engine: StubEngine) -> StubEngine:
    """The engine says that each prompt took 2 s and each generation 4 s."""
    from edged.engine.request import Done

    submit = engine.submit

    def patched(request, sink):
        def with_times(event):
            if isinstance(event, Done):
                event = event._replace(usage=event.usage._replace(prefill_s=2.0, decode_s=4.0))
            sink(event)

        return submit(request, with_times)

    engine.submit = patched
    return engine
