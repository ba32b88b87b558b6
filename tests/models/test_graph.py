"""Hyper-parameters and tensor tables that are wrong are refused by name; what is right becomes steps."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edged import engine, gguf, models
from edged.config import EngineConfig
from edged.errors import BadModel
from edged.models.blocks import Attend, Graph, Linear, Rotate
from tests import tiny

ARCHS = sorted(models.ARCHS)
DECODERS = [arch for arch in ARCHS if arch != "bert"]


def graph_of(path: Path) -> Graph:
    with gguf.open(path) as model:
        return models.graph(model.meta, model.tensors)


def refused(path: Path, arch: str, meta: dict[str, Any] | None = None, change: tiny.Change | None = None) -> str:
    """The message with which the model is refused."""
    with pytest.raises(BadModel) as caught:
        graph_of(tiny.write(path / "model.gguf", arch, meta=meta, change=change))
    return caught.value.message


@pytest.mark.parametrize("arch", DECODERS)
@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("block_count", 0),
        ("block_count", None),
        ("block_count", 2.0),
        ("block_count", True),
        ("attention.head_count", 0),
        ("attention.head_count", 1 << 40),
        ("attention.head_count_kv", 0),
        ("attention.head_count_kv", 3),
        ("attention.head_count_kv", [2, 2, 2]),
        ("attention.key_length", 0),
        ("attention.key_length", 12),
        ("attention.value_length", 8),
        ("rope.dimension_count", 15),
        ("rope.dimension_count", 4096),
        ("rope.freq_base", 0.0),
        ("rope.scaling.type", "yarn"),
        ("rope.scaling.type", [1, 2]),
        ("context_length", 0),
        ("embedding_length", 0),
        ("embedding_length", 100),
        ("feed_forward_length", 0),
        ("feed_forward_length", None),
        ("attention.layer_norm_rms_epsilon", None),
        ("attention.layer_norm_rms_epsilon", math.nan),
        ("attention.layer_norm_rms_epsilon", math.inf),
        ("attention.layer_norm_rms_epsilon", -1e-5),
    ],
)
def test_a20_a_wrong_hyper_parameter_is_named(tmp_path: Path, arch: str, key: str, value: Any) -> None:
    message = refused(tmp_path, arch, {f"{arch}.{key}": value})
    assert key.removesuffix("_kv").split(".")[-1] in message
    assert f"{arch}." in message


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("block_count", 0), ("attention.head_count", 0), ("attention.head_count_kv", 2), ("context_length", None),
        ("embedding_length", 100), ("feed_forward_length", None), ("attention.layer_norm_epsilon", None),
        ("attention.layer_norm_epsilon", math.nan), ("pooling_type", 0), ("pooling_type", 4), ("pooling_type", "mean"),
    ],
)  # fmt: skip
def test_a20_a_wrong_hyper_parameter_of_an_encoder_is_named(tmp_path: Path, key: str, value: Any) -> None:
    assert f"bert.{key}" in refused(tmp_path, "bert", {f"bert.{key}": value})


def test_a20_keys_of_one_architecture_only(tmp_path: Path) -> None:
    assert "llama.expert_count" in refused(tmp_path, "llama", {"llama.expert_count": 8})
    assert "llama.expert_count" in refused(tmp_path, "llama", {"llama.expert_count": [0, 0]})
    assert "gemma3.attention.sliding_window" in refused(tmp_path, "gemma3", {"gemma3.attention.sliding_window": 0})


def test_a20_embedding_rows_and_vocabulary_must_agree(tmp_path: Path) -> None:
    message = refused(tmp_path, "llama", {"tokenizer.ggml.tokens": ["a", "b", "c"]})
    assert message == "tensor token_embd.weight has the shape [64, 160], expected [64, 3]"


def test_a20_the_vocabulary_may_not_be_empty(tmp_path: Path) -> None:
    assert "tokenizer.ggml.tokens" in refused(tmp_path, "llama", {"tokenizer.ggml.tokens": []})


@pytest.mark.parametrize("name", ["mamba", "", 7, None])
def test_an_unknown_architecture_is_refused_with_those_known(tmp_path: Path, name: Any) -> None:
    message = refused(tmp_path, "llama", {"general.architecture": name})
    assert "general.architecture" in message
    assert "llama, gemma3" in message


@pytest.mark.parametrize("arch", ARCHS)
def test_a17_every_tensor_is_needed(tmp_path: Path, arch: str) -> None:
    with gguf.open(tiny.write(tmp_path / "whole.gguf", arch)) as model:
        names = list(model.tensors)
    for name in [name for name in names if not name.startswith("blk.") or name.startswith("blk.2.")]:

        def drop(_: dict[str, Any], tensors: dict[str, np.ndarray], name: str = name) -> None:
            del tensors[name]

        assert refused(tmp_path, arch, change=drop) == f"tensor {name} is missing"


@pytest.mark.parametrize("arch", ARCHS)
def test_a17_a_layer_past_the_block_count_is_named(tmp_path: Path, arch: str) -> None:
    """Not only a warning: what is left of the model would answer nonsense."""
    n_layers = tiny.SIZES[arch]["n_layers"]
    message = refused(tmp_path, arch, {f"{arch}.block_count": n_layers - 1})
    assert message.startswith(f"tensor blk.{n_layers - 1}.")


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("name", ["blk.0.ffn_up.weight", "blk.1.ffn_down.weight", "token_embd.weight"])
def test_a17_a_transposed_tensor_is_named(tmp_path: Path, arch: str, name: str) -> None:
    def transpose(_: dict[str, Any], tensors: dict[str, np.ndarray]) -> None:
        tensors[name] = tensors[name].T

    assert f"tensor {name} has the shape" in refused(tmp_path, arch, change=transpose)


def test_a17_a_type_without_kernels_is_named(tmp_path: Path) -> None:
    """Types that GGUF has but edged does not compute with: the reader lets them through, the plan does not."""
    from edged.gguf.types import TYPE_BY_NAME

    path = tiny.write(tmp_path / "model.gguf", "llama", "q4_0")
    with gguf.open(path) as model:
        name = "blk.1.attn_q.weight"
        model.tensors[name] = model.tensors[name]._replace(type_id=TYPE_BY_NAME["q8_1"].id)
        with pytest.raises(BadModel) as caught:
            engine.open(EngineConfig(), model, thread=False)
    assert caught.value.message == f"tensor {name} has type id 9, for which there are no kernels"
    assert "q4_k" in caught.value.hint


def test_a17_a_norm_must_be_f32(tmp_path: Path) -> None:
    def halve(_: dict[str, Any], tensors: dict[str, np.ndarray]) -> None:
        tensors["blk.0.ffn_norm.weight"] = tensors["blk.0.ffn_norm.weight"].astype(np.float16)

    with gguf.open(tiny.write(tmp_path / "model.gguf", change=halve)) as model, pytest.raises(BadModel) as caught:
        engine.open(EngineConfig(), model, thread=False)
    assert caught.value.message.startswith("tensor blk.0.ffn_norm.weight has the type f16")


def test_a17_unknown_tensors_give_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def more(_: dict[str, Any], tensors: dict[str, np.ndarray]) -> None:
        tensors["blk.0.unheard_of.weight"] = np.zeros(32, np.float32)

    with gguf.open(tiny.write(tmp_path / "model.gguf", change=more)) as model, caplog.at_level(logging.WARNING):
        engine.open(EngineConfig(), model, thread=False).close()
    assert "blk.0.unheard_of.weight" in caplog.text


def steps(graph: Graph, kind: Callable[..., Any]) -> list[Any]:
    return [step for step in graph.steps if type(step) is kind]


def test_llama_options(tmp_path: Path) -> None:
    """Tied or not, biases, rope factors and linear scaling."""

    def extend(_: dict[str, Any], tensors: dict[str, np.ndarray]) -> None:
        tensors["blk.1.attn_q.bias"] = np.ones(64, np.float32)
        tensors["rope_freqs.weight"] = np.ones(8, np.float32)

    scaling = {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}
    graph = graph_of(tiny.write(tmp_path / "a.gguf", change=extend, tied=False, meta=scaling))
    assert [step.bias for step in steps(graph, Linear) if step.bias] == ["blk.1.attn_q.bias"]
    assert graph.steps[-1] == steps(graph, Linear)[-1]
    assert steps(graph, Linear)[-1].weight == "output.weight"
    assert [(rope.factors, rope.scale, rope.neox) for rope in graph.ropes] == [("rope_freqs.weight", 0.25, False)]
    assert graph.unused == ()

    tied = graph_of(tiny.write(tmp_path / "b.gguf"))
    assert steps(tied, Linear)[-1].weight == "token_embd.weight"
    old = graph_of(tiny.write(tmp_path / "c.gguf", meta={"llama.rope.scale_linear": 2.0}))
    assert old.ropes[0].scale == 0.5


def test_gemma3_layers(tmp_path: Path) -> None:
    """Five local layers, then a global one; scaling is for the global ones only."""
    graph = graph_of(tiny.write(tmp_path / "a.gguf", "gemma3", meta={"gemma3.rope.scaling.factor": 8.0}))
    assert [step.group for step in steps(graph, Attend)] == [0, 0, 0, 0, 0, 1] * 2
    assert [step.rope for step in steps(graph, Rotate)] == ([0] * 10 + [1] * 2) * 2
    assert [(group.n_layers, group.window) for group in graph.groups] == [(10, tiny.WINDOW), (2, 0)]
    assert [(rope.base, rope.scale, rope.neox) for rope in graph.ropes] == [(1e4, 1.0, True), (1e6, 0.125, True)]


@pytest.mark.parametrize(("n_layers", "scale"), [(12, 32**-0.5), (62, 16**-0.5)])
def test_gemma3_27b_scales_its_queries_otherwise(tmp_path: Path, n_layers: int, scale: float) -> None:
    graph = graph_of(tiny.write(tmp_path / "a.gguf", "gemma3", n_layers=n_layers))
    assert {step.scale for step in steps(graph, Attend)} == {scale}
