"""What the writer writes is read back the same, by edged and by the `gguf` package."""

from __future__ import annotations

from pathlib import Path

import gguf as peer
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edged import gguf
from edged.errors import BadModel
from edged.gguf.writer import encode_value
from tests.gguf import raw

integers = st.integers(-(1 << 63), (1 << 64) - 1)
scalars = st.booleans() | integers | st.floats(width=32, allow_nan=False) | st.text(max_size=20)


@given(scalars)
def test_scalars_come_back(value: object) -> None:
    back = raw.read(raw.gguf([raw.key("k", value)])).meta["k"]
    assert back == value and type(back) is type(value)


@given(
    st.lists(st.integers(-(1 << 63), (1 << 63) - 1), max_size=8) | st.lists(st.integers(0, (1 << 64) - 1), max_size=8)
)
def test_integer_arrays_come_back_in_one_kind(numbers: list[int]) -> None:
    assert raw.read(raw.gguf([raw.key("k", numbers)])).meta["k"].tolist() == numbers  # type: ignore[union-attr]


def test_what_gguf_cannot_hold_is_refused() -> None:
    for value, error in ((1 << 64, OverflowError), ([-1, 1 << 63], OverflowError), ([1, "a"], TypeError),
                         (np.zeros((2, 2)), TypeError), (1j * np.ones(2), TypeError)):  # fmt: skip
        with pytest.raises(error):
            encode_value(value)
    writer = gguf.Writer()
    for shape in ((1024,), (100, 1), (256, 2)):
        with pytest.raises(BadModel, match="are no q4_k tensor of shape"):
            writer.add_tensor("t", bytes(144), "q4_k", shape)


def write(path: Path, **options: int) -> dict[str, np.ndarray]:
    """A model with values of all kinds and a few tensors, which it returns."""
    writer = gguf.Writer(**options)
    writer.add("general.architecture", "llama")
    writer.add("a.bool", False)
    writer.add("a.numbers", np.array([1.5, -2.5], np.float64))
    writer.add("a.words", ["a", "b c", ""])
    tensors = {
        "f32": np.arange(6, dtype=np.float32).reshape(2, 3),
        "f16": np.arange(5, dtype=np.float16),
        "i32": np.arange(24, dtype=np.int32).reshape(2, 3, 4)[:, ::-1],
        "q4_k": np.arange(288, dtype=np.uint8),
    }
    for name, value in tensors.items():
        writer.add_tensor(name, value, *(("q4_k", (256, 2)) if name == "q4_k" else ()))
    writer.write(path)
    return tensors


@pytest.mark.parametrize("alignment", [8, 32, 4096])
@pytest.mark.parametrize("version", [2, 3])
def test_tensors_come_back(tmp_path: Path, alignment: int, version: int) -> None:
    tensors = write(tmp_path / "m.gguf", alignment=alignment, version=version)
    with gguf.open(tmp_path / "m.gguf") as model:
        assert {name: model.tensor_bytes(name).tobytes() for name in model.tensors} == {
            name: value.tobytes() for name, value in tensors.items()
        }
        assert [t.shape for t in model.tensors.values()] == [(3, 2), (5,), (4, 3, 2), (256, 2)]
        assert all(t.offset % alignment == 0 for t in model.tensors.values())
        assert model.size == model.tensors["q4_k"].offset + 288


@pytest.mark.parametrize("alignment", [32, 64])
def test_the_peer_reads_it(tmp_path: Path, alignment: int) -> None:
    tensors = write(tmp_path / "m.gguf", alignment=alignment)
    reader = peer.GGUFReader(tmp_path / "m.gguf")
    assert reader.alignment == alignment
    assert reader.fields["a.words"].contents() == ["a", "b c", ""]
    assert {t.name: t.data.tobytes() for t in reader.tensors} == {n: v.tobytes() for n, v in tensors.items()}


def test_string_arrays_are_copied_from_file_to_file(tmp_path: Path) -> None:
    first = raw.read(raw.gguf([raw.key("k", [b"a", b"\xff", b""])])).meta["k"]
    assert encode_value(first) == encode_value([b"a", b"\xff", b""])


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m.gguf"
    write(path)
    before = path.read_bytes()

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        gguf.Writer().write(path)
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]
