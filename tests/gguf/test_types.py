"""The size table, against the table of the `gguf` package and against edged's own kernels."""

from __future__ import annotations

import gguf as peer
import pytest

from edged import gguf
from edged.errors import BadModel
from edged.gguf.types import GGML_TYPES, TYPE_BY_NAME, WITHDRAWN, GgmlType
from edged.kernels.table import TYPES
from tests.gguf import raw

every_type = pytest.mark.parametrize("kind", GGML_TYPES.values(), ids=lambda kind: kind.name)


def test_every_type_of_the_peer_has_its_size() -> None:
    known = {t.value: (t.name.lower(), *peer.GGML_QUANT_SIZES[t]) for t in peer.GGMLQuantizationType}
    assert {i: (t.name, t.block, t.size) for i, t in GGML_TYPES.items() if i in known} == known
    assert not set(WITHDRAWN) & set(GGML_TYPES)


def test_types_with_kernels_have_the_same_sizes_there() -> None:
    for kind in TYPES:
        assert GGML_TYPES[kind.id] == GgmlType(kind.name, kind.id, kind.block, kind.size)
        assert TYPE_BY_NAME[kind.name].id == kind.id


@every_type
def test_a12_the_last_byte_of_a_tensor_is_the_last_of_the_file(kind: GgmlType) -> None:
    content = raw.gguf([], [raw.tensor(shape=(2 * kind.block, 3), type_id=kind.id)], bytes(6 * kind.size))
    assert raw.read(content).tensors["t"].nbytes == 6 * kind.size
    with pytest.raises(BadModel, match=f"tensor 't' ends at byte {len(content)}, the file has {len(content) - 1}"):
        raw.read(content[:-1])


@every_type
def test_a12_tensors_beyond_4_gib(kind: GgmlType, tmp_path) -> None:
    content = raw.gguf([], [raw.tensor(shape=(kind.block,), type_id=kind.id, offset=1 << 32)])
    path = raw.save(tmp_path, content)
    end = -(-len(content) // 32) * 32 + (1 << 32) + kind.size
    with path.open("r+b") as file:
        file.truncate(end)  # sparse: takes no room on the disk
        file.seek(end - 1)
        file.write(b"\x5a")
    with gguf.open(path) as model:
        assert model.tensors["t"].offset + kind.size == end
        assert model.tensor_bytes("t")[-1] == 0x5A
