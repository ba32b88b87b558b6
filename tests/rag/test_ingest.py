"""Ingest: what is there already is not embedded again, one bad file does not stop the others."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from edged.errors import BadRequest
from edged.rag import ingest as module
from edged.rag.document import Chunk, Document
from edged.rag.ingest import Done
from edged.rag.store import Store
from tests.rag import manuals


def read(path: Path) -> Document:
    text = path.read_text("utf-8")
    if text.startswith("%broken"):
        raise BadRequest("no such format")
    return Document(path.stem, text, (), (2,) if "scanned" in text else ())


def split(document: Document) -> list[Chunk]:
    return manuals.manual(document.text.split("\n"))[1] if document.text.strip() else []


def ingest(store: Store, *paths: Path, version: str = "") -> tuple[list[Done], int]:
    texts = 0

    def embed(batch: Sequence[str]) -> np.ndarray:
        nonlocal texts
        texts += len(batch)
        return manuals.embed(batch)

    return list(module.ingest(store, paths, read, split, embed, version=version)), texts


def test_J10_only_what_is_new_is_embedded(tmp_path: Path) -> None:
    store = manuals.new(tmp_path)
    a, b = tmp_path / "a.txt", tmp_path / "b.txt"
    pages = [f"page {i} of it" for i in range(70)]
    a.write_text("\n".join(pages))
    b.write_text("\n".join(pages))
    done, texts = ingest(store, a)
    assert (done[0].outcome, done[0].chunks, texts) == ("added", 70, 70)
    done, texts = ingest(store, a, b)
    assert [d.outcome for d in done] == ["unchanged", "unchanged"] and texts == 0
    assert store.stats()["vectors"] == 70 and len(store.chunks([1])[0].sources) == 2
    pages[7] = "another page"
    a.write_text("\n".join(pages))
    done, texts = ingest(store, a)
    assert (done[0].outcome, done[0].embedded, texts) == ("added", 1, 1)
    assert store.matching([["another"]], 5) and store.stats()["documents"] == 2
    store.check()
    assert ingest(store, a, version="2")[1] == 0
    assert store.chunks(store.matching([["another"]], 5))[0].sources[0].version == "2"


def test_K04_K05_what_cannot_be_read_is_reported(tmp_path: Path) -> None:
    store = manuals.new(tmp_path)
    texts = {"broken": "%broken", "empty": "", "good": "a scanned page", "binary": None}
    for name, text in texts.items():
        (tmp_path / name).write_text(text) if text is not None else (tmp_path / name).mkdir()
    done, _ = ingest(store, *[tmp_path / name for name in (*texts, "missing")])
    assert [d.outcome for d in done] == ["failed", "failed", "added", "failed", "failed"]
    assert "no such format" in done[0].error and "no text" in done[1].error and done[2].pages_without_text == (2,)
    assert store.stats()["documents"] == 1
