"""Rules split text without loss; their ids are compared with llama.cpp's in test_golden_tokenizers.py."""

from __future__ import annotations

import sys
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edged.tokenizers.pretokenizers import PRETOKENIZERS, _stand_in

RULES = list({rule: name for name, rule in reversed(PRETOKENIZERS.items())}.values())  # one name for each rule


@pytest.mark.parametrize("rule", RULES)
@given(text=st.text() | st.text(" \n\r\t'ast1.", max_size=30))
def test_words_join_to_the_text(rule: str, text: str) -> None:
    words = PRETOKENIZERS[rule].split(text)
    assert "".join(words) == text
    assert all(words)


@pytest.mark.parametrize(
    ("rule", "text", "words"),
    [
        ("gpt-2", "I'll go  to 3am", ["I", "'ll", " go", " ", " to", " 3", "am"]),
        ("gpt-2", "DON'T", ["DON", "'", "T"]),
        ("smollm", "in 2024!", ["in", " ", "2", "0", "2", "4", "!"]),
        ("llama-bpe", "DON'T 12345", ["DON", "'T", " ", "123", "45"]),
        ("qwen2", "a\n\n  b 12", ["a", "\n\n", " ", " b", " ", "1", "2"]),
        ("qwen35", "e\u0301a x", ["e\u0301a", " x"]),
        ("qwen2", "e\u0301a x", ["e", "\u0301a", " x"]),
        ("default", "a=b 1234", ["a", "=", "b", " ", "123", "4"]),
        ("falcon", "`x`", ["`", "x", "`"]),
        ("default", "`x", ["`", "x"]),
    ],
)
def test_words(rule: str, text: str, words: list[str]) -> None:
    assert PRETOKENIZERS[rule].split(text) == words


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("unit", ["A", ".", " ", "\n", "1", "\u4e2d", "'", "\t\n", " \u00e9"])
def test_b07_one_long_run(rule: str, unit: str) -> None:
    text = unit * (131_072 // len(unit))
    assert "".join(PRETOKENIZERS[rule].split(text)) == text


def test_every_character_has_the_class_of_its_category() -> None:
    white_space = {
        c for c in map(chr, range(128, sys.maxunicode)) if c.isspace()
    }  # White_Space and bidirectional WS, B
    stand_ins = {}
    for code in [*range(128, 0x3400), *range(0x3400, sys.maxunicode + 1, 61)]:
        kind = "space" if chr(code) in white_space else unicodedata.category(chr(code))[0]
        kind = kind if kind in ("space", "L", "N", "M", "P") else "other"
        assert stand_ins.setdefault(kind, _stand_in(code)) == _stand_in(code), hex(code)
    assert len(set(stand_ins.values())) == 6
