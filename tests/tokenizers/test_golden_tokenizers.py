"""Ids are those of llama.cpp: on the golden prompts, and on awkward texts for every tokenizer family."""

from __future__ import annotations

from pathlib import Path

import pytest

from edged.tokenizers import Tokenizer
from tests.tokenizers.vocabularies import golden, of_file, small

# llama.cpp lets merges of plain text end in a control token here; edged never does (B01)
FORGED_BY_MERGES = {"no space prefix": ("<s>", "</s> x")}


@pytest.fixture(params=["smollm2", "gemma3"])
def real(request: pytest.FixtureRequest) -> tuple[str, Tokenizer]:
    path: Path = request.getfixturevalue(f"{request.param}_path")
    return request.param, of_file(path)


def test_golden_prompts(real: tuple[str, Tokenizer]) -> None:
    name, tokenizer = real
    for case in golden(f"{name}_dev"):
        assert tokenizer.encode(case["prompt"], add_special=True) == case["prompt_ids"]
        assert tokenizer.decode(case["prompt_ids"]) == case["prompt"]


def test_golden_long_prompts(real: tuple[str, Tokenizer]) -> None:
    name, tokenizer = real
    for case in golden(f"{name}_long_dev")["cases"]:
        assert tokenizer.encode(tokenizer.decode(case["prompt_ids"]), add_special=True) == case["prompt_ids"]


def test_golden_answers_stream(real: tuple[str, Tokenizer]) -> None:
    name, tokenizer = real
    # llama.cpp reports only the last token of a character made of several: such a case is shorter, and of no use here
    complete = [case for case in golden(f"{name}_dev") if len(case["steps"]) == 48]
    assert len(complete) >= 7
    for case in complete:
        stream = tokenizer.stream()
        text = "".join(stream.push(step["id"]) for step in case["steps"]) + stream.finish()
        assert text == case["text"]


def test_golden_ids_of_wordpiece(minilm_path: Path) -> None:
    for case in golden("minilm_dev"):
        assert of_file(minilm_path).encode(case["text"], add_special=True) == case["ids"], ascii(case["text"])


def test_b10_real_vocabularies(real: tuple[str, Tokenizer]) -> None:
    name, tokenizer = real
    check(tokenizer, golden("tokenizers")[name], ())


@pytest.mark.parametrize("rule", golden("tokenizers")["bpe"]["rules"])
def test_b10_bpe(rule: str) -> None:
    check(small("gpt2", pre=rule, bos_token_id=1), golden("tokenizers")["bpe"]["rules"][rule], ())


@pytest.mark.parametrize("rule", golden("tokenizers")["spm"]["rules"])
def test_b10_spm(rule: str) -> None:
    tokenizer = small("llama", add_space_prefix=rule == "space prefix")
    check(tokenizer, golden("tokenizers")["spm"]["rules"][rule], FORGED_BY_MERGES.get(rule, ()))


def check(tokenizer: Tokenizer, cases: dict[str, list[list[int]]], forged: tuple[str, ...]) -> None:
    texts = golden("tokenizers")["texts"]
    assert len(texts) >= 40
    for text, ids, special_ids in zip(texts, cases["ids"], cases["special_ids"], strict=True):
        assert tokenizer.encode(text, special=True, add_special=True) == special_ids, ascii(text)
        if text in forged:
            assert any(tokenizer.is_control(id) for id in ids), (
                "no difference from llama.cpp any more: drop the exception"
            )
            assert tokenizer.decode(tokenizer.encode(text)) == text
        else:
            assert tokenizer.encode(text) == ids, ascii(text)
