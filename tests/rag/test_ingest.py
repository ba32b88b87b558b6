"""Ingest: what is there already is not embedded again, one bad file does not stop the others."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from edged.errors import BadDocument, NotReady
from edged.rag import formats
from edged.rag import store as store_module
from edged.rag.document import Chunk, Document
from edged.rag.ingest import Done, ingest_one
from edged.rag.store import Store
from tests.rag import manuals

Read = Callable[[str, bytes], Document]


def read(name: str, data: bytes) -> Document:
    text = data.decode()
    if text.startswith("%broken"):
        raise BadDocument("no such format")
    return Document(name, text.replace("scanned", ""), (), (2,) if "scanned" in text else ())


def split(document: Document) -> list[Chunk]:
    return manuals.manual(document.text.split("\n"))[1] if document.text.strip() else []


def ingest(store: Store, name: str, text: str, read: Read = read, **about: str) -> tuple[Done, int]:
    """What became of it, and how many texts were embedded."""
    texts = 0

    def embed(batch: Sequence[str]) -> np.ndarray:
        nonlocal texts
        texts += len(batch)
        return manuals.embed(batch)

    return ingest_one(store, name, text.encode(), read, split, embed, **about), texts


def test_j10_only_what_is_new_is_embedded(tmp_path: Path) -> None:
    store = manuals.new(tmp_path)
    pages = [f"page {i} of it" for i in range(70)]
    done, texts = ingest(store, "a.txt", "\n".join(pages))
    assert done == Done("a.txt", "added", 70, 70, 70) and texts == 70
    for name, outcome in (("a.txt", "unchanged"), ("b.txt", "added")):
        done, texts = ingest(store, name, "\n".join(pages))
        assert done == Done(name, outcome, 70, 0, 70) and texts == 0
    assert store.stats()["vectors"] == 70 and [s.path for s in store.chunks([1])[0].sources] == ["a.txt", "b.txt"]
    pages[7] = "another page"
    done, texts = ingest(store, "a.txt", "\n".join(pages))
    assert (done.outcome, done.embedded, texts) == ("added", 1, 1)
    assert store.matching([["another"]], 5) and store.stats()["documents"] == 2
    store.check()
    assert ingest(store, "a.txt", "\n".join(pages), version="2")[1] == 0
    assert store.chunks(store.matching([["another"]], 5))[0].sources[0].version == "2"


def test_equal_bytes_in_two_formats_are_two_contents(tmp_path: Path) -> None:
    store = manuals.new(tmp_path)
    for name in ("a.txt", "a.html", "b.htm", "a.xyz"):
        ingest(store, name, "<p>Bleed", read=formats.parse)
    rows = store.documents()
    assert [(row.path, row.title) for row in rows] == [("a.html", "a"), ("a.txt", "a"), ("b.htm", "a")]
    texts = {s.path: stored.chunk.text for stored in store.chunks([1, 2]) for s in stored.sources}
    assert texts == {"a.txt": "<p>Bleed", "a.html": "Bleed", "b.htm": "Bleed"}
    assert len({row.sha256 for row in rows}) == 1 and store.stats()["contents"] == 2
    assert [ingest(store, row.path, "<p>Bleed")[0].outcome for row in rows] == ["unchanged"] * 3
    done, texts = ingest(store, "a.xyz", "<p>Bleed")
    assert done.outcome == "failed" and "no reader" in done.error
    store.check()


def test_one_name_in_two_collections_is_two_documents(tmp_path: Path) -> None:
    store = manuals.new(tmp_path)
    assert ingest(store, "a.txt", "old pump")[0].outcome == "added"
    assert ingest(store, "a.txt", "new pump", collection="new")[0].outcome == "added"
    assert ingest(store, "a.txt", "old pump", collection="")[0].outcome == "unchanged"  # none named is the default one
    assert [(row.collection, row.path) for row in store.documents()] == [("default", "a.txt"), ("new", "a.txt")]


def test_k04_k05_what_cannot_be_read_is_reported(tmp_path: Path) -> None:
    store = manuals.new(tmp_path)
    done = {name: ingest(store, name + ".txt", text)[0] for name, text in
            {"broken": "%broken", "empty": "", "pictures": "scanned", "good": "a scanned page", "\udcff": "x"}.items()}
    assert [d.outcome for d in done.values()] == ["failed", "failed", "failed", "added", "failed"]
    assert "no such format" in done["broken"].error and done["empty"].error == "no text in it"
    assert "text recognition" in done["pictures"].error and done["pictures"].pages_without_text == (2,)
    assert done["good"].pages_without_text == (2,) and done["good"].pages == 2
    assert "Unicode" in done["\udcff"].error
    (row,) = store.documents()
    assert (row.path, row.blank, row.pages) == ("good.txt", (2,), 2)


def test_j11_a_huge_manual_goes_on_where_it_was_cut_off(tmp_path: Path) -> None:
    store = manuals.new(tmp_path)
    text = "\n".join(f"line {i}" for i in range(1000))
    told: list[tuple[int, int]] = []
    left = 20

    def embed(batch: Sequence[str]) -> np.ndarray:
        nonlocal left
        left -= 1
        if not left:
            raise NotReady("stopping")
        return manuals.embed(batch)

    def run() -> Done:
        told.clear()
        return ingest_one(store, "a.txt", text.encode(), read, split, embed, progress=lambda *p: told.append(p))

    with pytest.raises(NotReady):
        run()
    assert told[0] == (0, 1000) and told[-1] == (608, 1000)
    assert store.stats()["pending"] == 512 and store.stats()["documents"] == 0
    store.check()
    store.close()
    store = manuals.new(tmp_path)
    assert run() == Done("a.txt", "added", 1000, 488, 1000)
    assert told[0] == (512, 1000) and told[-1] == (1000, 1000)
    assert store.stats()["pending"] == 0
    store.check()


def cut_off(store: Store, name: str, lines: int) -> None:
    """Begin to ingest a document, so that the vectors of its first 256 lines are kept."""
    def progress(done: int, total: int) -> None:
        if done >= 256:
            raise NotReady("stopping")

    text = "\n".join(f"line {i} of {name}" for i in range(lines)).encode()
    with pytest.raises(NotReady):
        ingest_one(store, name, text, read, split, manuals.embed, progress=progress)


def test_vectors_of_what_was_never_completed_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "UNFINISHED", 3)
    store = manuals.new(tmp_path)
    cut_off(store, "a.txt", 300)
    cut_off(store, "b.txt", 300)
    assert store.stats()["pending"] == 512
    ingest(store, "a.txt", "something else")  # it was changed since
    assert store.stats()["pending"] == 256
    ingest(store, "a.txt", "something else", collection="other")
    assert store.stats()["pending"] == 256
    ingest(store, "c.txt", "c")  # b.txt is not there any more
    assert store.stats()["pending"] == 0
    cut_off(store, "d.txt", 300)
    for number in (1, 2, 3):
        assert store.stats()["pending"] == 256
        store.remove(number)
    assert store.stats()["pending"] == 0


def test_equal_files_in_equal_order_make_equal_rows(tmp_path: Path) -> None:
    def rows(name: str) -> dict[str, list[tuple[object, ...]]]:
        (tmp_path / name).mkdir()
        subprocess.run([sys.executable, "-c", EQUAL, str(tmp_path / name)], check=True)
        db = sqlite3.connect(tmp_path / name / "manuals.db")
        tables = [row[0] for row in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {table: db.execute(f"SELECT * FROM {table}").fetchall() for table in tables}

    first = rows("first")
    assert first == rows("second") and len(first["chunks"]) > 300 and len(first["documents"]) == 2


EQUAL = """
import sys
from pathlib import Path
from tests.rag import manuals
from tests.rag.test_ingest import ingest
store = manuals.new(Path(sys.argv[1]))
for name, n in (("a.txt", 300), ("b.txt", 10), ("c.txt", 10), ("a.txt", 301)):
    ingest(store, name, "\\n".join(f"line {i} of {n}" for i in range(n)), collection="x")
manuals.remove(store, "b.txt")
"""
