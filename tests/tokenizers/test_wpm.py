"""WordPiece: BERT's normalisation and longest pieces."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import edged.tokenizers
from edged.errors import BadModel
from edged.tokenizers import Tokenizer
from tests.tokenizers.vocabularies import meta

PIECES = (
    "[PAD] [UNK] [CLS] [SEP] ▁a ▁cafe ▁un ##aff ##able ▁- ▁0 ##x ##1 ##f ▁. ▁, ▁中 ▁文 ▁österreich ▁osterreich ▁C "
    "▁c ▁+ ▁σας ▁σασ ▁$ ▁x"
)


def bert(**fields: Any) -> Tokenizer:
    """A small vocabulary, pieces written as in GGUF files; "##" here marks a piece that goes on."""
    tokens = [piece.removeprefix("##") for piece in PIECES.split()]
    control = [3 if piece[0] == "[" else 1 for piece in tokens]
    ids = {"unknown_token_id": 1, "cls_token_id": 2, "seperator_token_id": 3}
    return edged.tokenizers.open(meta("bert", tokens=tokens, token_type=control, **{**ids, **fields}))


WPM = bert()


def pieces(text: str | bytes, tokenizer: Tokenizer = WPM) -> str:
    return " ".join(tokenizer.vocab.piece(id).decode() for id in tokenizer.encode(text))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("unaffable", "▁un aff able"),
        ("a-0x1f.", "▁a ▁- ▁0 x 1 f ▁."),
        ("C++", "▁c ▁+ ▁+"),
        ("$x", "▁$ ▁x"),
        ("a\tb", "▁a [UNK]"),
        ("a unaffableq a", "▁a [UNK] ▁a"),  # the whole word, not the part that fits
        ("", ""),
        (" \u2028\u00a0 ", ""),
        ("▁", "[UNK]"),
        ("[CLS]", "[UNK] [UNK] [UNK]"),
        (b"a\xff\xfea", "[UNK]"),  # bytes that are no text are dropped: "aa"
        ("ca\u00adfe\ufffd\0", "▁cafe"),
        ("ΣΑΣ", "▁σασ"),
    ],
)
def test_words_and_pieces(text: str | bytes, expected: str) -> None:
    assert pieces(text) == expected


def test_b11_accents_case_and_cjk() -> None:
    assert pieces("Café") == pieces("CAFE\u0301") == pieces("cafe") == "▁cafe"
    assert pieces("Österreich") == "▁osterreich"
    assert pieces("中文a") == "▁中 ▁文 ▁a"


def test_b11_a_cased_model_keeps_case_and_accents() -> None:
    cased = bert(**{"normalizer.lowercase": False})
    assert pieces("C c", cased) == "▁C ▁c"
    accented = bert(**{"normalizer.strip_accents": False})
    assert pieces("Österreich", accented) == "▁österreich"
    with pytest.raises(BadModel, match=r"normalizer\.lowercase is not a boolean"):
        bert(**{"normalizer.lowercase": "yes"})


def test_a_word_of_more_than_100_characters_is_unknown() -> None:
    assert pieces("x" + "x" * 99).split() == ["▁x"] + ["x"] * 99
    assert pieces("x" + "x" * 100) == "[UNK]"
    assert len(WPM.encode("." * 131_072)) == 131_072


def test_cls_and_sep_around_a_text() -> None:
    assert WPM.encode("a", add_special=True) == [2, 4, 3]
    assert WPM.encode("[SEP]", special=True) == [3]
    assert bert(add_sep_token=False, add_bos_token=False).encode("a", add_special=True) == [4]
    newer = bert(cls_token_id=None, seperator_token_id=None, bos_token_id=2, eos_token_id=3)
    assert newer.encode("", add_special=True) == [2, 3]


def test_a_vocabulary_without_unknown_token_leaves_such_words_out() -> None:
    assert pieces("a q a", bert(unknown_token_id=None)) == "▁a ▁a"


def test_decoding_separates_words() -> None:
    assert WPM.decode(WPM.encode("a unaffable", add_special=True)) == "a unaffable"


@given(text=st.text() | st.binary())
def test_any_text_has_ids_and_decodes(text: str | bytes) -> None:
    ids = WPM.encode(text, add_special=True)
    assert ids[0] == 2 and ids[-1] == 3
    assert all(not WPM.is_control(id) or id == 1 for id in ids[1:-1])
    WPM.decode(ids)


@given(words=st.lists(st.sampled_from(["unaffable", "a", "0x1f", "cafe", "."])))
def test_longest_pieces_join_to_the_word(words: list[str]) -> None:
    assert WPM.decode(WPM.encode(" ".join(words))).split() == words
