"""The store: words found exactly, vectors exactly, changes wholly or not at all."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edged.errors import BadStore, NotFound, OtherStore
from edged.rag import database, schema
from edged.rag import nearest as nearest_module
from edged.rag import store as store_module
from edged.rag.search import search
from edged.rag.store import Binding, Content, Filter, Source, Store
from edged.rag.words import phrases
from tests.rag.manuals import BINDING, DIM, embed, manual, new, put, remove

LINES = [
    "Fault E-0x1F stops the drive", "Written in C++ and C", "don't open the lid", "Order number POL-358 applies",
    "Runs on release 20.04", "Supply of 3.3V at pin 4", "Pin PIO-1384 is reserved", "PIO of port 7 and 1384 others",
    "Firmware 1.0.21 adds a log", "See src/lib/i18n.ts there", "Call HAL_UART_Init first",
    "Register 0x4002_1000 resets",
    "Rail +3V3 feeds it", "Ask R&S for parts", "At most 50 \u00b5F here", "Pull up with 10 k\u03a9 there",
    "Family STM32F4xx only", "\u6e29\u5ea6\u904e\u9ad8\u30a8\u30e9\u30fc", "\u91cd\u8dd1gen-itgc\u540e",
    "con\ufb01g o\ufb00set",
]  # fmt: skip
QUERIES = {
    "E-0x1F": 0, "C++": 1, "don't": 2, "POL-358": 3, "20.04": 4, "3.3V": 5, "PIO-1384": 6, "1.0.21": 8,
    "src/lib/i18n.ts": 9, "HAL_UART_Init": 10, "0x4002_1000": 11, "+3V3": 12, "R&S": 13, "50 \u00b5F": 14,
    "10 k\u03a9": 15, "STM32F4xx": 16,
    "\u6e29": 17, "\u6e29\u5ea6": 17, "\u904e\u9ad8\u30a8": 17,
    "\u6e29\u5ea6\u904e\u9ad8": 17, "itgc": 18,
    "config": 19, "offset": 19,
}  # fmt: skip


def found(store: Store, query: str) -> list[int]:
    return store.matching(phrases(query), 10)


@pytest.mark.parametrize("query", QUERIES)
def test_j02_j04_k01_codes_and_cjk_hit_exactly_their_line(tmp_path: Path, query: str) -> None:
    store = new(tmp_path)
    put(store, "a", *LINES)
    for form in (query, f'"{query}"'):
        assert found(store, form) == [QUERIES[query] + 1], form


@pytest.mark.parametrize("query", ['"', "*", "-", "(", "AND", "NEAR(", "foo:bar", "", "  ", "a\0b", "'; DROP"])
def test_j01_any_input_is_searched_literally(tmp_path: Path, query: str) -> None:
    store = new(tmp_path)
    put(store, "a", *LINES)
    assert all(1 <= chunk <= len(LINES) for chunk in found(store, query))


@pytest.mark.parametrize("missing", ["fts5x(text)", "fts5(text, tokenize = 'no_such')"], ids=["module", "tokenizer"])
def test_j05_without_fts5_the_store_works_by_meaning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    monkeypatch.setattr(schema, "WORDS", f"CREATE VIRTUAL TABLE words USING {missing}")
    store = new(tmp_path)
    put(store, "a", *LINES)
    assert not store.has_words and found(store, "drive") == []
    assert store.nearest(embed(["Fault E-0x1F stops the drive"])[0], 1)[0][0] == 1
    store.check()


def test_j05_a_store_with_words_is_searched_without_fts5_and_not_changed(tmp_path: Path) -> None:
    store = new(tmp_path)
    put(store, "a", *LINES)
    store._db.run("PRAGMA writable_schema = 1")
    store._db.run("UPDATE sqlite_master SET sql = replace(sql, 'fts5', 'fts5x') WHERE name = 'words'")
    store.close()
    store = Store(tmp_path / "manuals.db")
    assert not store.has_words and search(store, embed, LINES[0], 1)[0].text == LINES[0]
    for change in (lambda: put(store, "b", "new"), lambda: remove(store, "a"), lambda: put(store, "b", *LINES)):
        with pytest.raises(OtherStore, match="FTS5"):
            change()
    assert store.stats()["documents"] == 1


def test_j07_sqlite_too_old_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database.sqlite3, "sqlite_version_info", (3, 27, 2))
    with pytest.raises(BadStore, match="too old"):
        Store(tmp_path / "x.db", create=True)


@pytest.mark.parametrize("keep", [0, 1 << 30], ids=["streamed", "kept"])
def test_nearest_is_exact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keep: int) -> None:
    monkeypatch.setattr(nearest_module, "KEEP", keep)
    rng = np.random.default_rng(1)
    vectors = rng.standard_normal((3000, DIM)).astype(np.float32)
    vectors[1000:1500] = vectors[999] + 0.01 * vectors[1000:1500]  # near ones, whose codes hardly differ
    document, chunks = manual([f"line {i}" for i in range(len(vectors))])
    store = new(tmp_path)
    store.put("a", Content("sha256", "plain"), document, chunks, vectors)
    unit = vectors.astype(np.float64) / np.linalg.norm(vectors.astype(np.float64), axis=1, keepdims=True)
    for query in (vectors[999], vectors[5], rng.standard_normal(DIM).astype(np.float32)):
        truth = np.argsort(-(unit @ query), kind="stable")[:10] + 1
        assert [chunk for chunk, _ in store.nearest(query, 10)] == truth.tolist()


def test_words_that_stand_everywhere_are_left_out_beside_rarer_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = new(tmp_path)
    put(store, "a", *[f"the pump of line {i}" for i in range(20)])
    assert len(store.matching([["the"], ["7"]], 50)) == 20
    monkeypatch.setattr(store_module, "RANKED", 10)
    assert store.matching([["the"], ["nowhere"], ["7"]], 50) == [8]
    assert len(store.matching([["the"]], 50)) == 20
    put(store, "b", "the other 7")
    assert store.frequency(["7"]) == 2 and set(store.matching([["the"], ["7"]], 50)) == {8, 21}
    assert store.holding([1, 8, 20, 21], ["7"]) == {8, 21}


def test_j08_length_of_vectors_does_not_matter(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    vectors = rng.standard_normal((50, DIM)).astype(np.float32)
    document, chunks = manual([f"line {i}" for i in range(50)])
    store = new(tmp_path)
    lengths = np.geomspace(0.1, 10, 50, dtype=np.float32)[:, None]
    store.put("a", Content("sha256", "plain"), document, chunks, vectors * lengths)
    for i in range(50):
        chunk, cosine = store.nearest(vectors[i] * 3, 1)[0]
        assert chunk == i + 1 and 1 - cosine < 1e-6


def test_j09_no_stale_hit_after_change_and_removal(tmp_path: Path) -> None:
    store = new(tmp_path)
    put(store, "other", *[f"filler {i}" for i in range(12)])
    put(store, "a", "alpha only", "common part")
    put(store, "a", "beta instead", "common part")
    store.check()
    assert found(store, "alpha") == [] and len(found(store, "beta")) == 1
    assert len(store.nearest(embed(["alpha only"])[0], 10)) == 10
    remove(store, "a")
    store.check()
    assert found(store, "beta") == [] and store.stats()["chunks"] == 12
    with pytest.raises(NotFound):
        store.remove(2)


def test_j10_equal_content_is_stored_once_and_named_twice(tmp_path: Path) -> None:
    store = new(tmp_path)
    put(store, "a", "alpha")
    put(store, "b", "alpha")
    put(store, "a", "alpha")
    assert store.stats()["vectors"] == 1
    assert [s.path for s in store.chunks([1])[0].sources] == ["a", "b"]
    remove(store, "a")
    assert found(store, "alpha") == [1]
    assert len(store.known_vectors(manual(["alpha", "new"])[1])) == 1


@pytest.mark.parametrize(("only", "right"), [
    (Filter(), [1, 2, 3]), (Filter(product="P2"), [2]), (Filter(product="P1", version="2"), []),
    (Filter(document="a_1.pdf"), [1, 3]), (Filter(document="/m/a_1.pdf"), [1]), (Filter(document="m/a_1.pdf"), []),
    (Filter(document="1.pdf"), []), (Filter(document="a%"), []), (Filter(collection="fans"), [3]),
    (Filter(collection="fans", document="/m/a_1.pdf"), []), (Filter(document="'"), []),
])  # fmt: skip
def test_filters(tmp_path: Path, only: Filter, right: list[int]) -> None:
    store = new(tmp_path)
    put(store, "/m/a_1.pdf", "alpha one", product="P1", version="1")
    put(store, "/m/ab1.pdf", "alpha two", product="P2", version="1")
    put(store, "a_1.pdf", "alpha three", collection="fans")
    assert sorted(store.matching([["alpha"]], 5, only)) == right
    assert sorted(chunk for chunk, _ in store.nearest(embed(["alpha"])[0], 5, only)) == right
    assert [row.id for row in store.documents(only)] == right
    assert [row["chunk"] for row in store.export(only)] == right


def test_sources_are_those_that_pass(tmp_path: Path) -> None:
    store = new(tmp_path)
    put(store, "/m/a.pdf", "alpha", product="P1", version="1")
    put(store, "/n/b.pdf", "alpha", collection="fans")
    a, b = Source("/m/a.pdf", "Manual", "P1", "1", "default", 1), Source("/n/b.pdf", "Manual", "", "", "fans", 2)
    assert store.chunks([1])[0].sources == (a, b)
    assert search(store, embed, "alpha", only=Filter(collection="fans"))[0].sources == (b,)


@pytest.mark.parametrize("other", [
    BINDING._replace(name="other", fingerprint="x"), BINDING._replace(dim=DIM + 32), BINDING._replace(pooling="cls"),
])  # fmt: skip
def test_another_embedding_model_is_refused(tmp_path: Path, other: Binding) -> None:
    store = new(tmp_path)
    put(store, "a", "alpha")
    for refuse in (store.bind, store.check_binding):
        with pytest.raises(BadStore, match=rf"by the embedding model hash .* not by {other.name}") as caught:
            refuse(other)
        assert "embedding.model to hash" in caught.value.hint
    assert store.binding() == BINDING and store.stats()["chunks"] == 1
    store.check_binding(BINDING._replace(name="the same by another name"))
