"""Split text into words before BPE merges them: one table row a rule, named as `tokenizer.ggml.pre` names it.

A rule is a sequence of patterns; each splits what the one before left whole, and what a pattern does not match stays a
word of its own. Patterns are written as in llama.cpp, where they come from (llama-vocab.cpp, llm_tokenizer_bpe).

Python's `re` knows no \\p{L}: it runs over a copy of the text in which every character outside ASCII is replaced by one
that stands for its class, so that \\p{L} is a class of a few ranges. Every pattern is linear on any text: no quantifier
is nested, and a run that was tried in vain is never tried again from a later start.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, lru_cache

# stand-ins for characters outside ASCII, by class
_LETTER, _NUMBER, _MARK, _PUNCTUATION, _SPACE, _OTHER = "\x80\x81\x82\x83\x84\x85"
_BY_CATEGORY = {"L": _LETTER, "N": _NUMBER, "M": _MARK, "P": _PUNCTUATION}
# \p{..} and \s as the inside of a bracket: the ASCII members and the stand-in
_CLASSES = {
    r"\p{L}": "A-Za-z" + _LETTER,
    r"\p{N}": "0-9" + _NUMBER,
    r"\p{M}": _MARK,
    r"\p{P}": r"!-#%-*,-/:;?@\[-\]_{}" + _PUNCTUATION,
    r"\s": r"\t-\r " + _SPACE,
}
# White_Space of the Unicode character database, PropList.txt, outside ASCII
_SPACES = frozenset("\x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000") | {chr(c) for c in range(0x2000, 0x200B)}


@dataclass(frozen=True)
class Pretokenizer:
    """One rule: patterns, and what else llama.cpp ties to the name.

    ignore_merges: a word that is a piece as it stands is not merged. add_bos: unless the metadata say otherwise.
    """

    patterns: tuple[str, ...]
    ignore_merges: bool = False
    add_bos: bool = False

    def split(self, text: str) -> list[str]:
        """Words of `text`, in order; joined they are `text`."""
        spans = [(0, len(text))]
        stand_ins = text if text.isascii() else text.translate(_STAND_INS)
        for pattern in self.patterns:
            finditer = _compile(pattern).finditer
            spans = [span for start, end in spans for span in _cut(finditer, stand_ins, start, end)]
        return [text[start:end] for start, end in spans]


def _cut(
    finditer: Callable[..., Iterator[re.Match[str]]], text: str, start: int, end: int
) -> Iterator[tuple[int, int]]:
    """Spans of matches and of what lies between them; a lookahead sees nothing past `end`."""
    for match in finditer(text, start, end):
        first, last = match.span()
        if first > start:
            yield start, first
        if last > first:
            yield first, last
        start = last
    if start < end:
        yield start, end


class _StandIns(dict[int, str]):
    """Table for str.translate: ASCII stays, other characters become the stand-in of their class."""

    def __missing__(self, code: int) -> str:
        return _stand_in(code)


@lru_cache(maxsize=8192)
def _stand_in(code: int) -> str:
    character = chr(code)
    if character in _SPACES:
        return _SPACE
    return _BY_CATEGORY.get(unicodedata.category(character)[0], _OTHER)


_STAND_INS = _StandIns({code: chr(code) for code in range(128)})


@cache
def _compile(pattern: str) -> re.Pattern[str]:
    r"""Replace \p{..}, \s and \S by classes of stand-ins."""
    pattern = pattern.replace(r"\S", r"[^\s]")
    out = []
    inside = False
    at = 0
    while at < len(pattern):
        name = next((name for name in _CLASSES if pattern.startswith(name, at)), None)
        if name:
            out.append(_CLASSES[name] if inside else f"[{_CLASSES[name]}]")
            at += len(name)
            continue
        width = 2 if pattern[at] == "\\" else 1
        if width == 1 and pattern[at] in "[]":
            inside = pattern[at] == "["
        out.append(pattern[at : at + width])
        at += width
    return re.compile("".join(out))


_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_ANY_CASE = r"'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]"
_LLAMA3 = _ANY_CASE + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_QWEN2 = _LLAMA3.replace("{1,3}", "")
_QWEN35 = _ANY_CASE + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"

_DEFAULT_RULE = Pretokenizer((r"[\p{P}$+<=>^~|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"))
_GPT2_RULE = Pretokenizer((_GPT2,))
_DIGITS_RULE = Pretokenizer((r"\p{N}", _GPT2))
_LLAMA3_RULE = Pretokenizer((_LLAMA3,))
_LLAMA_BPE_RULE = Pretokenizer((_LLAMA3,), ignore_merges=True, add_bos=True)
_QWEN2_RULE = Pretokenizer((_QWEN2,))

PRETOKENIZERS: dict[str, Pretokenizer] = {
    "default": _DEFAULT_RULE,
    "falcon": Pretokenizer((r"[\p{P}$+<=>^~|`]+", _GPT2, r"[0-9][0-9][0-9]")),
    **dict.fromkeys(("gpt-2", "phi-2", "mpt", "olmo", "exaone4"), _GPT2_RULE),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"), _DIGITS_RULE),
    **dict.fromkeys(("dbrx", "smaug-bpe", "chatglm-bpe", "glm4"), _LLAMA3_RULE),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral", "lfm2"), _LLAMA_BPE_RULE),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "stablelm2", "megrez", "hunyuan"), _QWEN2_RULE),
    "qwen35": Pretokenizer((_QWEN35,)),
}
