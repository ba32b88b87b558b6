"""A prefix that outlives the engine; and files that are not what they should be."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest

from edged import gguf
from edged.engine import promptfile
from edged.engine.kvcache import KVCache
from edged.engine.request import Done, Token
from tests import tiny
from tests.engine.running import answers, opened, request

WANTED = request(100, 6)


@pytest.fixture(scope="module", params=["llama", "gemma3"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write(tmp_path_factory.mktemp("tiny") / "model.gguf", request.param, "q8_0", n_ctx=512)


def ask(model: Path, file: Path | str, **config: object) -> tuple[list[Token], int]:
    """The answer of a new engine, and how many tokens of the prompt it found."""
    with opened(model, prompt_cache=str(file), **config) as engine:
        (answer,) = answers(engine, WANTED)
    assert isinstance(answer.end, Done)
    return answer.tokens, answer.end.usage.cached_tokens


def test_a_restart_finds_the_prefix(model: Path, tmp_path: Path) -> None:
    """The same answer bit for bit, also after a second restart and with less room."""
    file = tmp_path / "prompts.kv"
    cold, found = ask(model, "")
    assert found == 0
    assert [ask(model, file) for _ in range(3)] == [(cold, 0), (cold, 96), (cold, 96)]
    assert ask(model, file, prefix_cache=64) == (cold, 64)
    assert [path.name for path in tmp_path.iterdir()] == [file.name]


def test_generated_tokens_are_not_written(model: Path, tmp_path: Path) -> None:
    file = tmp_path / "prompts.kv"
    with opened(model, prompt_cache=str(file)) as engine:
        answers(engine, request(40, 100))
        assert engine.stats()["kv_blocks_kept"] == 4
    assert promptfile.HEAD.unpack_from(file.read_bytes())[2] == 1


def test_a_file_of_another_model_or_kernel_is_ignored(
    model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "prompts.kv"
    ask(model, file)
    other = tiny.write(tmp_path / "other.gguf", "llama", "q8_0", n_ctx=512, seed=1)
    cold = ask(other, "")
    assert ask(other, file) == cold
    assert [record.message for record in caplog.records] == [
        f"prompt cache {file} is ignored: it is of another model, build or setting"
    ]


def test_a_torn_or_changed_file_is_ignored(model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Cut anywhere, grown, or with one bit changed in any part: the answer is a cold one's, and one line says why."""
    file = tmp_path / "prompts.kv"
    cold, _ = ask(model, file)
    good = file.read_bytes()
    spoilt = [good[:n] for n in (0, 7, promptfile.HEAD.size - 1, promptfile.HEAD.size, len(good) // 2, len(good) - 1)]
    spoilt.append(good + b"\0")
    places = (0, 8, 40, 44, promptfile.HEAD.size, promptfile.HEAD.size + 4, len(good) // 2, len(good) - 1)
    spoilt += [good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :] for at in places]
    for data in spoilt:
        caplog.clear()
        file.write_bytes(data)
        assert ask(model, file) == (cold, 0)
        assert [record.levelno for record in caplog.records] == [logging.WARNING]
        assert file.read_bytes() == good  # the next restart has it again


def test_a_place_that_cannot_be_written_is_told_at_the_start_and_at_the_end(
    model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ask(model, tmp_path / "missing" / "prompts.kv")
    assert [record.message for record in caplog.records] == [
        f"prompt cache {tmp_path}/missing/prompts.kv cannot be kept: the folder is not there",
        f"prompt cache {tmp_path}/missing/prompts.kv is not written: No such file or directory",
    ]


def test_a_part_without_tensors_has_a_fingerprint(tmp_path: Path) -> None:
    """And its bytes count: split tools may leave the metadata in a file of its own."""
    marks = []
    for value in (1, 1, 2):
        first, second = gguf.Writer(), gguf.Writer()
        first.add("general.architecture", "llama")
        first.add("edged.test", np.uint32(value))
        second.add_tensor("blk.0.w", np.ones(4, np.float32))
        for no, writer in enumerate((first, second)):
            writer.add("split.no", np.uint16(no))
            writer.add("split.count", np.uint16(2))
            writer.add("split.tensors.count", np.int32(1))
            writer.write(tmp_path / f"m-{no + 1:05}-of-00002.gguf")
        with gguf.open(tmp_path / "m-00001-of-00002.gguf") as opened_model:
            cache = KVCache((), 32, 1, 32, 32, 0)
            marks.append(promptfile.fingerprint(opened_model, __file__, cache))
    assert marks[0] == marks[1] != marks[2]
