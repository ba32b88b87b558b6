"""`edged ask` and `edged search`: what is asked, what is shown, and the exit status; then with a model."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from edged.cli import client, main, manuals
from edged.engine.request import Request
from edged.rag import citations, prompt
from edged.service import loader
from tests.cli.serving import serving
from tests.stub_engine import StubEngine, stub_model

Row = dict[str, Any]
PLACE = {"document": {"title": "QV-310", "path": "/m/qv.pdf"}, "page": 6, "page_end": 6, "section": "4.6 Sensors"}
ANSWER: Row = {"answer": "At the cabinet end. [1]", "refused": False, "dropped_sentences": 0,
               "quotes": [{"n": 1, "text": "Connect it\nat the cabinet end.", **PLACE}]}  # fmt: skip
REFUSAL: Row = {"answer": "not in the manuals", "refused": True, "dropped_sentences": 0, "quotes": [],
                "confidence": 0.312, "passages": [{"text": "Connect", **PLACE}]}  # fmt: skip


class Fake:
    """Manuals that say what they are told to say."""

    where = "the fake"
    least: float | None = 0.45

    def __init__(self) -> None:
        self.asked: list[tuple[str, Row]] = []
        self.pieces: list[str] = []
        self.answer = ANSWER
        self.found: list[Row] = []

    def ask(self, question: str, options: Row, show: Callable[[str], None]) -> Row:
        self.asked.append((question, options))
        for piece in self.pieces:
            show(piece)
        return self.answer

    def search(self, question: str, options: Row) -> list[Row]:
        self.asked.append((question, options))
        return self.found

    def close(self) -> None:
        pass


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Fake:
    made = Fake()
    monkeypatch.setattr(manuals, "Here", lambda config: made)
    return made


@pytest.mark.parametrize("pieces", [[], ["At the ", "cabinet end. [1]"]], ids=["whole", "in pieces"])
def test_an_answer_with_its_quotes(pieces: list[str], fake: Fake, capsys: pytest.CaptureFixture[str]) -> None:
    fake.pieces = pieces
    assert main.run(["ask", "Where?"]) == 0
    assert capsys.readouterr().out == (
        'At the cabinet end. [1]\n[1] "Connect it at the cabinet end." - QV-310, page 6, 4.6 Sensors (/m/qv.pdf)\n'
    )


def test_an_answer_that_is_other_than_its_pieces_is_shown_whole(fake: Fake, capsys: pytest.CaptureFixture[str]) -> None:
    fake.pieces, fake.answer = ["At no end. [1]"], {**ANSWER, "dropped_sentences": 1}
    assert main.run(["ask", "Where?"]) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith("At no end. [1]\n\nAt the cabinet end. [1]\n[1] ")
    assert captured.err == "left out, since no passage bears it out: 1 sentence\n"


def test_a_refusal_has_a_status_of_its_own(fake: Fake, capsys: pytest.CaptureFixture[str]) -> None:
    fake.answer = REFUSAL
    assert main.run(["ask", "Where?"]) == 4
    captured = capsys.readouterr()
    assert captured.out == "not in the manuals\n"
    assert captured.err == ("nearest: QV-310, page 6, 4.6 Sensors (/m/qv.pdf); confidence 0.31, 0.45 is asked for "
                            "(--least); see edged search\n")  # fmt: skip
    assert main.run(["ask", "--least", "0.6", "Where?"]) == 4
    assert "; confidence 0.31, 0.60 is asked for (--least); " in capsys.readouterr().err
    fake.least = None
    assert main.run(["ask", "Where?"]) == 4
    assert "; confidence 0.31; see edged search\n" in capsys.readouterr().err, "the daemon's limit is not known"
    fake.answer = {**REFUSAL, "passages": []}
    assert main.run(["ask", "Where?"]) == 4
    assert capsys.readouterr().err == "no passage has to do with it (edged store list)\n"
    fake.answer = REFUSAL
    assert main.run(["ask", "--json", "Where?"]) == 4
    captured = capsys.readouterr()
    assert (json.loads(captured.out), captured.err) == (REFUSAL, "")


@pytest.mark.parametrize("name", ["ask", "search"])
def test_a_question_is_words_or_stdin_and_never_empty(name: str, fake: Fake, monkeypatch: pytest.MonkeyPatch,
                                                      capsys: pytest.CaptureFixture[str]) -> None:
    def run(*words: str, stdin: bytes = b"") -> int:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        return main.run([name, *words])

    fake.found = [{"text": "Connect", **PLACE}]
    assert run("What", "happens", "after", "--product", "P") == 0
    assert run("-", stdin=b"Where\nis it?\n") == run(stdin="W\u00e4rme\xff?".encode("latin-1")) == 0
    assert [question for question, _ in fake.asked] == ["What happens after", "Where\nis it?", "W\ufffdrme\ufffd?"]
    for words in ([""], [" "], ["-"], []):
        assert run(*words) == 2
        assert "Error: the question is empty" in capsys.readouterr().err
    monkeypatch.setattr("sys.stdin", SimpleNamespace(isatty=lambda: True, buffer=None))
    assert main.run([name]) == 2, "nobody waits for a terminal"
    assert len(fake.asked) == 3


def test_options_go_along_where_they_are_given(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGED_RAG_LEAST", "0.3")  # the daemon has settings of its own
    assert main.run(["ask", "a"]) == 0
    assert main.run(["ask", "b", "--collection", "c", "--document", "d.pdf", "--product", "p", "--version", "2",
                     "--passages", "3", "--least", "0.6", "--answer", "extract"]) == 0  # fmt: skip
    assert main.run(["search", "c", "--passages", "7", "--product", "p"]) == 4
    filters = {"collection": "c", "document": "d.pdf", "product": "p", "version": "2"}
    assert fake.asked == [
        ("a", {}),
        ("b", {**filters, "passages": 3, "least": 0.6, "answer": "extract"}),
        ("c", {"passages": 7, "product": "p"}),
    ]


def test_passages(fake: Fake, capsys: pytest.CaptureFixture[str]) -> None:
    two_pages = {**PLACE, "page_end": 7, "section": ""}
    no_page = {"document": {"title": "", "path": "/m/notes.txt"}, "page": None, "page_end": None, "section": "A"}
    texts = ["one", "steers \x1b[31m the terminal", "three"]
    fake.found = [{**p, "text": t} for p, t in zip((PLACE, two_pages, no_page), texts, strict=True)]
    assert main.run(["search", "Where?"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "QV-310, page 6, 4.6 Sensors (/m/qv.pdf)", "one", "",
        "QV-310, pages 6-7 (/m/qv.pdf)", "steers  [31m the terminal", "",
        "notes.txt, A (/m/notes.txt)", "three", "",
    ]  # fmt: skip
    assert main.run(["search", "--json", "Where?"]) == 0
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == fake.found
    fake.found = []
    assert main.run(["search", "Where?"]) == 4
    assert capsys.readouterr().err == "nothing found\n"


# -- who answers -------------------------------------------------------------------------------------------------------


def test_the_daemon_answers_if_there_is_one(fake: Fake, monkeypatch: pytest.MonkeyPatch,
                                            capsys: pytest.CaptureFixture[str]) -> None:
    there: list[str] = []
    monkeypatch.setattr(client, "answers", lambda path: path == "/there")
    monkeypatch.setattr(manuals, "Through", lambda path: there.append(path) or fake)
    assert main.run(["ask", "a", "--socket", "/there"]) == 0
    assert main.run(["ask", "a", "--socket", "/there", "--store", "m.db"]) == 0, "this file, by this process"
    assert there == ["/there"]
    assert capsys.readouterr().err == ""
    assert main.run(["ask", "a", "--socket", "/gone"]) == 0
    assert capsys.readouterr().err == "no daemon answers on /gone: using the fake\n"
    monkeypatch.setenv("EDGED_SERVER_SOCKET", "/gone")
    assert main.run(["ask", "a"]) == 0
    assert capsys.readouterr().err == "", "nobody asked for a daemon"
    monkeypatch.setenv("EDGED_SERVER_SOCKET", "/there")
    assert main.run(["ask", "a"]) == 0
    assert there == ["/there"] * 2


def test_flags_that_a_daemon_does_not_take_are_refused(fake: Fake, monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
                                                       capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(client, "answers", lambda path: path == "/there")
    monkeypatch.setattr(manuals, "Through", lambda path: fake)
    there = ["--socket", "/there"]
    assert main.run(["ask", "a", *there, "-m", "m.gguf", "--threads", "2", "--least", "0.5"]) == 1
    assert capsys.readouterr().err == (
        "error: the daemon on /there answers, which has its own --model, --threads\n"
        "hint: leave that out, or name the store with --store: then this process does it\n"
    )
    (tmp_path / "a.md").write_text("x")
    assert main.run(["ingest", str(tmp_path), *there, "--chunk", "100", "--embedding-model", "e.gguf"]) == 1
    assert "its own --chunk, --embedding-model" in capsys.readouterr().err
    assert main.run(["search", "a", *there, "--memory-check", "off"]) == 1
    assert not fake.asked
    assert main.run(["ask", "a", *there, "--store", "m.db", "--threads", "2"]) == 0
    assert main.run(["ask", "a", "--socket", "/gone", "--threads", "2"]) == 0


# -- with a model ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, minilm_path: Path) -> Iterator[list[str]]:
    """Flags for a store that holds the demo manual, and for the model."""
    folder = tmp_path_factory.mktemp("store")
    manual = Path(__file__).resolve().parents[2] / "packaging" / "manual" / "controller.md"
    flags = ["--store", str(folder / "m.db"), "--embedding-model", str(minilm_path)]
    assert main.run(["ingest", "-q", *flags, "--product", "QV-310", str(manual)]) == 0
    yield flags


ASKED = "What happens after five wrong PINs?"


def test_no_store_is_an_error(tmp_path: Path, minilm_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--store", str(tmp_path / "no.db"), "--embedding-model", str(minilm_path)]
    assert main.run(["ask", *flags, ASKED]) == main.run(["search", *flags, ASKED]) == 1
    assert capsys.readouterr().err.count("error: no store of manuals at") == 2
    assert not (tmp_path / "no.db").exists()


def test_the_daemon_and_this_process_answer_alike(store: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
                                                  ) -> None:
    questions = [
        ["ask", "--json", ASKED],
        ["ask", "--json", "E-0x2A", "--product", "QV-310"],
        ["ask", "--json", "What does the controller cost?"],
        ["ask", "--json", ASKED, "--collection", "none"],
        ["ask", "--json", ASKED, "--least", "0.99"],
        ["search", "--json", ASKED, "--passages", "2", "--document", "controller.md"],
        ["ask", ASKED],
    ]

    def answers(*flags: str) -> list[tuple[int, str]]:
        found = []
        for question in questions:
            status = main.run([*question, *flags])
            found.append((status, capsys.readouterr().out))
        return found

    by_itself = answers(*store)
    assert [status for status, _ in by_itself] == [0, 0, 4, 1, 4, 0, 0]
    assert by_itself[-1][1].startswith("After five wrong PINs the level is locked for 15 minutes. [1]")
    assert ' - Quorvane QV-310 Process Controller, 6.5 Access levels (/' in by_itself[-1][1]
    assert len(by_itself[5][1].splitlines()) in (1, 2)
    with serving(tmp_path, *store) as socket:
        assert answers("--socket", socket) == by_itself


def test_the_daemon_and_this_process_word_an_answer_alike(store: list[str], smollm2_path: Path, tmp_path: Path,
                                                          capsys: pytest.CaptureFixture[str]) -> None:
    """From the model's first token to where it goes astray; by this process with one pool of workers."""
    questions = [ASKED, "How do I bleed the pump?", "What supply voltage range is permitted for the 24 V models?"]
    model = ["--model", str(smollm2_path)]

    def answers(*flags: str) -> list[Row]:
        found = []
        for question in questions:
            assert main.run(["ask", "--json", "--answer", "generate", question, *flags]) in (0, 4)
            told = json.loads(capsys.readouterr().out)
            found.append({name: value for name, value in told.items() if name != "usage"})
        return found

    by_itself = answers(*store, *model)
    assert any(answer["mode"] == "generate" or answer["dropped_sentences"] for answer in by_itself)
    with serving(tmp_path, *store, *model) as socket:
        assert answers("--socket", socket) == by_itself


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Callable[..., StubEngine]:
    """scripted(script) makes this process load a stub with that script."""

    def start(script: Callable[[Request], Iterator[int]]) -> StubEngine:
        engine = StubEngine(script, delay=0.003)
        engine.machines = []
        monkeypatch.setattr(loader, "load", lambda config, machine: engine.machines.append(machine) or
                            stub_model(engine))  # fmt: skip
        return engine

    return start


def test_a_model_that_goes_astray_is_stopped(store: list[str], smollm2_path: Path, scripted: Callable[..., StubEngine],
                                             capsys: pytest.CaptureFixture[str]) -> None:
    """The question is no answer; both models are on one machine."""

    def script(request: Request) -> Iterator[int]:
        yield from f"{ASKED[:-1]}. The level is locked for 15 minutes [1]. ".encode()
        while True:
            yield from b"It is so. "

    engine = scripted(script)
    flags = ["--answer", "generate", "--model", str(smollm2_path)]
    assert main.run(["ask", "--json", *store, *flags, ASKED]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["answer"], told["mode"]) == ("The level is locked for 15 minutes [1].", "generate")
    (request,) = engine.requests
    assert request.speculate and request.sampling.temperature == 0 and request.max_tokens == prompt.ANSWER_TOKENS
    assert told["dropped_sentences"] == 1 + citations.ADRIFT + 1, "the question; what went astray; what had begun then"
    assert engine.stats()["cancelled_total"] == 1, "it was not heard out"
    (machine,) = engine.machines
    assert machine is not None


def test_a_model_words_the_answer_in_this_process(store: list[str], smollm2_path: Path,
                                                  capsys: pytest.CaptureFixture[str]) -> None:
    model = ["--answer", "generate", "--model", str(smollm2_path)]
    assert main.run(["ask", *store, *model, "--model", "/nowhere/m.gguf", "What does the controller cost?"]) == 1
    assert "no model file /nowhere/m.gguf" in capsys.readouterr().err
    assert main.run(["ask", "--json", *store, *model, ASKED]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["quotes"] and (told["mode"] == "generate" or told["dropped_sentences"])
    assert main.run(["ask", *store, *model, ASKED]) == 0
    assert capsys.readouterr().out.startswith(told["answer"])
    assert main.run(["ask", *store, *model, "What does the controller cost?"]) == 4
