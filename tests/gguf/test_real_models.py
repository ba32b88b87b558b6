"""The two catalogue models, compared field by field with the reader of the `gguf` package."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import gguf as peer
import numpy as np
import pytest

from edged import gguf
from edged.gguf.values import StringArray


@pytest.fixture(scope="module", params=["smollm2_path", "gemma3_path"])
def both(request: pytest.FixtureRequest) -> Iterator[tuple[gguf.Model, peer.GGUFReader]]:
    path: Path = request.getfixturevalue(request.param)
    with gguf.open(path) as model, pytest.MonkeyPatch.context() as patch:
        # slices of np.memmap are slow to make, and the peer makes two for each string
        patch.setattr(np, "memmap", lambda path, mode: np.fromfile(path, np.uint8))
        yield model, peer.GGUFReader(path)


def test_metadata_equal_the_peers(both: tuple[gguf.Model, peer.GGUFReader]) -> None:
    model, reader = both
    fields = {name: field for name, field in reader.fields.items() if not name.startswith("GGUF.")}
    assert list(model.meta) == list(fields)
    for name, field in fields.items():
        value = model.meta[name]
        if isinstance(value, StringArray):
            # as bytes: the peer makes an object per string, and an array of one byte each is what both can give
            theirs = [field.parts[i] for i in field.data]
            assert value.lengths.tolist() == [len(part) for part in theirs]
            ours = np.concatenate([value.buffer[o : o + n] for o, n in zip(value.offsets, value.lengths, strict=True)])
            np.testing.assert_array_equal(ours, np.concatenate(theirs))
            assert value[0] == field.contents(0) and value[-1] == field.contents(len(value) - 1)
        elif isinstance(value, np.ndarray):
            assert value.dtype == field.parts[field.data[0]].dtype
            np.testing.assert_array_equal(value, np.concatenate([field.parts[i] for i in field.data]))
        else:
            assert value == field.contents() and type(value) is type(field.contents())


def test_tensors_equal_the_peers(both: tuple[gguf.Model, peer.GGUFReader]) -> None:
    model, reader = both
    assert [(t.name, t.type_id, list(t.shape), t.offset, t.nbytes) for t in model.tensors.values()] == [
        (t.name, int(t.tensor_type), t.shape.tolist(), t.data_offset, t.n_bytes) for t in reader.tensors
    ]
    base = model.parts[0].address
    for theirs in reader.tensors:
        ours = model.tensors[theirs.name]
        assert ours.address == base + ours.offset
        assert np.array_equal(model.tensor_bytes(theirs.name), theirs.data.reshape(-1).view(np.uint8)), theirs.name


def test_description_is_plain_and_complete(both: tuple[gguf.Model, peer.GGUFReader]) -> None:
    model, reader = both
    described = json.loads(json.dumps(gguf.describe(model)))
    assert described["size"] == Path(model.path).stat().st_size
    assert [row["key"] for row in described["metadata"]] == list(model.meta)
    assert [row["name"] for row in described["tensors"]] == [t.name for t in reader.tensors]
    assert described["weights"] == sum(t.n_elements for t in reader.tensors)
    assert sum(row["bytes"] for row in described["types"]) == sum(t.n_bytes for t in reader.tensors)
    [tokens] = [row for row in described["metadata"] if row["key"] == "tokenizer.ggml.tokens"]
    assert tokens["type"] == "string" and tokens["length"] == len(model.meta["tokenizer.ggml.tokens"])  # type: ignore[arg-type]
    assert tokens["first"] == model.meta["tokenizer.ggml.tokens"][:8]  # type: ignore[index]
