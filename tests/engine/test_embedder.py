"""Vectors of encoders: against a float64 forward pass on tiny models, and against golden vectors on a real one."""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from edged import engine, gguf, tokenizers
from edged.config import EmbeddingConfig, EngineConfig
from edged.engine import embedder
from edged.engine.batch import Rows
from edged.engine.embedder import MAX_TEXTS, Embedder
from edged.engine.machine import Machine
from edged.engine.request import Failed, Vectors
from edged.errors import BadConfig, BadModel, BadRequest, Busy, ContextFull, EdgedError, NotReady
from tests import reference, tiny
from tests.engine.test_machine import until

GOLDEN = json.loads((Path(__file__).parent.parent / "golden" / "minilm_dev.json").read_text())
LENGTHS = (1, 2, 15, 16, 17, 31, 32, 33, 200, 255, 256, 257, 511, 512)  # around tiles, cache blocks and partitions
RANDOM = np.random.default_rng(3)
TEXTS = [RANDOM.integers(0, tiny.N_VOCAB, n).tolist() for n in LENGTHS]


@contextmanager
def opened(path: Path, *, pooling: str = "", context: int = 0, **config: int) -> Iterator[Embedder]:
    with gguf.open(path) as model:
        made = embedder.open(EngineConfig(**config), model, embedding=EmbeddingConfig(pooling=pooling, context=context))
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


@pytest.mark.parametrize("pooling", ["mean", "cls", "last"])
@pytest.mark.parametrize("arch", ["llama", "gemma3"])
def test_f05_a_model_that_generates_makes_vectors_too(tmp_path: Path, arch: str, pooling: str) -> None:
    """Of its last hidden states, also of texts that take several steps and pass the window."""
    path = tiny.write(tmp_path / "m.gguf", arch, n_ctx=1024)
    texts = [*TEXTS[:-2], RANDOM.integers(0, tiny.N_VOCAB, 1024).tolist()]
    with opened(path, pooling=pooling) as made:
        assert made.info.pooling == pooling
        vectors = made.embed(texts)
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    cosines = [vector @ reference.embedding(path, text, pooling) for vector, text in zip(vectors, texts, strict=True)]
    assert min(cosines) >= 1 - 1e-6, cosines


def test_f05_pooling_is_read_from_the_file_or_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with opened(tiny.write(tmp_path / "a.gguf", "llama", meta={"llama.pooling_type": 3})) as made:
        assert made.info.pooling == "last" and not caplog.messages
    with opened(tiny.write(tmp_path / "b.gguf", "llama")) as made:
        assert made.info.pooling == "mean"
    assert "embedding.pooling is mean" in caplog.text
    path = tiny.write(tmp_path / "c.gguf", "llama", meta={"llama.pooling_type": 4})
    with gguf.open(path) as model, pytest.raises(BadModel, match=r"llama\.pooling_type is 4"):
        embedder.open(EngineConfig(), model)


@pytest.mark.parametrize(("arch", "kind"), [("bert", "f32"), ("bert", "q8_0"), ("llama", "q8_0")])
def test_f01_batch_equals_single(tmp_path: Path, arch: str, kind: str) -> None:
    """Bit for bit, in any company, at any place, with any number of threads; more texts than a step takes."""
    path = tiny.write(tmp_path / "m.gguf", arch, kind)
    texts = TEXTS + [[i] for i in range(70)]
    with opened(path, threads=1) as made:
        alone = np.concatenate([made.embed([text]) for text in texts])
    with opened(path, threads=2) as made:
        assert np.array_equal(made.embed(texts), alone)
        assert np.array_equal(made.embed(texts[::-1])[::-1], alone)
        assert made.embed([]).shape == (0, made.info.dim)


def test_refused(tmp_path: Path) -> None:
    """By name, with both numbers, and nothing is cut."""
    path = tiny.write(tmp_path / "m.gguf", "bert", n_ctx=64)
    with opened(path) as made:
        with pytest.raises(ContextFull, match=r"text 1 has 65 tokens, the model takes 64"):
            made.embed([[1], [1] * 65])
        for ids in ([], [-1], [tiny.N_VOCAB]):
            with pytest.raises(BadRequest):
                made.embed([ids])
    with pytest.raises(NotReady):
        made.embed([[1]])


def test_models_of_the_other_kind(tmp_path: Path) -> None:
    """An encoder generates nothing."""
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


def test_f02_a_text_without_a_vector_fails_its_request_alone(tmp_path: Path) -> None:
    path = tiny.write(tmp_path / "m.gguf", "bert")
    with opened(path) as made:
        run = made._runner.step

        def broken(decode: list[Rows], prompt: list[Rows]) -> bool:
            done = run(decode, prompt)
            start = 0
            for rows in prompt:
                if rows.tokens == [7, 7, 7]:
                    made._runner.logits[start] = np.nan
                start += len(rows.tokens)
            return done

        made._runner.step = broken  # type: ignore[method-assign]
        came: queue.SimpleQueue[Vectors | Failed] = queue.SimpleQueue()
        with made._changed:  # both at once
            made.submit([[1, 2], [3], [4], [7, 7, 7], [5]], came.put)
            made.submit([[1, 2], [3]], came.put)
        events = [came.get(timeout=10), came.get(timeout=10)]
        (failed,) = (event for event in events if isinstance(event, Failed))
        (fine,) = (event for event in events if isinstance(event, Vectors))
        assert failed.error.code == "model_fault" and "text 3" in failed.error.message
        assert np.isfinite(fine.vectors).all()
        assert made.embed([[1, 2]]).tobytes() == fine.vectors[:1].tobytes()
        assert made.stats()["failed_total"] == 1


def test_cancelled_and_closed(tmp_path: Path) -> None:
    """A request that nobody wants any more ends; closing fails what waits; the cache has all its slots again."""
    path = tiny.write(tmp_path / "m.gguf", "llama", n_ctx=512)
    with opened(path, pooling="mean") as made:
        came: queue.SimpleQueue[Vectors | Failed] = queue.SimpleQueue()
        with made._changed:
            job = made.submit([[1] * 500] * 100, came.put, background=True)
            job.cancel()
        event = came.get(timeout=10)
        assert isinstance(event, Failed) and event.error.code == "not_ready"
        assert made.embed([[1] * 500] * 40).shape == (40, made.info.dim)
        assert made.stats()["cancelled_total"] == 1 and made.stats()["waiting"] == 0
        assert made._runner.cache.used_bytes == 0
        with made._changed:
            made.submit([[1] * 500] * 100, came.put)
            made._closed = True
        assert isinstance(came.get(timeout=10), Failed)


def test_a_fault_of_edged_itself_leaves_nobody_waiting(tmp_path: Path) -> None:
    with opened(tiny.write(tmp_path / "m.gguf", "bert")) as made:
        run = made._runner.step

        def broken(decode: list[Rows], prompt: list[Rows]) -> bool:
            raise ZeroDivisionError

        made._runner.step = broken  # type: ignore[method-assign]
        with pytest.raises(EdgedError, match="ZeroDivisionError"):
            made.embed([[1]])
        made._runner.step = run  # type: ignore[method-assign]
        assert made.embed([[1]]).shape == (1, made.info.dim)


# -- several requests in one lane --------------------------------------------------------------------------------------


@pytest.mark.parametrize("background", [False, True])
def test_one_that_is_cancelled_does_not_stop_its_neighbours(tmp_path: Path, background: bool) -> None:
    """More texts than a step takes, on both sides of the one that leaves; then every slot and block is free."""
    with opened(tiny.write(tmp_path / "m.gguf", "bert")) as made:
        came: queue.SimpleQueue[Vectors | Failed] = queue.SimpleQueue()
        gone: queue.SimpleQueue[Vectors | Failed] = queue.SimpleQueue()
        with made._changed:
            made.submit([[1, 2]] * 70, came.put, background=background)
            leaving = made.submit([[3]] * 70, gone.put, background=background)
            made.submit([[4]] * 70, came.put, background=background)
        leaving.cancel()
        assert isinstance(gone.get(timeout=10), Failed)
        for _ in range(2):
            assert isinstance(came.get(timeout=10), Vectors)
        assert made.embed([[5]]).shape == (1, made.info.dim)
        assert made._runner.cache.used_bytes == 0


def test_f02_a_failed_text_does_not_stop_a_long_neighbour(tmp_path: Path) -> None:
    with opened(tiny.write(tmp_path / "m.gguf", "bert")) as made:
        run = made._runner.step

        def broken(decode: list[Rows], prompt: list[Rows]) -> bool:
            done = run(decode, prompt)
            start = 0
            for rows in prompt:
                if rows.tokens == [7, 7, 7]:
                    made._runner.logits[start] = np.nan
                start += len(rows.tokens)
            return done

        made._runner.step = broken  # type: ignore[method-assign]
        came: queue.SimpleQueue[Vectors | Failed] = queue.SimpleQueue()
        with made._changed:
            made.submit([[7, 7, 7], *[[1]] * 50], came.put)
            made.submit([[1, 2]] * 100, came.put)
        assert {type(came.get(timeout=10)) for _ in range(2)} == {Vectors, Failed}
        assert made.embed([[5]]).shape == (1, made.info.dim)


def test_many_threads_at_once(tmp_path: Path) -> None:
    with opened(tiny.write(tmp_path / "m.gguf", "bert"), threads=1) as made:
        wanted = made.embed([[1, 2, 3]]).tobytes()
        wrong: list[object] = []

        def ask() -> None:
            try:
                wrong.extend(vectors for _ in range(150) if (vectors := made.embed([[1, 2, 3]]).tobytes()) != wanted)
            except EdgedError as error:
                wrong.append(error)

        threads = [threading.Thread(target=ask) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong


def test_a_text_of_several_steps_that_is_cancelled_gives_all_back(tmp_path: Path) -> None:
    with opened(tiny.write(tmp_path / "m.gguf", "llama", n_ctx=2048), pooling="mean") as made:
        n_free = made._runner.cache.n_free
        for i in range(60):
            came: queue.SimpleQueue[Vectors | Failed] = queue.SimpleQueue()
            job = made.submit([[1] * 2000, [2] * 2000], came.put, background=bool(i % 2))
            threading.Event().wait(0.001 * (i % 7))
            job.cancel()
            came.get(timeout=10)
        assert made.embed([[1]]).shape == (1, made.info.dim)
        assert made._runner.cache.n_free == n_free
        assert len(made._runner.cache._free_slots) == MAX_TEXTS + 1


def test_nothing_is_computed_once_it_is_closed(tmp_path: Path) -> None:
    """However full its queues were: the weights may be gone."""
    path = tiny.write(tmp_path / "m.gguf", "bert")
    with gguf.open(path) as model:
        machine = Machine(EngineConfig(threads=1))
        made = embedder.open(EngineConfig(), model, machine=machine)
        machine.start()
        run, steps = made._runner.step, [0]

        def counted(decode: list[Rows], prompt: list[Rows]) -> bool:
            try:
                return run(decode, prompt)
            finally:
                steps[0] += 1

        made._runner.step = counted  # type: ignore[method-assign]
        came: queue.SimpleQueue[Vectors | Failed] = queue.SimpleQueue()
        for background in (False, True):
            for _ in range(5):
                made.submit([[1] * 100] * 50, came.put, background=background)
        until(lambda: steps[0] > 1)
        made.close()
        before = steps[0]
        assert [type(came.get(timeout=10)) for _ in range(10)]
        threading.Event().wait(0.05)
        assert steps[0] == before
        machine.close()


def test_a_sink_that_fails_is_its_own_fault(tmp_path: Path) -> None:
    with opened(tiny.write(tmp_path / "m.gguf", "bert")) as made:
        came: queue.SimpleQueue[Vectors | Failed] = queue.SimpleQueue()
        with made._changed:
            made.submit([[1]], lambda event: 1 / 0)  # type: ignore[arg-type, return-value]
            made.submit([[1]], came.put)
        assert isinstance(came.get(timeout=10), Vectors)
        assert made.embed([[1]]).shape == (1, made.info.dim)


def test_a_context_beyond_the_models_own_is_refused(tmp_path: Path) -> None:
    path = tiny.write(tmp_path / "m.gguf", "bert", n_ctx=64)
    with pytest.raises(BadConfig, match=r"embedding\.context is 65, .* takes 64"), opened(path, context=65):
        pass
    with opened(path, context=32) as made:
        assert made.info.n_ctx == 32


def test_what_fills_the_background_does_not_keep_a_question_out(tmp_path: Path) -> None:
    with opened(tiny.write(tmp_path / "m.gguf", "bert"), queue=0) as made:
        came: queue.SimpleQueue[Vectors | Failed] = queue.SimpleQueue()
        with made._changed:
            made.submit([[1] * 100] * 50, came.put, background=True)
            with pytest.raises(Busy):
                made.submit([[1]], came.put, background=True)
            made.submit([[1]], came.put)
        assert all(isinstance(came.get(timeout=10), Vectors) for _ in range(2))
