"""Text to index words, the same for stored text and for questions, so that any input is searched as it is written.

A code such as E-0x1F becomes consecutive words (e, 0x1f) and is found as a phrase; letters of scripts written without
spaces (Chinese, Japanese) are one word each, so that any part of a sentence is found as a phrase. Nothing here raises.
"""

from __future__ import annotations

import re
import unicodedata

_CJK = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
# ++ and # belong to the word that they end: C++ is not C
_WORD = re.compile(rf"[{_CJK}]|[^\W_{_CJK}]+(?:\+\+|#(?!\w))?")
_CODE_MARK = re.compile(r"\d|[^\W_][_/.:&+#-]\S|\+\+|#$|^[A-Z]{2,}$")


def words(text: str) -> list[str]:
    """The index words of a text: compatibility forms and letter case are one (fi ligature, full width, Ω)."""
    return _WORD.findall(unicodedata.normalize("NFKC", text.replace("\u00ad", "")).casefold())


def phrases(query: str) -> list[list[str]]:
    """The terms of a question, each the words that must follow one another: what stands between blanks is one term."""
    return [found for term in query.split() if (found := words(term))]


def codes(text: str) -> list[list[str]]:
    """The terms that look like codes, numbers or names from a program: those must be found exactly."""
    terms = (term.strip(".,;:!?()[]{}\"'`") for term in text.split())
    return [found for term in terms if _CODE_MARK.search(term) and (found := words(term))]


def contains(sequence: list[str], phrase: list[str]) -> bool:
    """Whether the words of `phrase` follow one another somewhere in `sequence`."""
    n = len(phrase)
    return any(sequence[i : i + n] == phrase for i in range(len(sequence) - n + 1))
