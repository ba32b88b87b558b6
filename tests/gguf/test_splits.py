"""Models in several files: the whole set is opened, or refused at once with what is missing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edged import gguf
from edged.errors import BadModel


def write_part(
    folder: Path, no: int, count: int, *, name: str = "", tensor: str = "", total: int | None = None
) -> Path:
    """Part `no` (from 0) of `count`: one tensor blk.<no>.w of four floats of value `no`."""
    writer = gguf.Writer()
    if no == 0:
        writer.add("general.architecture", "llama")
    writer.add("split.no", np.uint16(no))
    writer.add("split.count", np.uint16(count))
    writer.add("split.tensors.count", np.int32(count if total is None else total))
    writer.add_tensor(tensor or f"blk.{no}.w", np.full(4, no, np.float32))
    path = folder / (name or f"m-{no + 1:05}-of-{count:05}.gguf")
    writer.write(path)
    return path


def refused(path: Path) -> str:
    with pytest.raises(BadModel) as caught:
        gguf.open(path)
    return str(caught.value)


@pytest.mark.parametrize("given", [0, 1, 2])
def test_a16_any_part_opens_the_set(tmp_path: Path, given: int) -> None:
    paths = [write_part(tmp_path, no, 3) for no in range(3)]
    with gguf.open(paths[given]) as model:
        assert model.meta["general.architecture"] == "llama"
        assert [part.path for part in model.parts] == list(map(str, paths))
        assert [(t.name, t.part) for t in model.tensors.values()] == [("blk.0.w", 0), ("blk.1.w", 1), ("blk.2.w", 2)]
        for no in range(3):
            assert model.tensor_bytes(f"blk.{no}.w").view("<f4").tolist() == [no] * 4
            assert (
                model.tensor_bytes(f"blk.{no}.w").__array_interface__["data"][0] == model.tensors[f"blk.{no}.w"].address
            )
        assert model.size == sum(path.stat().st_size for path in paths)


def test_a16_a_set_of_one_opens(tmp_path: Path) -> None:
    assert len(gguf.open(write_part(tmp_path, 0, 1)).tensors) == 1
    assert len(gguf.open(write_part(tmp_path, 0, 1, name="any.gguf")).tensors) == 1


@pytest.mark.parametrize("present", [0, 1])
def test_a16_missing_parts_are_named(tmp_path: Path, present: int) -> None:
    message = refused(write_part(tmp_path, present, 2))
    assert f"part {present + 1} of 2; missing beside it: m-0000{2 - present}-of-00002.gguf" in message


def test_a16_many_missing_parts_are_counted(tmp_path: Path) -> None:
    message = refused(write_part(tmp_path, 0, 9))
    assert "m-00002-of-00009.gguf, " in message and "and 4 more" in message


@pytest.mark.parametrize("name", ["other.gguf", "m-00001-of-00002.gguf", "m-00002-of-00003.gguf", "m-2-of-2.gguf"])
def test_a16_a_renamed_part_says_what_it_is(tmp_path: Path, name: str) -> None:
    message = refused(write_part(tmp_path, 1, 2, name=name))
    assert f"{name}: this is part 2 of 2, but its name says otherwise" in message
    assert "-00002-of-00002.gguf" in message


def test_a16_parts_must_belong_together(tmp_path: Path) -> None:
    first = write_part(tmp_path, 0, 2)
    write_part(tmp_path, 1, 3, name="m-00002-of-00002.gguf")
    assert "m-00002-of-00002.gguf: is part 2 of 3, expected part 2 of 2" in refused(first)


def test_a16_a_tensor_is_in_one_part_only(tmp_path: Path) -> None:
    write_part(tmp_path, 1, 2, tensor="blk.0.w")
    assert "tensor 'blk.0.w' is also in m-00001-of-00002.gguf" in refused(write_part(tmp_path, 0, 2))


def test_a16_the_set_must_be_complete(tmp_path: Path) -> None:
    write_part(tmp_path, 1, 2)
    assert "the 2 parts hold 2 tensors, split.tensors.count says 5" in refused(write_part(tmp_path, 0, 2, total=5))


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("split.count", "two", "'split.count' must be a number"),
        ("split.no", -1, "'split.no' must be a number"),
        ("split.no", 2, "claims to be part 3 of 2"),
        ("split.count", 65535, "at most 1024 parts"),
    ],
)
def test_a16_odd_split_keys_are_refused(tmp_path: Path, key: str, value: object, reason: str) -> None:
    writer = gguf.Writer()
    writer.add("split.no", 0)
    writer.add("split.count", 2)
    writer.add(key, value)
    path = tmp_path / "m-00001-of-00002.gguf"
    writer.write(path)
    assert reason in refused(path)
