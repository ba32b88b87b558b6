"""Questions about manuals by the whole path: both models, the store, the socket, and openai-python unchanged."""

from __future__ import annotations

import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from edged.api.context import Loaded
from edged.config import Config, EmbeddingConfig, EngineConfig, ModelConfig
from edged.rag.store import Store
from edged.service import loader
from edged.service.loader import Post
from tests.service.running import PATIENCE, Running, parse_events, until
from tests.service.test_stop import CHECKOUT, STOP_WITHIN, is_ready

MANUAL = CHECKOUT / "packaging" / "manual" / "controller.md"
QUESTION = "What supply voltage range is permitted for the 24 V models?"
GOLD = "19.2 to 28.8 V DC"
ABSENT = "Which Bluetooth version does the controller have?"
LARGEST = 3 << 20  # bytes of a file: an empty store with its log, and a little more
NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
CITATION = re.compile(r"\[[\d, ]+\]")
MANUALS = {"edged": {"collection": "plant"}}


@pytest.fixture(scope="module")
def daemon(smollm2_path: Path, minilm_path: Path) -> Iterator[Running]:
    def load(config: Config, post: Post) -> Loaded:
        config = replace(config, model=ModelConfig(path=str(smollm2_path), name="smollm2"),
                         embedding=EmbeddingConfig(model=str(minilm_path), name="minilm"),
                         engine=EngineConfig(context=2048))  # fmt: skip
        return loader.load_all(config, post)

    with Running(load=load) as running:
        done = ingest(running, MANUAL.read_bytes())
        assert done["outcome"] == "added" and done["embedded"] == done["chunks"] > 50, done
        yield running


@pytest.fixture
def client(daemon: Running) -> Iterator[openai.OpenAI]:
    http = httpx.Client(transport=httpx.HTTPTransport(uds=daemon.path, verify=False), timeout=6 * PATIENCE)
    with openai.OpenAI(base_url="http://edged/v1", api_key="none", http_client=http, max_retries=0) as found:
        yield found


def ingest(running: Running, data: bytes, name: str = "/m/controller.md", collection: str = "plant") -> dict[str, Any]:
    """What the daemon says in the end of a document that it is sent."""
    with running.client(10 * PATIENCE) as http:
        response = http.post("/v1/documents", params={"path": name, "collection": collection}, content=data)
    assert response.status_code == 200, response.text
    *_, done, end = parse_events(response.text)
    assert end == "[DONE]", done
    found: dict[str, Any] = done["document"]
    return found


def ask(client: openai.OpenAI, question: str, **more: Any) -> Any:
    return client.chat.completions.create(model="any", messages=[{"role": "user", "content": question}], **more)


def generate(running: Running, question: str) -> Any:
    """An answer of the model, however slow the machine is."""
    body = {"question": question, "answer": "generate", "collection": "plant"}
    return running.post("/v1/ask", body, 6 * PATIENCE).json()


def test_chat_with_a_collection(client: openai.OpenAI) -> None:
    """The message carries its citations; what the manuals do not hold is refused; streamed it is the same."""
    message = ask(client, QUESTION, extra_body=MANUALS).choices[0].message
    assert GOLD in message.content
    (first, *_) = message.edged["citations"]
    assert GOLD in first["text"] and first["section"] == "3.1 Supply"
    assert first["document"]["path"] == "/m/controller.md"
    chunks = list(ask(client, QUESTION, extra_body=MANUALS, stream=True))
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == message.content
    refused = ask(client, ABSENT, extra_body=MANUALS).choices[0].message
    assert refused.edged["refused"] and refused.content == "not in the manuals" and not refused.edged["citations"]
    with pytest.raises(openai.NotFoundError, match=r"no document has the collection 'elsewhere' \(there are: .*plant"):
        ask(client, QUESTION, extra_body={"edged": {"collection": "elsewhere"}})


def test_generated_answers_hold_no_number_that_the_manual_does_not(daemon: Running) -> None:
    """Whatever so small a model says: each sentence that is handed on is borne out, or the answer is quotes."""
    held = set(NUMBER.findall(MANUAL.read_text("utf-8")))
    modes = set()
    for question in (QUESTION, "What type is the internal fuse F1 of the 24 V model?",
                     "How long does relay K1 last at full load?", "What is the burden of the current input?"):
        answer = generate(daemon, question)
        assert not answer["refused"] and answer["quotes"]
        numbers = set(NUMBER.findall(CITATION.sub("", answer["answer"])))
        assert numbers and numbers <= held, answer["answer"]
        modes.add(answer["mode"])
    assert "generate" in modes
    again = generate(daemon, question)
    assert again["answer"] == answer["answer"]
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] >= 32  # the fixed part at least


def test_the_fixed_part_of_a_prompt_is_computed_once(daemon: Running) -> None:
    """For another question, too."""
    for question in (QUESTION, "What is the burden of the current input?"):
        answer = generate(daemon, question)
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] >= 32


def test_answers_come_while_a_long_manual_is_taken_in(client: openai.OpenAI, daemon: Running) -> None:
    """Chat, a question and a search, all of them before the ingest is over; and nothing of the new document is seen
    before it is whole."""
    text = MANUAL.read_text("utf-8")
    long = "\n\n".join(text.replace("QV-310", f"QV-{n:03}") for n in range(5)).encode()
    over = threading.Event()
    done: list[dict[str, Any]] = []

    def work() -> None:
        done.append(ingest(daemon, long, "/m/long.md", "other"))
        over.set()

    thread = threading.Thread(target=work)
    thread.start()
    until(lambda: "\nedged_embedding_waiting 0\n" not in daemon.get("/metrics").text)
    assert ask(client, "Count to five.", max_tokens=8).choices[0].message.content
    assert GOLD in ask(client, QUESTION, extra_body=MANUALS).choices[0].message.content
    listed = daemon.get("/v1/documents?collection=other").json()["data"]
    if not over.is_set():
        assert listed == []
    thread.join()
    assert done[0]["outcome"] == "added"
    (row,) = daemon.get("/v1/documents?collection=other").json()["data"]
    assert daemon.client().delete(f"/v1/documents/{row['id']}").json()["deleted"]
    assert daemon.get("/v1/documents?collection=other").json()["data"] == []
    store = Store(daemon.store)
    store.check()
    store.close()


@contextmanager
def serving(folder: str, *flags: str, largest_file: int = resource.RLIM_INFINITY
            ) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`edged serve` as a process, ready. largest_file: bytes that it may write to one."""
    path = f"{folder}/s"
    command = [sys.executable, "-m", "edged.cli.main", "serve", "--socket", path, "--store", f"{folder}/m.db", *flags]
    process = subprocess.Popen(
        command, cwd=CHECKOUT, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, resource.RLIM_INFINITY)),
    )  # fmt: skip
    try:
        until(lambda: process.poll() is not None or is_ready(path))
        assert process.poll() is None, process.communicate()[1]
        yield process, path
    finally:
        process.kill()
        process.communicate()


def test_g08_signal_during_an_ingest(minilm_path: Path) -> None:
    """Exit 0 at once; the store is whole, and the document not in it; the next ingest goes on."""
    with tempfile.TemporaryDirectory(prefix="edged-") as folder:
        text = MANUAL.read_text("utf-8")
        long = "\n\n".join(text.replace("QV-310", f"QV-{n:03}") for n in range(6)).encode()
        with serving(folder, "--embedding-model", str(minilm_path)) as (process, path):
            transport = httpx.HTTPTransport(uds=path, verify=False)
            with httpx.Client(transport=transport, base_url="http://edged", timeout=PATIENCE) as http:
                assert http.post("/v1/chat/completions", json={"messages": []}).status_code == 404
                with http.stream("POST", "/v1/documents", params={"path": "/m/long.md"}, content=long) as response:
                    for line in response.iter_lines():
                        if '"stage":"embedding"' in line:
                            break
                    process.send_signal(signal.SIGTERM)
                    assert process.wait(STOP_WITHIN) == 0
        assert not os.path.lexists(path)
        store = Store(Path(folder, "m.db"))
        store.check()
        assert store.documents() == []
        store.close()


def test_a_disk_that_is_full_ends_an_ingest_by_name_and_the_daemon_goes_on(minilm_path: Path) -> None:
    small = b"# Fuses\n\nFuse F1 has 1.25 A, time lag."
    long = MANUAL.read_bytes()
    with tempfile.TemporaryDirectory(prefix="edged-") as folder:
        flags = ("--embedding-model", str(minilm_path))
        with serving(folder, *flags, largest_file=LARGEST) as (_, path):
            transport = httpx.HTTPTransport(uds=path, verify=False)
            with httpx.Client(transport=transport, base_url="http://edged", timeout=6 * PATIENCE) as http:
                def put(name: str, data: bytes) -> Any:
                    return parse_events(http.post("/v1/documents", params={"path": name}, content=data).text)

                assert put("/m/small.md", small)[-2]["document"]["outcome"] == "added"
                *_, failed = put("/m/long.md", long * 2)
                assert failed["error"]["code"] == "disk_full" and "m.db" in failed["error"]["message"], failed
                (row,) = http.get("/v1/documents").json()["data"]
                assert row["path"] == "/m/small.md"
                answer = http.post("/v1/ask", json={"question": "What current has fuse F1?"}).json()
                assert "Fuse F1 has 1.25 A, time lag." in [quote["text"] for quote in answer["quotes"]]
        store = Store(Path(folder, "m.db"))
        store.check()
        store.close()
        with serving(folder, *flags) as (_, path):  # there is room again
            transport = httpx.HTTPTransport(uds=path, verify=False)
            with httpx.Client(transport=transport, base_url="http://edged", timeout=6 * PATIENCE) as http:
                response = http.post("/v1/documents", params={"path": "/m/long.md"}, content=long * 2)
                assert parse_events(response.text)[-2]["document"]["outcome"] == "added"
