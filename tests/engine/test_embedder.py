"""Vectors of encoders: against a float64 forward pass on tiny models, and against golden vectors on a real one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from edged import engine, gguf, tokenizers
from edged.config import EngineConfig
from edged.engine import embedder
from edged.engine.embedder import Embedder
from edged.errors import BadModel, BadRequest, ContextFull, NotReady
from tests import reference, tiny

GOLDEN = json.loads((Path(__file__).parent.parent / "golden" / "minilm_dev.json").read_text())
LENGTHS = (1, 2, 15, 16, 17, 31, 32, 33, 200, 255, 256, 257, 511, 512)  # around tiles, cache blocks and partitions
RANDOM = np.random.default_rng(3)
TEXTS = [RANDOM.integers(0, tiny.N_VOCAB, n).tolist() for n in LENGTHS]


@contextmanager
def opened(path: Path, **config: int) -> Iterator[Embedder]:
    with gguf.open(path) as model:
        made = embedder.open(EngineConfig(**config), model)
        try:
            yield made
        finally:
            made.close()


@pytest.mark.parametrize(("number", "pooling"), [(1, "mean"), (2, "cls"), (3, "last")])
@pytest.mark.parametrize(("kind", "least"), [("f32", 1 - 1e-6), ("f16", 1 - 1e-6), ("q8_0", 0.999)])
def test_float64(tmp_path: Path, number: int, pooling: str, kind: str, least: float) -> None:
    """The same direction as the truth, at lengths around every bound inside."""
    path = tiny.write(tmp_path / "m.gguf", "bert", kind, meta={"bert.pooling_type": number})
    with opened(path) as made:
        vectors = made.embed(TEXTS)
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    cosines = [vector @ reference.embedding(path, text, pooling) for vector, text in zip(vectors, TEXTS, strict=True)]
    assert min(cosines) >= least, cosines


def test_later_tokens_are_seen(tmp_path: Path) -> None:
    """With cls pooling nothing else lets the last token change the vector."""
    path = tiny.write(tmp_path / "m.gguf", "bert", meta={"bert.pooling_type": 2})
    with opened(path) as made:
        a, b = made.embed([[1, 2, 3], [1, 2, 4]])
    assert a @ b < 0.9999


@pytest.mark.parametrize("kind", ["f32", "q8_0"])
def test_batch_equals_single(tmp_path: Path, kind: str) -> None:
    """Bit for bit, in any company, at any place, with any number of threads; more texts than a step takes."""
    path = tiny.write(tmp_path / "m.gguf", "bert", kind)
    texts = TEXTS + [[i] for i in range(70)]
    with opened(path, threads=1) as made:
        alone = np.concatenate([made.embed([text]) for text in texts])
    with opened(path, threads=2) as made:
        assert np.array_equal(made.embed(texts), alone)
        assert np.array_equal(made.embed(texts[::-1])[::-1], alone)
        assert made.embed([]).shape == (0, made.dim)


def test_refused(tmp_path: Path) -> None:
    """By name, with both numbers, and nothing is cut."""
    path = tiny.write(tmp_path / "m.gguf", "bert", n_ctx=64)
    with opened(path) as made:
        with pytest.raises(ContextFull, match=r"65 tokens, the model takes 64"):
            made.embed([[1], [1] * 65])
        for ids in ([], [-1], [tiny.N_VOCAB]):
            with pytest.raises(BadRequest):
                made.embed([ids])
    with pytest.raises(NotReady):
        made.embed([[1]])


def test_models_of_the_other_kind(tmp_path: Path) -> None:
    """A model that generates has no vectors here, an encoder generates nothing."""
    with gguf.open(tiny.write(tmp_path / "l.gguf", "llama")) as model, pytest.raises(BadModel, match="no embedding"):
        embedder.open(EngineConfig(), model)
    with gguf.open(tiny.write(tmp_path / "b.gguf", "bert")) as model, pytest.raises(BadModel, match="embeddings, no"):
        engine.open(EngineConfig(), model)
    path = tiny.write(tmp_path / "p.gguf", "bert", meta={"bert.pooling_type": 4})
    with gguf.open(path) as model, pytest.raises(BadModel, match=r"bert\.pooling_type is 4"):
        embedder.open(EngineConfig(), model)


def test_golden(minilm_path: Path) -> None:
    """all-MiniLM-L6-v2 in Q8_0 beside its float32 vectors.

    The empty text, which is nothing but [CLS] and [SEP], misses 0.999, as it does in llama.cpp with such a file.
    """
    with gguf.open(minilm_path) as model:
        tokenizer = tokenizers.open(model.meta)
        ids = [tokenizer.encode(case["text"], add_special=True) for case in GOLDEN]
    assert ids == [case["ids"] for case in GOLDEN]
    with opened(minilm_path) as made:
        vectors = made.embed(ids)
    for case, vector in zip(GOLDEN, vectors, strict=True):
        assert vector @ np.array(case["vec"]) >= (0.999 if case["text"] else 0.998), case["text"]
