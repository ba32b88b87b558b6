"""The routes of manuals over a socket: stub models, a real store."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import numpy as np
import pytest

from edged.config import RagConfig
from edged.rag.store import Binding, Store
from tests.rag import manuals
from tests.rag.test_answer import PUMP
from tests.service.running import Running, parse_events, until
from tests.stub_engine import StubEmbedder, StubEngine

PUMP_MD = "# Pump\n\n" + "\n\n".join(f"## Part {i}\n\n{text}" for i, text in enumerate(PUMP, 1))
FAN_TXT = "The fan needs no grease at all.\n\nFault E-0x1F of the fan means dust."


def hashed(ids: list[int]) -> np.ndarray:
    """The vector of the text that the stub's tokens spell: near where texts share words."""
    vector = manuals.embed([bytes(i for i in ids if i < 256).decode("utf-8", "replace")])[0]
    return vector / max(float(np.linalg.norm(vector)), 1e-9)


def running(engine: StubEngine | None = None, **options: Any) -> Running:
    """A daemon with both stub models."""
    embedder = StubEmbedder(hashed, n_ctx=1000, dim=manuals.DIM)
    return Running(engine, **{"embedder": embedder, "rag": RagConfig(least=0.3), **options})


def ingest(daemon: Running, body: bytes | str, **query: str) -> list[Any]:
    """The events of an ingest."""
    with daemon.client() as client:
        response = client.post(f"/v1/documents?{urlencode(query)}", content=body)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    return parse_events(response.text)


def error_of(response: Any) -> tuple[int, str, str | None]:
    error = response.json()["error"]
    return response.status_code, error["code"], error["param"]


@pytest.fixture(scope="module")
def daemon() -> Iterator[Running]:
    """Holds two manuals, and copies of one."""
    with running() as daemon:
        ingest(daemon, PUMP_MD, path="/m/pump.md", product="pump", version="2")
        ingest(daemon, FAN_TXT, path="/m/fan.txt", product="fan")
        ingest(daemon, PUMP_MD, path="/m/copy.md", collection="old")
        yield daemon


def test_ingest_tells_how_far_it_is() -> None:
    with running() as daemon:
        events = ingest(daemon, PUMP_MD, path="/m/pump.md")
        assert events[0] == {"stage": "reading"}
        assert events[-1] == "[DONE]"
        assert events[-2] == {"document": {"path": "/m/pump.md", "outcome": "added", "chunks": 5, "embedded": 5,
                                           "pages": None, "pages_without_text": [], "error": ""}}
        assert all(set(e) == {"stage", "done", "total"} and e["stage"] == "embedding" for e in events[1:-2])
        again = ingest(daemon, PUMP_MD, path="/m/pump.md")
        assert [e if e == "[DONE]" else e["document"]["outcome"] for e in again] == ["unchanged", "[DONE]"]


def test_search(daemon: Running) -> None:
    found = daemon.post("/v1/search", {"query": "what does E-0x20 mean", "passages": 1}).json()
    assert found["object"] == "list"
    (passage,) = found["data"]
    assert passage["document"] == {"id": 1, "collection": "default", "path": "/m/pump.md", "title": "Pump",
                                   "product": "pump", "version": "2"}
    assert passage["also_in"] == [{"id": 3, "collection": "old", "path": "/m/copy.md", "title": "Pump", "product": "",
                                   "version": ""}]
    assert (passage["page"], passage["page_end"]) == (None, None)
    assert (passage["section"], passage["headings"]) == ("Part 3", ["Pump", "Part 3"])
    assert PUMP[2] in passage["text"] and passage["end"] - passage["start"] == len(passage["text"])
    assert passage["score"] > 0 and 0 < passage["cosine"] <= 1


def test_search_finds_within_its_filter(daemon: Running) -> None:
    def paths(**only: Any) -> set[str]:
        found = daemon.post("/v1/search", {"query": "fault E-0x1F grease", "passages": 50, **only}).json()["data"]
        return {source["path"] for p in found for source in (p["document"], *p["also_in"])}

    assert paths() == {"/m/pump.md", "/m/fan.txt", "/m/copy.md"}
    assert paths(collection="old") == paths(document="copy.md") == {"/m/copy.md"}
    assert paths(product="fan") == {"/m/fan.txt"} and paths(document="/m/fan.txt", version=None) == {"/m/fan.txt"}
    for only, told in (
        ({"collection": "nothing"}, "the collection 'nothing' (there are: default, old)"),
        ({"product": "pump", "version": "9"}, "the version '9' (there are: "),
        ({"product": "fan", "document": "pump.md"}, "document 'pump.md', product 'fan'"),
    ):
        response = daemon.post("/v1/search", {"query": "grease", **only})
        assert error_of(response)[:2] == (404, "not_found")
        assert response.json()["error"]["message"].startswith(f"no document has {told}")


@pytest.mark.parametrize("query", ["", "  ", '"', "NEAR(", "a:b", "*", "\x00", "E-0x1F", "C++"], ids=repr)
def test_J01_search_takes_any_text(daemon: Running, query: str) -> None:
    assert daemon.post("/v1/search", {"query": query}).status_code == 200


@pytest.mark.parametrize(("path", "fields", "param"), [
    ("/v1/search", {}, "query"),
    ("/v1/search", {"query": 1}, "query"),
    ("/v1/search", {"query": "a", "passages": 0}, "passages"),
    ("/v1/search", {"query": "a", "passages": 51}, "passages"),
    ("/v1/search", {"query": "a", "colection": "old"}, "colection"),
    ("/v1/search", {"query": "a", "collection": ["old"]}, "collection"),
    ("/v1/search", {"query": "a", "least": 0.5}, "least"),
    ("/v1/ask", {}, "question"),
    ("/v1/ask", {"question": ""}, "question"),
    ("/v1/ask", {"question": " \n\u3000"}, "question"),
    ("/v1/ask", {"question": "a", "answer": "invent"}, "answer"),
    ("/v1/ask", {"question": "a", "answer": 1}, "answer"),
    ("/v1/ask", {"question": "a", "least": 1.1}, "least"),
    ("/v1/ask", {"question": "a", "passages": True}, "passages"),
    ("/v1/ask", {"question": "a", "stream": 1}, "stream"),
    ("/v1/ask", {"question": "a", "max_tokens": 0}, "max_tokens"),
    ("/v1/ask", {"question": "a", "deadline": 0}, "deadline"),
    ("/v1/ask", {"question": "a", "temperature": 0}, "temperature"),
    ("/v1/ask", {"question": "a", "version": 2}, "version"),
], ids=lambda value: str(value)[:60])  # fmt: skip
def test_bad_fields_are_named(daemon: Running, path: str, fields: dict[str, Any], param: str) -> None:
    response = daemon.post(path, fields)
    status, _, named = error_of(response)
    assert (status, named) == (400, param) and param in response.json()["error"]["message"]


def test_D03_a_question_that_no_model_takes_whole_is_refused(daemon: Running) -> None:
    for path, field in (("/v1/search", "query"), ("/v1/ask", "question")):
        long = daemon.post(path, {field: "grease the pump " * 625})
        assert error_of(long)[:2] == (400, "context_length_exceeded")
        message = long.json()["error"]["message"]
        assert "10001 tokens" in message and "takes 1000 " in message
        assert "at most 20000" in daemon.post(path, {field: "x" * 20_001}).json()["error"]["message"]


def test_ask_quotes_the_manual(daemon: Running) -> None:
    asked = {"question": "What is the reset value of register CR2?", "collection": "default"}
    found = daemon.post("/v1/ask", asked).json()
    expected = {"object": "answer", "question": asked["question"], "refused": False, "mode": "extract",
                "dropped_sentences": 0, "dropped_passages": 0}  # fmt: skip
    assert {name: found[name] for name in expected} == expected
    assert "usage" not in found and 0.3 <= found["confidence"] <= 1
    quote = next(q for q in found["quotes"] if "0x0018" in q["text"])
    assert set(quote) == {"n", "text", "document", "page", "page_end", "section", "headings", "start", "end"}
    assert f"{quote['text']} [{quote['n']}]" in found["answer"]
    assert quote["document"]["path"] == "/m/pump.md" and quote["section"] == "Part 4"
    assert quote["headings"] == ["Pump", "Part 4"]
    held = next(p for p in found["passages"] if p["start"] <= quote["start"] and quote["end"] <= p["end"])
    assert held["text"][quote["start"] - held["start"] : quote["end"] - held["start"]] == quote["text"]


@pytest.mark.parametrize(("question", "only"), [
    ("What does fault E-0x77 mean?", {}),
    ("Who won the football game yesterday?", {}),
    ("What is the reset value of register CR2?", {"product": "fan"}),
    ("What is the reset value of register CR2?", {"least": 1}),
    ("?!", {}),
])  # fmt: skip
def test_K04_what_the_manuals_lack_is_refused(daemon: Running, question: str, only: dict[str, Any]) -> None:
    found = daemon.post("/v1/ask", {"question": question, **only}).json()
    assert (found["answer"], found["refused"], found["quotes"]) == ("not in the manuals", True, [])
    assert found["confidence"] < only.get("least", 0.3)


def test_ask_stream(daemon: Running) -> None:
    for question in ("What is the reset value of register CR2?", "Who won the football game yesterday?"):
        whole = daemon.post("/v1/ask", {"question": question}).json()
        passages, *deltas, last, done = daemon.events("/v1/ask", {"question": question})
        assert passages == {"passages": whole["passages"]}
        assert "".join(delta["delta"] for delta in deltas) == whole["answer"]
        assert last == {"answer": whole} and done == "[DONE]"


def test_documents(daemon: Running) -> None:
    found = daemon.get("/v1/documents").json()
    assert (found["object"], found["store"], found["embedding"]) == ("list", str(daemon.store), "stub-embedding")
    assert [row["path"] for row in found["data"]] == ["/m/fan.txt", "/m/pump.md", "/m/copy.md"]
    pump = found["data"][1]
    assert len(pump.pop("sha256")) == 64
    assert pump == {"id": 1, "collection": "default", "path": "/m/pump.md", "title": "Pump", "product": "pump",
                    "version": "2", "pages": None, "pages_without_text": [], "chunks": 5}
    for query, paths in {
        "collection=old": ["/m/copy.md"], "document=pump.md": ["/m/pump.md"], "product=fan": ["/m/fan.txt"],
        "product=fan&version=2": [], "collection=": ["/m/fan.txt", "/m/pump.md", "/m/copy.md"],
    }.items():  # fmt: skip
        assert [row["path"] for row in daemon.get(f"/v1/documents?{query}").json()["data"]] == paths
    assert error_of(daemon.get("/v1/documents?colection=old")) == (400, "unknown_parameter", "colection")


def test_a_document_is_replaced_and_removed() -> None:
    def found(query: str) -> int:
        return len(daemon.post("/v1/search", {"query": query}).json()["data"])

    with running() as daemon, daemon.client() as client:
        assert daemon.get("/v1/documents").json()["data"] == []  # no store yet
        assert not daemon.store.exists()
        ingest(daemon, PUMP_MD, path="a.md")
        ingest(daemon, "The valve opens to the left.", path="b.txt")
        replaced = ingest(daemon, PUMP_MD.replace("shaft", "rotor"), path="a.md", version="3")[-2]["document"]
        assert (replaced["outcome"], replaced["chunks"], replaced["embedded"]) == ("added", 5, 1)
        rows = {row["path"]: row for row in daemon.get("/v1/documents").json()["data"]}
        assert set(rows) == {"a.md", "b.txt"} and rows["a.md"]["version"] == "3"
        gone = client.delete(f"/v1/documents/{rows['a.md']['id']}")
        assert (gone.status_code, gone.json()) == (200, {"id": rows["a.md"]["id"], "deleted": True})
        assert found("rotor shaft E-0x20") == 1
        again = client.delete(f"/v1/documents/{rows['a.md']['id']}")
        assert error_of(again)[:2] == (404, "not_found") and str(rows["a.md"]["id"]) in again.text


def test_a_document_is_removed_while_another_is_taken_in() -> None:
    engine = StubEmbedder(hashed, n_ctx=1000, dim=manuals.DIM)
    with running(embedder=engine) as daemon:
        ingest(daemon, FAN_TXT, path="fan.txt")
        engine.hold()
        with daemon.client() as other, other.stream("POST", "/v1/documents?path=a.md", content=PUMP_MD) as response, \
             daemon.client() as client:
            engine.wait(lambda stats: stats["waiting"] == 1)
            assert client.delete("/v1/documents/1").json() == {"id": 1, "deleted": True}
            assert daemon.get("/v1/documents").json()["data"] == []
            engine.step()
            assert '"outcome":"added"' in response.read().decode()
        assert [row["path"] for row in daemon.get("/v1/documents").json()["data"]] == ["a.md"]


@pytest.mark.parametrize("name", ["", "x", "-1", "1.0", "1/2", "9" * 30, "\u0663", "%00"])
def test_only_ids_are_removed(daemon: Running, name: str) -> None:
    with daemon.client() as client:
        assert client.delete(f"/v1/documents/{name}").status_code == 404
    assert len(daemon.get("/v1/documents").json()["data"]) == 3


@pytest.mark.parametrize(("query", "param"), [
    ("", "path"), ("path=", "path"), ("path=%20", "path"), ("path=a%0Ab.md", "path"), ("path=a%00.md", "path"),
    ("path=a%1b[2J.md", "path"), (f"path={'x' * 1025}", "path"), ("path=a.md&collection=%07", "collection"),
    ("path=a.md&pages=3", "pages"),
])  # fmt: skip
def test_what_a_document_may_not_be_called(daemon: Running, query: str, param: str) -> None:
    with daemon.client() as client:
        response = client.post(f"/v1/documents?{query}", content=b"# A\n\nb")
    assert (response.status_code, error_of(response)[2]) == (400, param)
    assert len(daemon.get("/v1/documents").json()["data"]) == 3


def test_names_of_any_script_are_kept() -> None:
    name = "/m/\u8aac\u660e\u66f8 v\u202f2 & caf\u00e9+.md"
    with running() as daemon:
        assert ingest(daemon, "# A\n\nb", path=name)[-2]["document"]["path"] == name
        assert daemon.get("/v1/documents").json()["data"][0]["path"] == name


@pytest.mark.parametrize(("path", "body", "cause"), [
    ("a.xyz", b"x", "no reader"), ("a", b"x", "no reader"), ("a.txt", b"", "no text"), ("a.txt", b"gr\xfcn", "utf-8"),
    ("a.pdf", b"%PDF-1.4 broken", "a.pdf"),
])  # fmt: skip
def test_K05_a_document_that_cannot_be_read_says_why(daemon: Running, path: str, body: bytes, cause: str) -> None:
    document = ingest(daemon, body, path=path)[-2]["document"]
    assert document["outcome"] == "failed" and cause in document["error"] and document["chunks"] == 0
    assert len(daemon.get("/v1/documents").json()["data"]) == 3


def test_a_client_that_goes_away_ends_its_ingest() -> None:
    """Between two batches; the next document is stored as if nothing had been."""
    engine = StubEmbedder(hashed, n_ctx=1000, dim=manuals.DIM)
    with running(embedder=engine) as daemon:
        engine.hold()
        body = "\n\n".join(f"## Part {i}\n\nText of the part {i}." for i in range(200)).encode()
        client = daemon.connect()
        client.sendall(b"POST /v1/documents?path=a.md HTTP/1.1\r\nHost: e\r\nContent-Length: %d\r\n\r\n%s" % (
            len(body), body))  # fmt: skip
        seen = b""
        while b'"embedding"' not in seen:
            seen += client.recv(4096)
        client.close()
        until(lambda: daemon.daemon.counters()["dropped_total"] == 1)
        engine.step()
        assert ingest(daemon, PUMP_MD, path="b.md")[-2]["document"]["outcome"] == "added"
        assert [row["path"] for row in daemon.get("/v1/documents").json()["data"]] == ["b.md"]
        assert engine.stats()["texts_total"] < 150


def test_without_a_store_questions_are_refused_by_name() -> None:
    with running() as daemon, daemon.client() as client:
        for path, fields in (("/v1/search", {"query": "a"}), ("/v1/ask", {"question": "a"}),
                             ("/v1/ask", {"question": "a", "stream": True})):  # fmt: skip
            response = daemon.post(path, fields)
            assert error_of(response)[:2] == (404, "not_found")
            assert str(daemon.store) in response.text and "edged ingest" in response.text
        assert client.delete("/v1/documents/1").status_code == 404
        assert not daemon.store.exists()


def other_model(path: Path) -> None:
    store = Store(path, create=True)
    store.bind(Binding("other", "f" * 64, manuals.DIM, "mean"))
    manuals.put(store, "pump.md", *PUMP)
    store.close()


def of_version(version: int) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        manuals.new(path.parent).close()
        with closing(sqlite3.connect(path)) as db:
            db.execute(f"PRAGMA user_version = {version}")

    return make


def other_program(path: Path) -> None:
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE songs (name TEXT)")
        db.commit()


def damaged(path: Path) -> None:
    path.write_bytes(b"This is no database at all. " * 1000)


@pytest.mark.parametrize(("make", "status", "remedy"), [
    (other_model, 409, "set embedding.model to other"),
    (of_version(1), 409, "edged store migrate"),
    (of_version(99), 409, "install the newer edged"),
    (other_program, 409, "name another file"),
    (damaged, 500, "ingest the manuals again"),
], ids=["model", "older", "newer", "program", "damaged"])  # fmt: skip
def test_F07_a_store_that_is_not_ours_is_named_and_left_alone(make: Callable[[Path], None], status: int, remedy: str,
                                                              tmp_path: Path) -> None:
    path = tmp_path / "manuals.db"
    make(path)
    with running(rag=RagConfig(store=str(path))) as daemon:
        before = path.read_bytes()
        for response in (
            daemon.post("/v1/search", {"query": "motor"}),
            daemon.post("/v1/ask", {"question": "motor"}),
            daemon.post("/v1/ask", {"question": "motor", "stream": True}),
            daemon.post("/v1/documents?path=a.md", PUMP_MD.encode()),
            daemon.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "motor"}],
                                                 "edged": {"collection": "default"}}),
        ):  # fmt: skip
            assert response.status_code == status, response.text
            assert remedy in response.text and str(path) in response.text
            assert error_of(response)[1] == ("other_store" if status == 409 else "bad_store")
        assert path.read_bytes() == before


def test_F07_documents_of_another_model_can_be_listed_and_removed(tmp_path: Path) -> None:
    path = tmp_path / "manuals.db"
    other_model(path)
    with running(rag=RagConfig(store=str(path))) as daemon, daemon.client() as client:
        assert [row["path"] for row in daemon.get("/v1/documents").json()["data"]] == ["pump.md"]
        assert client.delete("/v1/documents/1").status_code == 200


def test_a_store_that_is_replaced_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "manuals.db"
    with running(rag=RagConfig(store=str(path))) as daemon:
        ingest(daemon, FAN_TXT, path="fan.txt")
        assert daemon.post("/v1/search", {"query": "valve"}).json()["data"][0]["document"]["path"] == "fan.txt"
        new = tmp_path / "new"
        new.mkdir()
        store = Store(new / "manuals.db", create=True)
        store.bind(Binding("stub-embedding", "0" * 64, manuals.DIM, "mean"))
        manuals.put(store, "valve.md", "The valve opens to the left.")
        store.close()
        (new / "manuals.db").replace(path)
        found = daemon.post("/v1/search", {"query": "valve"}).json()["data"]
        assert [p["document"]["path"] for p in found] == ["valve.md"]
        for part in tmp_path.glob("manuals.db*"):
            part.unlink()
        assert daemon.post("/v1/search", {"query": "valve"}).status_code == 404
        assert daemon.get("/v1/documents").json()["data"] == []


def test_without_an_embedding_model_it_is_refused_by_name() -> None:
    with Running() as daemon:
        for response in (daemon.post("/v1/search", {"query": "a"}), daemon.post("/v1/ask", {"question": "a"}),
                         daemon.get("/v1/documents"), daemon.post("/v1/documents?path=a.md", b"# A")):  # fmt: skip
            assert error_of(response)[:2] == (404, "model_not_found") and "embedding.model" in response.text


def test_an_embedding_model_alone_answers_with_quotes() -> None:
    with running(generates=False) as daemon:
        ingest(daemon, PUMP_MD, path="pump.md")
        asked = {"question": "How often do I grease the bearings?"}
        found = daemon.post("/v1/ask", {**asked, "answer": "auto"}).json()
        assert found["mode"] == "extract" and "4000 hours" in found["answer"]
        refused = daemon.post("/v1/ask", {**asked, "answer": "generate"})
        assert error_of(refused) == (400, "model_not_found", "answer")
        assert "model.path" in refused.text


def test_pages_are_told() -> None:
    with running() as daemon:
        body = "Set the valve.\n\fOil the pump.\n\n\f \fTurn the screw twice."
        done = ingest(daemon, body, path="a.txt")[-2]["document"]
        (row,) = daemon.get("/v1/documents").json()["data"]
        assert (done["pages"], done["pages_without_text"]) == (row["pages"], row["pages_without_text"])
        found = daemon.post("/v1/ask", {"question": "How often do I turn the screw?"}).json()
        quote = next(q for q in found["quotes"] if q["text"] == "Turn the screw twice.")
        assert quote["page"] <= 4 <= quote["page_end"] and quote["section"] == "" and quote["headings"] == []


def test_a_form_is_no_document(daemon: Running) -> None:
    with daemon.client() as client:
        response = client.post("/v1/documents?path=a.txt", files={"file": ("a.txt", b"The fuse has 2 A.")})
    assert response.status_code == 415 and "--data-binary" in response.json()["error"]["message"]
