"""The embedding model as the manuals know it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from edged.service import manuals


def test_what_was_counted_is_not_encoded_again(monkeypatch: Any) -> None:
    monkeypatch.setattr(manuals, "REMEMBERED", 3)
    encoded: list[str] = []
    info = SimpleNamespace(dim=1, pooling="mean", n_ctx=8)
    engine = SimpleNamespace(info=info, embed=lambda texts, background: texts)
    loaded: Any = SimpleNamespace(name="m", fingerprint="f", engine=engine, check=lambda: None,
                                  encode=lambda text: encoded.append(text) or [len(text)])  # fmt: skip
    embedding = manuals.Embedding(loaded)
    texts = ["a", "bb", "ccc"]
    assert [embedding.count_tokens(text) for text in texts] == [1, 1, 1]
    assert embedding.embed(texts) == [[1], [2], [3]] and encoded == texts
    embedding.count_tokens("a")
    embedding.count_tokens("dddd")  # for which the one that was not used for longest goes
    assert embedding.embed(["a", "ccc", "bb"]) == [[1], [3], [2]] and encoded == [*texts, "dddd", "bb"]
    embedding.count_tokens("x" * 5000)
    embedding.embed(["x" * 5000])
    assert encoded[-2:] == ["x" * 5000] * 2
