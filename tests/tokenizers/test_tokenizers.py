"""BPE and SPM on any text, byte strings, hostile vocabularies and long input."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import edged.tokenizers
from edged.errors import BadModel
from edged.tokenizers import TOKENIZERS, Tokenizer, base
from edged.tokenizers.bpe import _CHARACTERS
from edged.tokenizers.index import Memo
from edged.tokenizers.pretokenizers import PRETOKENIZERS
from tests.tokenizers.test_merge import Priorities, naive
from tests.tokenizers.vocabularies import golden, meta, of_file, small

BPE = small("gpt2", pre="gpt-2", bos_token_id=1)
SPM = small("llama", add_space_prefix=True)
PLAIN_SPM = small("llama", add_space_prefix=False)
texts = st.text() | st.text("ab e\u0301\n<|im_end>▁'12\u4e2d", max_size=40)


def test_every_model_has_a_small_vocabulary_here() -> None:
    assert {"gpt2", "llama", "bert"} == set(TOKENIZERS)  # bert: test_wpm.py


# Text to ids and back


@pytest.mark.parametrize("tokenizer", [BPE, SPM, PLAIN_SPM])
@given(text=texts)
def test_round_trip(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    expected = text if tokenizer is BPE else text.replace("▁", " ")  # SPM writes a space as this
    assert tokenizer.decode(ids) == expected
    assert not any(tokenizer.is_control(id) for id in ids)


@given(text=texts)
def test_bpe_equals_the_naive_rule(text: str) -> None:
    vocabulary = golden("tokenizers")["bpe"]["vocabulary"]
    ranks = Priorities({merge.encode(): rank for rank, merge in enumerate(vocabulary["merges"])})
    ids = {piece: id for id, piece in enumerate(vocabulary["tokens"])}
    expected = []
    for part in text.split("<br>") if "<br>" in text else [text]:  # the one user-defined token
        for word in PRETOKENIZERS["gpt-2"].split(part):
            symbols = [_CHARACTERS[byte].encode() for byte in word.encode()]
            expected += [ids[piece.decode()] for piece in naive(symbols, b" ", ranks)]
        expected.append(ids["<br>"])
    assert BPE.encode(text) == expected[:-1]


@given(text=texts)
def test_spm_equals_the_naive_rule_without_cutting(text: str) -> None:
    vocabulary = golden("tokenizers")["spm"]["vocabulary"]
    ids = {piece.encode(): id for id, piece in enumerate(vocabulary["tokens"]) if vocabulary["token_type"][id] != 3}
    costs = Priorities({piece: -vocabulary["scores"][id] for piece, id in ids.items()})
    expected: list[int] = []
    for part in text.split("<br>"):
        for piece in naive([character.encode() for character in part.replace(" ", "▁")], b"", costs):
            expected += [ids[piece]] if piece in ids else [3 + byte for byte in piece]
        expected.append(ids[b"<br>"])
    assert PLAIN_SPM.encode(text) == expected[:-1]


def test_b02_bytes_that_are_no_text() -> None:
    for tokenizer in (BPE, PLAIN_SPM):
        ids = tokenizer.encode(b"\xe6\xad")
        assert [tokenizer.token_bytes(id) for id in ids] == [b"\xe6", b"\xad"]
        assert tokenizer.decode(ids) == "\ufffd"
    assert PLAIN_SPM.encode(b"\xe6\xad") == [3 + 0xE6, 3 + 0xAD]


@given(data=st.binary())
def test_b02_any_bytes_come_back(data: bytes) -> None:
    assert b"".join(map(BPE.token_bytes, BPE.encode(data))) == data


def test_lone_surrogates_are_replaced() -> None:
    assert BPE.encode("a\ud800b") == BPE.encode("a\ufffdb")


def test_special_tokens_only_where_asked_for() -> None:
    for tokenizer, mark in ((BPE, "<|im_end|>"), (SPM, "</s>")):
        id = tokenizer.token_id(mark)
        assert id is not None
        assert tokenizer.encode(mark, special=True) == [id]
        assert id not in tokenizer.encode(mark)
        assert tokenizer.decode(tokenizer.encode(mark)) == mark
        assert tokenizer.decode([id]) == ""
        assert tokenizer.decode([id], special=True) == mark


def test_user_defined_tokens_are_always_found() -> None:
    for tokenizer in (BPE, PLAIN_SPM):
        assert tokenizer.token_id("<br>") in tokenizer.encode("a<br>b")


def test_literal_characters_come_back_after_special_tokens_were_found() -> None:
    marked = "x\ue000|im_end|>y<|im_end|>"
    ids = BPE.encode(marked, special=True, literal={0xE000: "<"})
    assert ids == [*BPE.encode("x<|im_end|>y"), BPE.token_id("<|im_end|>")]


def test_bos_and_eos_as_the_model_asks() -> None:
    tokenizer = small("gpt2", bos_token_id=1, add_bos_token=True, add_eos_token=True)
    assert tokenizer.encode("a", add_special=True) == [1, *tokenizer.encode("a"), 2]
    assert small("gpt2", bos_token_id=1, pre="llama-bpe").add_bos
    assert not small("gpt2", bos_token_id=1, pre="llama-bpe", add_bos_token=False).add_bos


def test_decode_refuses_ids_outside_the_vocabulary() -> None:
    for id in (-1, BPE.n_vocab, 1 << 40):
        with pytest.raises(IndexError):
            BPE.decode([id])


# Long input


LONG = {
    "letters": "A" * 131_072,
    "dots": "." * 131_072,
    "spaces": " " * 131_072,
    "newlines": "\n" * 131_072,
    "cjk": "\u4e2d\u6587" * 25_000,
    "base64": "QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVo5" * 2778,
}


@pytest.mark.parametrize("text", LONG.values(), ids=LONG)
@pytest.mark.parametrize("name", ["spm", "smollm2_path", "gemma3_path"])
def test_b07_long_unbroken_text(name: str, text: str, request: pytest.FixtureRequest) -> None:
    tokenizer = SPM if name == "spm" else of_file(request.getfixturevalue(name))
    assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize("model", ["gpt2", "llama"])
@pytest.mark.parametrize("unit", ["The quick brown fox, jumping. ", "abcdefghij" * 5])
def test_b08_four_times_the_text_takes_four_times_the_steps(
    model: str, unit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = 0

    def counted(self: Any, piece: bytes) -> Any:
        nonlocal steps
        steps += 1 + len(piece)
        return dict.__getitem__(self, piece)

    monkeypatch.setattr(Memo, "__getitem__", counted, raising=False)
    monkeypatch.setattr(base, "_CACHED_LENGTH", -1)  # or the second text would cost nothing
    counts = []
    for length in (10_000, 40_000):
        tokenizer = small(model)
        steps = 0
        tokenizer.encode((unit * (length // len(unit) + 1))[:length])
        counts.append(steps)
    assert 3.5 < counts[1] / counts[0] < 4.5


def test_remembered_words_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "_CACHED_WORDS", 50)
    tokenizer = small("gpt2")
    tokenizer.encode(" ".join(map(str, range(1000))) + " " + "x" * 1000)
    assert 0 < len(tokenizer._words) <= 50
    assert max(map(len, tokenizer._words)) <= base._CACHED_LENGTH


# Vocabularies


def two_tokens(**fields: Any) -> Tokenizer:
    return edged.tokenizers.open(meta("gpt2", **{"tokens": ["a", "b"], "merges": [], "pre": "gpt-2", **fields}))


def test_a08_of_equal_pieces_the_lowest_id_is_used() -> None:
    tokenizer = two_tokens(tokens=["b", "a", "a"])
    assert tokenizer.encode("aab") == [1, 1, 0]
    assert tokenizer.decode([1, 2, 0]) == "aab"


def test_a08_add_bos_without_an_id_is_disabled(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        tokenizer = two_tokens(add_bos_token=True)
    assert "no valid bos id" in caplog.text
    assert tokenizer.encode("a", add_special=True) == [0]
    assert tokenizer.encode("x", add_special=True) == []  # a vocabulary without x and without an unknown token


@pytest.mark.parametrize("name", ["bos", "eos", "unknown", "eot"])
@pytest.mark.parametrize("value", [2, 2**32 - 1, -1, "1", 1.0])
def test_a10_special_ids_outside_the_vocabulary_are_disabled(
    name: str, value: object, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        tokenizer = two_tokens(**{f"{name}_token_id": value, "add_bos_token": True, "add_eos_token": True})
    assert f"{name}_token_id = {value!r} is outside the vocabulary of 2: disabled" in caplog.text
    assert tokenizer.encode("ab", add_special=True) == [0, 1]
    assert tokenizer.eog_ids == frozenset()
    assert tokenizer.bos_id is tokenizer.eos_id is tokenizer.vocab.unk_id is None


@pytest.mark.parametrize("model", ["gpt2", "llama"])
def test_a10_a_vocabulary_of_one_token(model: str) -> None:
    tokenizer = edged.tokenizers.open(meta(model, tokens=["a"], merges=[], add_space_prefix=False))
    assert tokenizer.eos_id is None  # the default of the llama model, 2, is outside
    assert tokenizer.decode(tokenizer.encode("a", add_special=True)) == "a"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"tokens": None}, "no tokenizer.ggml.tokens"),
        ({"tokens": []}, "tokens is empty"),
        ({"tokens": [1, 2]}, "tokens is not an array of strings"),
        ({"merges": None}, "no tokenizer.ggml.merges"),
        ({"token_type": [1]}, "token_type has 1 entries for 2 tokens"),
        ({"token_type": "ab"}, "token_type is not an array of numbers"),
        ({"scores": [0.0, 0.0, 0.0]}, "scores has 3 entries for 2 tokens"),
        ({"pre": "no-such-rule"}, "unknown pretokenizer 'no-such-rule'"),
        ({"pre": 7}, "unknown pretokenizer 7"),
        ({"pre": ["gpt-2"]}, "unknown pretokenizer"),
    ],
)
def test_bad_models_are_named(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(BadModel, match=message):
        two_tokens(**fields)


@pytest.mark.parametrize("model", [None, "bert-like", 3, ["gpt2"]])
def test_unknown_tokenizer_model(model: object) -> None:
    with pytest.raises(BadModel, match="no tokenizer for"):
        edged.tokenizers.open({"tokenizer.ggml.model": model})


def test_answers_end_with_the_pieces_that_llama_cpp_knows() -> None:
    tokens = ["<|im_end|>", "<|eot_id|>", "x", "<|end|>", "<eos>"]
    tokenizer = two_tokens(tokens=tokens, eos_token_id=2)
    assert tokenizer.eog_ids == {0, 1, 2, 3, 4}
    assert tokenizer.is_control(0) and not tokenizer.is_control(2)


def test_a_message_end_does_not_end_an_answer() -> None:
    tokenizer = two_tokens(tokens=["<|return|>", "<|call|>", "<|end|>"])
    assert tokenizer.eog_ids == {0, 1}
    assert tokenizer.decode([2]) == "<|end|>"


def test_merges_never_end_in_a_control_token() -> None:
    tokenizer = edged.tokenizers.open(
        meta(
            "llama", tokens=["<unk>", "<", "s", ">", "<s", "<s>"], token_type=[2, 1, 1, 1, 1, 3], add_space_prefix=False
        )
    )
    assert tokenizer.encode("<s>") == [4, 3]
    assert tokenizer.encode("<s>", special=True) == [5]


def test_types_as_numpy_from_a_read_only_map() -> None:
    types = np.array([3, 1], np.int32)
    types.flags.writeable = False
    tokenizer = two_tokens(tokens=["<|im_end|>", "b"], token_type=types, scores=np.zeros(2, np.float32))
    assert tokenizer.eog_ids == {0}
