"""A store with the model that fills and questions it, as one thing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edged.errors import BadStore, Busy, ContextFull, NotFound, OtherStore
from edged.rag import manuals as manuals_module
from edged.rag.answer import Answer
from edged.rag.manuals import Manuals
from edged.rag.store import Filter, Store
from tests.rag import manuals
from tests.rag.test_answer import PUMP

TEXT = ("# Pump\n\n" + "\n\n".join(f"## Part {i}\n\n{text}" for i, text in enumerate(PUMP, 1))).encode()


class Hashing:
    """An embedding model of hashed words; a token is a word."""

    dim = manuals.DIM
    pooling = "mean"

    def __init__(self, name: str = "hashing", n_ctx: int = 64) -> None:
        self.name = name
        self.fingerprint = f"fingerprint of {name}"
        self.n_ctx = n_ctx
        self.calls: list[tuple[list[str], bool]] = []

    def embed(self, texts: Sequence[str], background: bool = False) -> np.ndarray:
        assert all(self.count_tokens(text) <= self.n_ctx for text in texts)
        self.calls.append((list(texts), background))
        return manuals.embed(texts)

    def count_tokens(self, text: str) -> int:
        return len(text.split()) + 2


class GoneError(Exception):
    pass


def ask(manuals: Manuals, question: str, **options: Any) -> Answer:
    return manuals.quote(manuals.look(question, **options))


@pytest.fixture
def opened(tmp_path: Path) -> Manuals:
    return Manuals(tmp_path / "new" / "manuals.db", Hashing())


def test_a_store_comes_with_its_first_document(opened: Manuals) -> None:
    assert opened.documents() == []
    for use in (lambda: ask(opened, "a"), lambda: opened.search("a"), lambda: opened.remove(1)):
        with pytest.raises(NotFound, match="edged ingest"):
            use()
    assert not opened.path.parent.exists()
    done = opened.ingest("/m/pump.md", TEXT, product="pump")
    assert (done.outcome, done.chunks, done.embedded) == ("added", 5, 5)
    quotes = ask(opened, "What is the reset value of register CR2?").quotes
    assert ("Pump", "Part 4") in {quote.passage.headings for quote in quotes if "0x0018" in quote.text}
    with pytest.raises(NotFound, match=r"no document has the collection 'other' \(there are: default\)"):
        ask(opened, "What is the reset value of CR2?", only=Filter(collection="other"))
    assert [row.path for row in opened.documents(Filter(product="pump"))] == ["/m/pump.md"]
    assert opened.ingest("/m/pump.md", TEXT, product="pump").outcome == "unchanged"
    opened.remove(1)
    assert opened.documents() == [] and opened.search("reset") == []
    opened.close()
    opened.close()


def test_only_an_ingest_gives_way(opened: Manuals) -> None:
    opened.ingest("a.md", TEXT)
    ask(opened, "How often do I grease the bearings?")
    model = opened.embedding
    assert isinstance(model, Hashing) and [background for _, background in model.calls] == [True, False, False]


class BusyAtFirst(Hashing):
    """It has no room for an ingest's texts the first `left` times."""

    left = 5

    def embed(self, texts: Sequence[str], background: bool = False) -> np.ndarray:
        if background and self.left:
            self.left -= 1
            raise Busy("as many requests as are allowed")
        return super().embed(texts, background)


def test_an_ingest_waits_for_a_busy_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[int, int]] = []
    now = 0.0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    monkeypatch.setattr(manuals_module.time, "sleep", sleep)
    monkeypatch.setattr(manuals_module.time, "monotonic", lambda: now)
    opened = Manuals(tmp_path / "manuals.db", BusyAtFirst())
    opened.ingest("a.md", TEXT, progress=lambda done, total: told.append((done, total)))
    assert now == 5 and told[-7:] == [(0, 5)] * 6 + [(5, 5)]

    def gone(done: int, total: int) -> None:
        if now > 7:
            raise GoneError

    model = opened.embedding = BusyAtFirst()
    model.left = 10**6
    with pytest.raises(GoneError):
        opened.ingest("b.txt", b"one more", progress=gone)
    with pytest.raises(Busy):
        opened.ingest("b.txt", b"one more")
    assert now < 1000 and [row.path for row in opened.documents()] == ["a.md"]


def test_progress_begins_with_reading(opened: Manuals) -> None:
    told: list[tuple[int, int]] = []
    opened.ingest("a.md", TEXT, progress=lambda done, total: told.append((done, total)))
    assert told[0] == (0, 0) and told[-2:] == [(0, 5), (5, 5)] and set(told[:-2]) == {(0, 0)}


@pytest.mark.parametrize("at", [(0, 0), (0, 300), (32, 300), (256, 300), (300, 300)])
def test_an_ingest_ends_where_progress_raises(opened: Manuals, at: tuple[int, int]) -> None:
    """Nothing of it is found; done again it goes on where its vectors were kept."""
    body = "\n\n".join(f"## Part {i}\n\nText number {i}." for i in range(300)).encode()

    def progress(done: int, total: int) -> None:
        if (done, total) == at:
            raise GoneError

    with pytest.raises(GoneError):
        opened.ingest("a.md", body, progress=progress)
    assert opened.documents() == [] and opened.search("text") == []
    done = opened.ingest("a.md", body)
    assert (done.chunks, done.embedded) == (300, 300 if at[0] < 256 else 44)


@pytest.mark.parametrize(("chunk", "n_ctx", "most"), [(200, 40, 38), (20, 64, 18)])
def test_chunks_fit_the_model_and_the_setting(chunk: int, n_ctx: int, most: int, tmp_path: Path) -> None:
    opened = Manuals(tmp_path / "manuals.db", Hashing(n_ctx=n_ctx), chunk=chunk)
    opened.ingest("a.txt", " ".join(f"w{i}" for i in range(1000)).encode())
    sizes = [len(p.text.split()) for found in opened.search("w5", passages=50) for p in found.parts or (found,)]
    assert max(sizes) == most


def test_headings_longer_than_the_model_takes_are_left_out_of_the_vector(tmp_path: Path) -> None:
    opened = Manuals(tmp_path / "manuals.db", Hashing(n_ctx=20))
    long = " ".join(f"word{i}" for i in range(50))
    done = opened.ingest("a.md", f"# {long}\n\n## Grease\n\nGrease it with oil.\n\n{'x' * 99}".encode())
    assert done.outcome == "added"
    assert "oil" in ask(opened, "What do I grease it with?", least=0.1).text


def test_a_question_is_refused_not_cut(opened: Manuals) -> None:
    opened.ingest("a.md", TEXT)
    for use in (opened.search, opened.look):
        with pytest.raises(ContextFull, match="the question has 102 tokens; the embedding model hashing takes 64"):
            use("grease " * 100)
        with pytest.raises(ContextFull, match="20001 characters"):
            use("x" * 20_001)
    assert opened.search("") == [] and ask(opened, " ").refused


def test_F07_another_model_is_refused_at_each_opening(opened: Manuals) -> None:
    opened.ingest("a.md", TEXT)
    other = Manuals(opened.path, Hashing("other"))
    before = opened.path.read_bytes()
    for use in (lambda: other.search("a"), lambda: ask(other, "a"), lambda: other.ingest("b.md", TEXT)):
        with pytest.raises(OtherStore, match=r"filled by the embedding model hashing .*set embedding\.model"):
            use()
    assert [row.path for row in other.documents()] == ["a.md"] and opened.path.read_bytes() == before
    other.remove(1)
    assert opened.documents() == []


def test_the_model_is_compared_once_per_opening(opened: Manuals, monkeypatch: pytest.MonkeyPatch) -> None:
    opened.ingest("a.md", TEXT)
    opened.close()
    checks: list[object] = []
    check = Store.check_binding
    monkeypatch.setattr(Store, "check_binding", lambda *args: checks.append(args) or check(*args))
    for _ in range(3):
        opened.search("grease")
    assert len(checks) == 1


def test_without_a_model_words_are_searched(opened: Manuals) -> None:
    opened.ingest("a.md", TEXT)
    plain = Manuals(opened.path, None)
    assert "CR2" in plain.search("register CR2")[0].text and plain.search("register")[0].cosine == 0
    assert "0x0018" in ask(plain, "reset value of register CR2").text
    with pytest.raises(NotFound, match=r"embedding\.model"):
        plain.ingest("b.md", TEXT)


def test_what_was_removed_meanwhile_is_not_quoted(opened: Manuals) -> None:
    opened.ingest("a.md", TEXT)
    found = opened.look("What is the reset value of register CR2?")
    assert found.bearing
    Manuals(opened.path, None).remove(1)
    assert opened.quote(found).refused


def test_a_replaced_file_is_opened_anew_with_nothing_of_the_old(opened: Manuals, tmp_path: Path) -> None:
    """The old one's log lies beside the new file, and another Manuals still has it open."""
    opened.ingest("old.md", TEXT)
    second = Manuals(opened.path, Hashing())
    assert second.search("grease")
    other = Manuals(tmp_path / "other.db", Hashing())
    other.ingest("new.txt", b"The valve opens to the left.")
    other.close()
    other.path.replace(opened.path)
    for each in (opened, second, opened):
        assert [p.sources[0].path for p in each.search("grease valve")] == ["new.txt"]
    opened.ingest("third.txt", b"The fan needs no grease.")
    for each in (opened, second, Manuals(opened.path, Hashing())):
        assert {p.sources[0].path for p in each.search("grease valve")} == {"new.txt", "third.txt"}
    Store(opened.path).check()


def test_a_removed_file_is_gone_and_made_anew(opened: Manuals) -> None:
    opened.ingest("old.md", TEXT)
    opened.path.unlink()
    assert opened.documents() == []
    with pytest.raises(NotFound):
        opened.search("grease")
    opened.ingest("new.txt", b"The valve opens to the left.")
    assert [row.path for row in opened.documents()] == ["new.txt"]
    Store(opened.path).check()


def test_labels_stay_where_none_are_given(opened: Manuals) -> None:
    opened.ingest("/m/pump.md", TEXT, product="pump", version="2")
    assert opened.ingest("/m/pump.md", TEXT).outcome == "unchanged"
    opened.ingest("/m/pump.md", TEXT + b"\nMore.")
    assert [(row.product, row.version) for row in opened.documents()] == [("pump", "2")]
    opened.ingest("/m/pump.md", TEXT + b"\nMore.", product="")
    assert [(row.product, row.version) for row in opened.documents()] == [("", "2")]


def test_a_store_that_is_put_in_the_place_of_an_open_one_is_not_written_over(opened: Manuals, tmp_path: Path) -> None:
    """By a restored copy, while one thread has the old one open with a log and another looks for the first time."""
    other = Manuals(tmp_path / "other.db", opened.embedding)
    other.ingest("/m/other.md", b"# Fan\n\nThe fan turns left.")
    other.close()
    for i in range(4):
        opened.ingest(f"/m/{i}.md", TEXT + bytes([65 + i]) * 50)
    (tmp_path / "other.db").rename(opened.path)
    late = Manuals(opened.path, opened.embedding)
    assert [row.path for row in late.documents()] == ["/m/other.md"]
    assert opened.ingest("/m/new.md", b"# New\n\nIt is new.").outcome == "added"
    opened.close()
    late.close()
    store = Store(opened.path)
    store.check()
    assert [row.path for row in store.documents()] == ["/m/new.md", "/m/other.md"]
    store.close()


def test_a_store_that_is_removed_during_an_ingest_is_told(opened: Manuals) -> None:
    opened.ingest("/m/a.md", TEXT)

    def progress(done: int, total: int) -> None:
        for path in opened.path.parent.glob(f"{opened.path.name}*"):
            path.unlink()

    with pytest.raises(BadStore, match=r"was removed or replaced while /m/b\.md"):
        opened.ingest("/m/b.md", TEXT + b"\nMore.", progress=progress)
    assert opened.ingest("/m/b.md", TEXT).outcome == "added"
    assert [row.path for row in opened.documents()] == ["/m/b.md"]
