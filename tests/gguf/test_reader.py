"""Headers, valid and hostile: opens, or raises BadModel with the key or tensor in the message."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from edged import gguf
from edged.errors import BadModel, NotFound
from edged.gguf.reader import MAX_KEYS, MAX_TENSORS
from edged.gguf.values import StringArray
from edged.gguf.writer import encode_string
from tests.gguf import raw
from tests.gguf.limited import open_limited

STRING, ARRAY, U8 = 8, 9, 0


def refused(content: bytes) -> str:
    with pytest.raises(BadModel) as caught:
        raw.read(content)
    assert str(caught.value).startswith("x.gguf: ")
    return str(caught.value)


def model(**changes: object) -> bytes:
    """A valid file with one tensor `t` of four f32, other fields as given."""
    fields = {"name": "t", "shape": (4,), "type_id": raw.F32, "offset": 0, **changes}
    return raw.gguf([], [raw.tensor(**fields)], bytes(16))  # type: ignore[arg-type]


@pytest.mark.parametrize("version", [2, 3])
def test_reads_values_of_every_kind(version: int) -> None:
    values = {
        "u8": np.uint8(255), "i8": np.int8(-1), "u16": np.uint16(65535), "i16": np.int16(-2), "u32": 4294967295,
        "i32": -3, "f32": 0.5, "bool": True, "string": "größe", "u64": 1 << 63, "i64": -(1 << 63),
        "f64": np.float64(0.1),
    }  # fmt: skip
    header = raw.read(raw.gguf([raw.key(name, value) for name, value in values.items()], version=version))
    assert header.version == version
    assert header.meta == values
    assert [type(v) for v in header.meta.values()] == [int] * 6 + [float, bool, str, int, int, float]


def test_reads_arrays_over_the_file() -> None:
    values = {
        "a": np.arange(5, dtype="<i2"),
        "b": np.array([True, False]),
        "c": np.empty(0, "<f4"),
        "d": ["x", "", "ü"],
    }
    content = raw.gguf([raw.key(name, value) for name, value in values.items()])
    meta = raw.read(content).meta
    for name in "abc":
        np.testing.assert_array_equal(meta[name], values[name], strict=True)
        assert not meta[name].flags.owndata  # type: ignore[union-attr]
    assert isinstance(meta["d"], StringArray) and list(meta["d"]) == ["x", "", "ü"]


def test_reads_tensors(tmp_path: Path) -> None:
    rows = np.arange(12, dtype="<f4").reshape(3, 4)
    content = raw.gguf(
        [], [raw.tensor("a", (4, 3)), raw.tensor("b", (8,), 1, 64)], rows.tobytes() + bytes(16) + b"\7" * 16
    )
    with gguf.open(raw.save(tmp_path, content)) as opened:
        a, b = opened.tensors.values()
        assert (a.name, a.type_id, a.shape, a.nbytes) == ("a", 0, (4, 3), 48)
        assert (b.name, b.type_id, b.shape, b.nbytes, b.offset) == ("b", 1, (8,), 16, a.offset + 64)
        assert b.address - a.address == 64
        assert opened.tensor_bytes("a").tobytes() == rows.tobytes()
        assert opened.tensor_bytes("b").__array_interface__["data"][0] == b.address
        assert opened.tensor_bytes("b").tobytes() == b"\7" * 16


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "not a GGUF file"),
        (b"GGML" + bytes(60), "not a GGUF file: it starts with b'GGML'"),
        (raw.gguf(version=1), "version 1 is not supported"),
        (raw.gguf(version=3 << 24), "big-endian"),
        (raw.gguf(version=4), "version 4 is not supported"),
        (b"GGUF\3\0", "the version needs 4 bytes at offset 4, 2 are left"),
    ],
)
def test_refuses_other_formats(content: bytes, reason: str) -> None:
    assert reason in refused(content)


def test_refuses_what_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"no\.gguf: no such file"):
        gguf.open(tmp_path / "no.gguf")
    with pytest.raises(BadModel, match="not a regular file"):
        gguf.open(tmp_path)
    with pytest.raises(BadModel, match="empty"):
        gguf.open(raw.save(tmp_path, b""))
    with pytest.raises(BadModel, match="null"):
        gguf.open("a\0b")


def test_a01_a02_sizes_do_not_wrap_around(tmp_path: Path) -> None:
    shapes = [
        (1152, (1 << 42) + 1),
        ((1 << 63) - 1, 2, 1, 1),
        (1 << 63, 1),
        (1 << 32, 1 << 32),
        (1 << 62, 4),
        (1 << 63, 2),
    ]
    paths = [raw.save(tmp_path, model(name="blk.0.w", shape=s), f"{i}.gguf") for i, s in enumerate(shapes)]
    results, grown = open_limited(paths)
    for result in results:
        assert result.startswith("bad_model: ") and "tensor 'blk.0.w'" in result
        assert all(int(n) >= 0 for n in re.findall(r"-?\d+", result.split("tensor", 1)[1]))
    assert grown < 10 << 20


@pytest.mark.parametrize("shape", [(4, 0), (0,), (0, 0, 0, 0), ()])
def test_a04_zero_dimensions_are_refused(shape: tuple[int, ...]) -> None:
    assert "tensor 't'" in refused(model(shape=shape))


def test_more_than_four_dimensions_are_refused() -> None:
    assert "tensor 't' has 5 dimensions" in refused(model(shape=(1,) * 5))


@pytest.mark.parametrize(
    "value", [0, 1, 3, 24, 1 << 30, np.int32(32), np.uint64(32), "32", np.array([32], "<u4"), ["32"]]
)
def test_a05_odd_alignments_are_refused(value: object) -> None:
    assert "'general.alignment'" in refused(raw.gguf([raw.key("general.alignment", value)]))


@pytest.mark.parametrize("alignment", [8, 32, 64, 4096, 65536])
def test_a05_alignments_are_obeyed(alignment: int) -> None:
    keys = [raw.key("general.alignment", np.uint32(alignment))]
    rows = [raw.tensor("a", (2,)), raw.tensor("b", (2,), offset=alignment)]
    header = raw.read(raw.gguf(keys, rows, bytes(alignment + 8), alignment=alignment))
    assert header.tensors["a"].offset % alignment == 0
    assert header.tensors["b"].offset == header.tensors["a"].offset + alignment


def test_a06_counts_and_lengths_are_checked_before_use(tmp_path: Path) -> None:
    huge = 1 << 63
    hostile = {
        "u8 array": (raw.gguf([raw.array("k", U8, huge)]), "key 'k'"),
        "string array": (raw.gguf([raw.array("k", STRING, huge)]), "key 'k'"),
        "nested array": (raw.gguf([raw.array("k", ARRAY, huge)]), "key 'k'"),
        "string": (raw.gguf([encode_string("k") + raw.u32(STRING) + raw.u64(huge)]), "key 'k'"),
        "string in an array": (raw.gguf([raw.array("k", STRING, 2, encode_string("a") + raw.u64(huge))]), "key 'k'"),
        "last string of an array": (raw.gguf([raw.array("k", STRING, 2, encode_string("a") + raw.u64(1))]), "key 'k'"),
        "key": (raw.gguf([raw.u64(huge)]), "the name of key 0"),
        "keys": (raw.gguf(n_keys=huge), f"the number of keys is {huge}"),
        "5 * 10^8 keys": (raw.gguf(n_keys=500_000_000), "the number of keys is 500000000"),
        "tensors": (raw.gguf(n_tensors=huge), f"the number of tensors is {huge}"),
        "accepted numbers": (raw.gguf(n_keys=MAX_KEYS, n_tensors=MAX_TENSORS), "the name of key 0"),
        "array past the end": (raw.gguf([raw.array("k", STRING, 1 << 20, bytes(8 << 19))]), "key 'k'"),
    }
    paths = [raw.save(tmp_path, content, f"{i}.gguf") for i, (content, _) in enumerate(hostile.values())]
    results, grown = open_limited(paths)
    for (name, (_, where)), result in zip(hostile.items(), results, strict=True):
        assert result.startswith("bad_model: ") and where in result, (name, result)
    assert grown < 20 << 20


def test_arrays_of_arrays_are_refused() -> None:
    assert "key 'k' is an array of arrays" in refused(raw.gguf([raw.array("k", ARRAY, 1, raw.u32(U8) + raw.u64(0))]))


@pytest.mark.parametrize("kind", [13, 1 << 31])
def test_unknown_value_kinds_are_refused(kind: int) -> None:
    assert f"key 'k' has the unknown value type {kind}" in refused(raw.gguf([encode_string("k") + raw.u32(kind)]))
    assert f"unknown value type {kind}" in refused(raw.gguf([raw.array("k", kind, 1, bytes(8))]))


def test_bools_are_zero_or_one() -> None:
    assert "key 'k' is a bool of value 2" in refused(raw.gguf([encode_string("k") + raw.u32(7) + b"\2"]))
    assert "key 'k' holds a bool of value 7" in refused(raw.gguf([raw.array("k", 7, 3, b"\0\1\7")]))


@pytest.mark.parametrize("name", [b"", b"k" * 65536, b"k\0", b"\xff\xfe", b"a\nb", "a\u202eb".encode()])
def test_a07_odd_key_names_are_refused(name: bytes) -> None:
    message = refused(raw.gguf([raw.key(name, 1)]))
    assert "the name of key 0" in message
    assert message.isprintable()


def test_a07_values_that_are_no_utf8_are_shown_with_replacements() -> None:
    meta = raw.read(raw.gguf([raw.key("general.name", b"a\xffb"), raw.key("k" * 65535, [b"\xc0", b"\0"])])).meta
    assert meta["general.name"] == "a\ufffdb"
    assert list(meta["k" * 65535]) == ["\ufffd", "\0"]  # type: ignore[arg-type]


@pytest.mark.parametrize("extra", [1, 31, 4096])
def test_a14_bytes_after_the_last_tensor_are_ignored(extra: int) -> None:
    assert list(raw.read(model() + bytes(extra)).tensors) == ["t"]


def test_a14_offsets_must_be_aligned() -> None:
    assert "tensor 't' has the offset 4" in refused(model(offset=4) + bytes(4))


@pytest.mark.parametrize("type_id", [4, 5, 31, 32, 33, 36, 37, 38, 9999, (1 << 32) - 1])
def test_a17_types_unknown_or_withdrawn_are_refused(type_id: int) -> None:
    message = refused(model(name="blk.0.attn_q.weight", type_id=type_id))
    assert "tensor 'blk.0.attn_q.weight'" in message and f"type {type_id}" in message


def test_a19_duplicates_are_refused() -> None:
    assert "key 'k' occurs twice" in refused(raw.gguf([raw.key("k", 1), raw.key("k", 1)]))
    assert "tensor 't' occurs twice" in refused(raw.gguf([], [raw.tensor(), raw.tensor(offset=32)], bytes(48)))


def test_a19_overlapping_tensors_are_refused() -> None:
    overlapping = raw.gguf([], [raw.tensor("b", (9,), offset=32), raw.tensor("a", (9,))], bytes(128))
    assert "tensor 'b' overlaps tensor 'a'" in refused(overlapping)
    assert "overlaps" in refused(raw.gguf([], [raw.tensor("a"), raw.tensor("b")], bytes(128)))


def test_a19_tensors_in_any_order_and_with_gaps_are_no_duplicates() -> None:
    rows = [raw.tensor("b", (8,), offset=96), raw.tensor("a", (8,)), raw.tensor("A", (8,), offset=32)]
    assert list(raw.read(raw.gguf([], rows, bytes(128))).tensors) == ["b", "a", "A"]


def test_a20_rows_must_fill_blocks() -> None:
    message = refused(model(shape=(100, 4), type_id=12))
    assert "tensor 't': rows of 100 weights do not fill q4_k blocks of 256" in message


def test_names_from_the_file_are_escaped_and_cut_in_messages() -> None:
    assert "tensor 'a\\x1b[31m'" in refused(model(name="a\x1b[31m", shape=(0,)))
    assert len(refused(raw.gguf([encode_string("k" * 60000) + raw.u32(99)]))) < 200
    assert "at most 64" in refused(model(name="n" * 65))
    assert "the name of tensor 0 is empty" in refused(model(name=""))


def test_descriptions_hold_what_json_holds(tmp_path: Path) -> None:
    values = {"a": float("nan"), "b": np.array([0.5, -np.inf], np.float32), "c": ["x"] * 100, "d": True}
    path = raw.save(tmp_path, raw.gguf([raw.key(name, value) for name, value in values.items()]))
    with gguf.open(path) as opened:
        metadata = json.loads(json.dumps(gguf.describe(opened)["metadata"], allow_nan=False))
    assert metadata == [
        {"key": "a", "type": "f32", "value": "nan"},
        {"key": "b", "type": "f32", "length": 2, "first": [0.5, "-inf"]},
        {"key": "c", "type": "string", "length": 100, "first": ["x"] * 8},
        {"key": "d", "type": "bool", "value": True},
    ]
