"""Ingest: what is there already is not embedded again, one bad file does not stop the others."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from edged.errors import BadDocument, NotReady
from edged.rag.document import Chunk, Document
from edged.rag.ingest import Done, ingest_one
from edged.rag.store import Store
from tests.rag import manuals


def read(name: str, data: bytes) -> Document:
    text = data.decode()
    if text.startswith("%broken"):
        raise BadDocument("no such format")
    return Document(name, text.replace("scanned", ""), (), (2,) if "scanned" in text else ())


def split(document: Document) -> list[Chunk]:
    return manuals.manual(document.text.split("\n"))[1] if document.text.strip() else []


def ingest(store: Store, name: str, text: str, **about: str) -> tuple[Done, int]:
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
    done, texts = ingest(store, "a", "\n".join(pages))
    assert done == Done("a", "added", 70, 70, 70) and texts == 70
    for name, outcome in (("a", "unchanged"), ("b", "added")):
        done, texts = ingest(store, name, "\n".join(pages))
        assert done == Done(name, outcome, 70, 0, 70) and texts == 0
    assert store.stats()["vectors"] == 70 and [s.path for s in store.chunks([1])[0].sources] == ["a", "b"]
    pages[7] = "another page"
    done, texts = ingest(store, "a", "\n".join(pages))
    assert (done.outcome, done.embedded, texts) == ("added", 1, 1)
    assert store.matching([["another"]], 5) and store.stats()["documents"] == 2
    store.check()
    assert ingest(store, "a", "\n".join(pages), version="2")[1] == 0
    assert store.chunks(store.matching([["another"]], 5))[0].sources[0].version == "2"


def test_one_name_in_two_collections_is_two_documents(tmp_path: Path) -> None:
    store = manuals.new(tmp_path)
    assert ingest(store, "a", "old pump")[0].outcome == "added"
    assert ingest(store, "a", "new pump", collection="new")[0].outcome == "added"
    assert [(row.collection, row.path) for row in store.documents()] == [("default", "a"), ("new", "a")]


def test_k04_k05_what_cannot_be_read_is_reported(tmp_path: Path) -> None:
    store = manuals.new(tmp_path)
    done = {name: ingest(store, name, text)[0] for name, text in
            {"broken": "%broken", "empty": "", "pictures": "scanned", "good": "a scanned page", "\udcff": "x"}.items()}
    assert [d.outcome for d in done.values()] == ["failed", "failed", "failed", "added", "failed"]
    assert "no such format" in done["broken"].error and done["empty"].error == "no text in it"
    assert "text recognition" in done["pictures"].error and done["pictures"].pages_without_text == (2,)
    assert done["good"].pages_without_text == (2,) and done["good"].pages == 2
    assert "Unicode" in done["\udcff"].error
    (row,) = store.documents()
    assert (row.path, row.blank, row.pages) == ("good", (2,), 2)


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
        return ingest_one(store, "a", text.encode(), read, split, embed, progress=lambda *p: told.append(p))

    with pytest.raises(NotReady):
        run()
    assert told[0] == (0, 1000) and told[-1] == (608, 1000)
    assert store.stats()["pending"] == 512 and store.stats()["documents"] == 0
    store.check()
    store.close()
    store = manuals.new(tmp_path)
    assert run() == Done("a", "added", 1000, 488, 1000)
    assert told[0] == (512, 1000) and told[-1] == (1000, 1000)
    assert store.stats()["pending"] == 0
    store.check()


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
for name, n in (("a", 300), ("b", 10), ("c", 10), ("a", 301)):
    ingest(store, name, "\\n".join(f"line {i} of {n}" for i in range(n)), collection="x")
manuals.remove(store, "b")
"""
