"""A tiny BERT folder becomes a GGUF file; what is wrong in one is named."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import gguf as peer
import numpy as np
import pytest

import edged.gguf
import edged.tokenizers
from edged.convert import TYPES, convert
from edged.convert.bert import _IN_LAYER, _OUTSIDE
from edged.errors import BadModel, NotFound
from tests.convert.test_safetensors import pack

WIDTH, N_FF, N_CTX, VOCAB = 64, 96, 16, ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "##b", "##")
CONFIG = {
    "model_type": "bert", "hidden_size": WIDTH, "intermediate_size": N_FF, "num_hidden_layers": 1, "vocab_size": 8,
    "num_attention_heads": 2, "max_position_embeddings": N_CTX, "type_vocab_size": 2, "hidden_act": "gelu",
}  # fmt: skip


def weights() -> dict[str, np.ndarray]:
    """f32 tensors by their names in a checkpoint."""
    rng = np.random.default_rng(3)
    rows = {"word": 8, "position": N_CTX, "token_type": 2}
    found = {f"embeddings.{name}_embeddings.weight": rng.normal(size=(n, WIDTH)) for name, n in rows.items()}
    shapes = {"intermediate.dense": (N_FF, WIDTH), "output.dense": (WIDTH, N_FF)}
    for name in ("embeddings.LayerNorm", *(f"encoder.layer.0.{name}" for name in _IN_LAYER)):
        shape = shapes.get(name.removeprefix("encoder.layer.0."), (WIDTH, WIDTH))
        found[f"{name}.weight"] = rng.normal(size=shape[:1] if "LayerNorm" in name else shape)
        found[f"{name}.bias"] = rng.normal(size=shape[:1])
    found["pooler.dense.weight"] = rng.normal(size=(WIDTH, WIDTH))
    return {name: array.astype(np.float32) for name, array in found.items()}


def checkpoint() -> dict[str, bytes]:
    """The files of a complete model."""
    return {
        "config.json": json.dumps(CONFIG).encode(),
        "vocab.txt": "\n".join(VOCAB).encode() + b"\n",
        "1_Pooling/config.json": b'{"word_embedding_dimension": 64, "pooling_mode_cls_token": true}',
        "model.safetensors": pack(weights()),
    }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """`checkpoint` in a folder."""
    folder = tmp_path / "tiny-bert"
    for name, data in checkpoint().items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


def change(folder: Path, name: str, **fields: Any) -> None:
    path = folder / name
    path.write_text(json.dumps({**(json.loads(path.read_text()) if path.exists() else {}), **fields}))


@pytest.mark.parametrize("type", TYPES)
def test_every_type_equals_the_encoders_of_the_gguf_package(folder: Path, type: str) -> None:
    target = folder / "out.gguf"
    convert(folder, target, type)
    source = weights()
    expected = {f"{theirs}.weight": f"{ours}.weight" for theirs, ours in _OUTSIDE.items()}
    expected |= {f"encoder.layer.0.{theirs}.weight": f"blk.0.{ours}.weight" for theirs, ours in _IN_LAYER.items()}
    with edged.gguf.open(target) as model:
        assert model.meta["general.file_type"] == TYPES[type]
        assert len(model.tensors) == len(source) - 1  # without the pooler
        for theirs, ours in expected.items():
            tensor = model.tensors[ours]
            plain = theirs.endswith(("LayerNorm.weight", "position_embeddings.weight", "type_embeddings.weight"))
            kind = peer.GGMLQuantizationType[("f32" if plain else type).upper()]
            assert tensor.type_id == kind
            want = peer.quants.quantize(source[theirs], kind)
            assert bytes(model.tensor_bytes(ours)) == want.tobytes()
        assert model.tensors["blk.0.ffn_up.weight"].shape == (WIDTH, N_FF)


def test_metadata_and_vocabulary(folder: Path) -> None:
    change(folder, "tokenizer_config.json", do_lower_case=False, sep_token={"content": "[SEP]"})
    convert(folder, folder / "out.gguf", "f32")
    with edged.gguf.open(folder / "out.gguf") as model:
        meta = model.meta
        assert meta["general.architecture"] == "bert" and meta["general.name"] == "tiny-bert"
        assert meta["bert.pooling_type"] == 2 and meta["bert.attention.causal"] is False
        assert meta["bert.context_length"] == N_CTX and meta["bert.feed_forward_length"] == N_FF
        tokenizer = edged.tokenizers.open(meta)
        assert tokenizer.encode("ab A ##", add_special=True) == [2, 5, 6, 1, 1, 1, 3]


def test_the_same_source_gives_the_same_bytes_from_a_folder_and_from_a_wheel(folder: Path, tmp_path: Path) -> None:
    packed = tmp_path / "tiny_bert-1.0-py3-none-any.whl"
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, data in checkpoint().items():
            wheel.writestr(f"package/model/{name}", data)
    seen: list[tuple[int, int]] = []
    convert(folder, tmp_path / "a.gguf", "q8_0", lambda _, done, total: seen.append((done, total)))
    convert(packed, tmp_path / "b.gguf", "q8_0")
    a, b = (tmp_path / "a.gguf").read_bytes(), (tmp_path / "b.gguf").read_bytes()
    assert a.replace(b"tiny-bert", b"tiny_bert") == b
    assert seen[-1][0] == seen[-1][1] and seen == sorted(seen)


@pytest.mark.parametrize(
    ("name", "fields", "message"),
    [
        ("config.json", {"model_type": "t5"}, "model_type is 't5'"),
        ("config.json", {"hidden_act": "relu"}, "hidden_act is 'relu'"),
        ("config.json", {"num_hidden_layers": 0}, "num_hidden_layers is 0"),
        ("config.json", {"hidden_size": "64"}, "hidden_size is '64'"),
        ("config.json", {"vocab_size": 9}, "vocab.txt has 8 lines, vocab_size in config.json is 9"),
        ("config.json", {"layer_norm_eps": 0}, "layer_norm_eps is 0"),
        ("tokenizer_config.json", {"mask_token": "<mask>"}, "mask_token is '<mask>'"),
        ("1_Pooling/config.json", {"pooling_mode_max_tokens": True}, "pooling_mode_max_tokens"),
    ],
)
def test_wrong_settings_are_named(folder: Path, name: str, fields: dict[str, Any], message: str) -> None:
    change(folder, name, **fields)
    with pytest.raises(BadModel, match=message):
        convert(folder, folder / "out.gguf", "f16")
    assert not list(folder.glob("out*"))


@pytest.mark.parametrize(
    ("name", "array", "message"),
    [
        ("surprise.weight", np.zeros((2, 2), np.float32), "surprise.weight is none of a bert model"),
        ("encoder.layer.0.output.dense.weight", np.full((WIDTH, N_FF), 7e4, np.float32), "ffn_down.*no finite f16"),
        ("embeddings.LayerNorm.bias", np.full(WIDTH, np.nan, np.float32), "token_embd_norm.bias.*no finite f32"),
        ("embeddings.LayerNorm.bias", np.zeros(WIDTH, np.int32), "dtype I32; weights must be floats"),
        ("embeddings.LayerNorm.bias", np.zeros(0, np.float32), "is empty"),
    ],
)  # fmt: skip
def test_wrong_tensors_are_named(folder: Path, name: str, array: np.ndarray, message: str) -> None:
    (folder / "model.safetensors").write_bytes(pack({**weights(), name: array}))
    with pytest.raises(BadModel, match=message):
        convert(folder, folder / "out.gguf", "f16")


def test_missing_files_are_named(folder: Path, tmp_path: Path) -> None:
    (folder / "vocab.txt").unlink()
    with pytest.raises(NotFound, match=r"vocab\.txt"):
        convert(folder, folder / "out.gguf", "f16")
    with pytest.raises(NotFound, match="no such file or folder"):
        convert(tmp_path / "nowhere", folder / "out.gguf", "f16")
    with pytest.raises(BadModel, match="neither a folder nor a wheel"):
        convert(folder / "config.json", folder / "out.gguf", "f16")
    with zipfile.ZipFile(tmp_path / "empty.whl", "w") as wheel:
        wheel.writestr("config.json", "{}")
    with pytest.raises(BadModel, match="0 folders hold"):
        convert(tmp_path / "empty.whl", folder / "out.gguf", "f16")
    (folder / "config.json").write_text("[")
    with pytest.raises(BadModel, match=r"config\.json"):
        convert(folder, folder / "out.gguf", "f16")
