"""The engine's numbers against an independent float64 forward pass, by way of log-probabilities of all tokens."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edged.engine.request import Request, TopLogprobs
from edged.kernels.table import TYPES
from tests import reference, tiny
from tests.engine.running import GREEDY, answers, opened, prompt

POSITIONS = [0, 4, tiny.WINDOW - 1, tiny.WINDOW, tiny.WINDOW + 1, 31, 32, 40, 44]  # window of 8, cache blocks of 32
N = 45

EXACT = 1e-4  # of the range of the logits: f32 sums, f16 cache
INT8 = 2e-2  # activations in 8 bits
TOLERANCE = {"f32": EXACT, "f16": EXACT, "bf16": EXACT}


def rows(tops: tuple[TopLogprobs, ...] | list[TopLogprobs]) -> np.ndarray:
    """Log-probabilities by token: (positions, n_vocab)."""
    out = np.full((len(tops), tiny.N_VOCAB), np.nan)
    for row, top in zip(out, tops, strict=True):
        for id, logprob in top:
            row[id] = logprob
    return out


def prompt_rows(path: Path, tokens: tuple[int, ...], **config: int) -> np.ndarray:
    """Of each position of a prompt but the last, through the prompt kernels."""
    with opened(path, **config) as engine:
        wanted = Request(tokens, 0, top_logprobs=tiny.N_VOCAB, prompt_logprobs=True)
        (answer,) = answers(engine, wanted)
    return rows(answer.scores.tops)


def decode_rows(path: Path, n: int) -> tuple[list[int], np.ndarray]:
    """n tokens generated from a prompt of one, and the log-probabilities they were chosen from."""
    with opened(path) as engine:
        (answer,) = answers(engine, Request((7,), n, GREEDY, top_logprobs=tiny.N_VOCAB))
    return [7, *answer.ids], rows([token.top for token in answer.tokens])


def worst(got: np.ndarray, path: Path, tokens: list[int]) -> np.ndarray:
    """Largest error of each position, in units of the range of its logits."""
    logits = reference.forward(path, tokens)[: len(got)]
    peak = logits.max(-1, keepdims=True)
    expected = logits - peak - np.log(np.exp(logits - peak).sum(-1, keepdims=True))
    return np.abs(got - expected).max(-1) / np.ptp(expected, axis=-1)


@pytest.mark.parametrize("arch", ["llama", "gemma3"])
@pytest.mark.parametrize("tied", [True, False])
def test_l01_prompt_logits(tmp_path: Path, arch: str, tied: bool) -> None:
    """Before, at and past the window and the ends of cache blocks."""
    path = tiny.write(tmp_path / "model.gguf", arch, tied=tied)
    tokens = prompt(N + 1)
    assert worst(prompt_rows(path, tokens), path, list(tokens))[POSITIONS].max() < EXACT


@pytest.mark.parametrize("arch", ["llama", "gemma3"])
def test_l01_decode_logits(tmp_path: Path, arch: str) -> None:
    path = tiny.write(tmp_path / "model.gguf", arch)
    tokens, got = decode_rows(path, N)
    assert worst(got, path, tokens)[POSITIONS].max() < EXACT


def test_l01_long_prompt(tmp_path: Path) -> None:
    """Across partitions of the attention (256 positions) and steps of the prompt."""
    for arch in ("llama", "gemma3"):
        path = tiny.write(tmp_path / f"{arch}.gguf", arch)
        tokens = prompt(300)
        assert worst(prompt_rows(path, tokens, prefill_chunk=100), path, list(tokens)).max() < EXACT


@pytest.mark.parametrize("options", ["factors", "scaling", "bias", "softcap", "global_scaling"])
def test_options(tmp_path: Path, options: str) -> None:
    """What only some models of an architecture have."""
    change: dict[str, tiny.Change] = {
        "factors": lambda _, t: t.update({"rope_freqs.weight": np.geomspace(1, 8, 8, dtype=np.float32)}),
        "bias": lambda _, t: t.update({"blk.0.attn_q.bias": np.linspace(-1, 1, 64, dtype=np.float32),
                                       "blk.2.ffn_down.bias": np.linspace(1, -1, 64, dtype=np.float32)}),
    }  # fmt: skip
    meta = {
        "scaling": {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0},
        "softcap": {"gemma3.final_logit_softcapping": 12.0},
        "global_scaling": {"gemma3.rope.scaling.type": "linear", "gemma3.rope.scaling.factor": 8.0},
    }
    arch = "gemma3" if options in ("softcap", "global_scaling") else "llama"
    path = tiny.write(tmp_path / "model.gguf", arch, meta=meta.get(options), change=change.get(options))
    plain = tiny.write(tmp_path / "plain.gguf", arch)
    tokens = prompt(N + 1)
    got = prompt_rows(path, tokens)
    assert worst(got, path, list(tokens)).max() < EXACT
    assert worst(got, plain, list(tokens)).max() > 10 * EXACT, "the option changes nothing"


@pytest.mark.parametrize("kind", [t.name for t in TYPES])
def test_every_tensor_type(tmp_path: Path, kind: str) -> None:
    """All matrices of one type, on both paths; rows of 1024, and of 256, which K-quants need."""
    sizes = {"n_layers": 1, "n_embd": 1024, "n_ff": 256, "n_heads": 4, "n_heads_kv": 2, "head_dim": 64}
    path = tiny.write(tmp_path / "model.gguf", "llama", kind, **sizes)
    tokens = prompt(21)
    with opened(path) as engine:
        wanted = Request(tokens, 12, GREEDY, top_logprobs=tiny.N_VOCAB, prompt_logprobs=True)
        (answer,) = answers(engine, wanted)
    got = rows([*answer.scores.tops, *(token.top for token in answer.tokens)])
    assert worst(got, path, [*tokens, *answer.ids]).max() < TOLERANCE.get(kind, INT8)
