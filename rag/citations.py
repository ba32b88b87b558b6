"""Keep of a model's text, as it comes, the sentences that the passages bear out.

    checked = Checked(passages, question)
    checked.push("It takes 24 V [1]. It weighs 3 kg [1]. It")  -> "It takes 24 V [1]."
    checked.finish()                                           -> ""
    checked.answer(confidence)

In which pieces the text comes makes no difference. A sentence is borne out by the passages that it cites if they hold
each of its numbers, with the unit that it has there, and codes, or, where it has none, a third of its words. One that
cites none is given to the passage that holds these and most of its words. A row of a table must stand there as it is.
What is not borne out is dropped and counted; so is what answers nothing: a heading, a question, words of the prompt, a
sentence said before. Once a model says that the passages do not hold the answer, `denied` is true and nothing more is
kept.

Not seen: that a sentence says the opposite of a passage in its words, or gives a number to another thing; a wrong unit
of a number that has none beside it somewhere in the passages, as in tables with units in their headers, or a unit that
is a word ("24 volts").

Nothing here raises.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Sequence

from edged.rag.answer import ASKING, NOT_FOUND, Answer, Quote, split
from edged.rag.prompt import INSTRUCTION
from edged.rag.search import Passage
from edged.rag.words import codes, contains, words

_CITE = r"\[\d{1,3}(?:\s?[,;]\s?\d{1,3})*\]"
_CITED = re.compile(_CITE)
_CITATIONS = re.compile(rf"(?:{_CITE}[\s.,;]*)+")
_CITE_BEGUN = re.compile(r"\[[\d\s,;]*")
_STOPS = ".!?。！？"
# 'It is 5 V. [1]': citations behind the stop of their sentence
_BEHIND_STOP = re.compile(rf"([{_STOPS}])((?:\s*{_CITE})+)")
_CUT = re.compile(rf"(?<!\d)[{_STOPS}]$")
_ITEM = re.compile(r"\s*(?:[-*•]|\(?\d{1,2}[.)])\s+")  # a mark of a list is no claim

_UNIT = re.compile(r"(?<![\w.,])(\d+(?:[.,]\d+)*)([A-Za-zµμΩ°%]{1,4})(?!\w)")  # 24V
_CJK = "\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
_EDGE = re.compile(rf"(?<=[{_CJK}])(?=[^\W{_CJK}])|(?<=[^\W{_CJK}])(?=[{_CJK}])")
# a number as it is written; a minus before it belongs to it unless that is a range, or part of a code
_NUMBER = re.compile(r"(?:(?<!\w)-)?(?<![\w.,])\d+(?:[.,]\d+)*")
_SYMBOL = re.compile(
    r"\s?([pnu\u03bcmcdhkMGT]?(?:VA|V|A|Wh|Ah|W|Hz|ohms?|\u03a9|F|H|s|m[23]?|g|N[\u00b7*]?m|N|Pa|bar|J|l|L|B|bit)"
    r"|\u00b0[CF]|K|%|min|h|rpm|psi)(?:AC|DC)?(?!\w)"
)
# what stands between numbers that share the unit of the last: 4 to 20 mA; 4, 6 and 8 mm; 50/60 Hz; 92 x 92 mm
_SHARING = re.compile(r"\s*(?:,?\s*(?:to|and|or|by|x|bis|und|oder)|[-~/,\u00d7\u00b1]|\.{2,3})\s*")

ADRIFT = 3  # sentences that nothing bears out, one after the other: small models go round in circles from there on
LONGEST = 600  # characters without an end of a sentence
_DENIED = 4  # words of the prompt with which a model is told to deny: not in the passages
_SOME, _MOST = 1 / 3, 1 / 2

_SOURCES = r"(?:passages?|manuals?|documents?|documentation|texts?|excerpts?|context|sources?)"
_DENIAL = re.compile(
    rf"\b{_SOURCES}\b[^.]{{0,40}}?\b(?:(?:do|does|did|is|are)\s?n[o']t|(?:\w+\s+)?(?:no|nothing|none)\b|lacks?\b)"
    rf"|\b(?:not|no|nothing|none)\b[^.]{{0,60}}\b(?:in|from|by|of)\s+(?:\w+\s+){{0,3}}{_SOURCES}\b"
    r"|\b(?:i|we)\s+(?:\w+\s+)?(?:cannot|can't|can not|don't|do not|could not|couldn't|am not|unable)\b"
    r"|\bno\s+(?:\w+\s+)?(?:information|mention|answer)\b",
    re.IGNORECASE,
)
# said of the passages where none of them is cited
_UNSAID = re.compile(r"\bnot\s+(?:\w+\s+)?(?:specified|mentioned|stated|provided|given|available|known|found)\b",
                     re.IGNORECASE)  # fmt: skip


class Checked:
    """The answer of a model to a question about `passages`, which it was given as [1], [2], ..."""

    def __init__(self, passages: Sequence[Passage], question: str = "") -> None:
        self.dropped = 0
        self.denied = False
        self._adrift = 0  # dropped since the last that was kept
        self._passages = [_Held(passage) for passage in passages]
        self._rest = ""
        self._kept = ""
        self._cited: list[int] = []
        self._prompt = [*words(INSTRUCTION), "question", *words(question)]
        self._idle = {tuple(words(_plain(heading))) for p in passages for heading in p.headings}

    @property
    def over(self) -> bool:
        """Whether nothing good is to be expected any more: the model denies, or goes on without being borne out."""
        return self.denied or self._adrift >= ADRIFT or len(self._rest) > LONGEST

    def push(self, text: str) -> str:
        """Take the next piece of the model's text; what can be handed on: whole sentences. Once `over`, nothing."""
        return "".join([self._take(character, held=1) for character in text])

    def finish(self, whole: bool = True) -> str:
        """The rest, when no more text comes or is wanted; it is counted as dropped if it is not handed on.

        Not `whole`: it was cut off; half a sentence may say the opposite.
        """
        handed = self._take("", held=0 if whole or _CUT.search(self._rest.rstrip()) else 1)
        self.dropped += bool(self._rest.strip()) and not self.denied
        return handed

    def answer(self, confidence: float) -> Answer:
        """What was kept, refused if that is nothing. The quotes are the cited passages."""
        cited = [(n, self._passages[n - 1].passage) for n in self._cited]
        quotes = tuple(Quote(n, p.text, p.start, p.end, p) for n, p in cited)
        return Answer(self._kept or NOT_FOUND, quotes, confidence, self.dropped, "generate")

    def _take(self, text: str, held: int) -> str:
        if self.over:
            return ""
        self._rest = _BEHIND_STOP.sub(r"\2\1", self._rest + text)
        handed, at = "", 0
        for start, end in self._sentences(held):
            sentence = self._checked(re.sub(r"\s*\n\s*", " ", self._rest[start:end]))
            if sentence:
                gap = "\n" if "\n" in self._rest[at:start] else " "
                handed += f"{gap if self._kept else ''}{sentence}"
                self._kept += f"{gap if self._kept else ''}{sentence}"
            at = end
            if self.over:
                break
        self._rest = self._rest[at:]
        return handed

    def _sentences(self, held: int) -> list[tuple[int, int]]:
        """Spans of sentences with the citations that follow them, but for the last `held`, which may go on."""
        spans: list[tuple[int, int]] = []
        for start, end in split(self._rest):
            if spans and _CITATIONS.fullmatch(self._rest, start, end):
                spans[-1] = spans[-1][0], end
            else:
                spans.append((start, end))
        if held and spans and _CITE_BEGUN.fullmatch(self._rest, *spans[-1]):
            held += 1  # will be a citation of the sentence before
        return spans[: len(spans) - held] if held else spans

    def _checked(self, sentence: str) -> str:
        """The sentence with what bears it out, '' if nothing does."""
        cited = [int(n) for found in _CITED.findall(sentence) for n in re.findall(r"\d+", found)]
        claim = _Claim(_ITEM.sub("", _CITED.sub("", sentence), count=1))
        if self._answers_nothing(claim):
            pass
        elif _DENIAL.search(claim.text) or (not cited and _UNSAID.search(claim.text)):
            self.denied = not self._kept
        elif cited:
            known = [self._passages[n - 1] for n in cited if 1 <= n <= len(self._passages)]
            if len(known) == len(cited) and claim.borne_by(known) and (
                claim.codes or max(map(claim.share, known)) >= _SOME):  # fmt: skip
                return self._keep(claim, cited, sentence)
        elif best := self._best(claim):
            bare = sentence.rstrip(_STOPS)
            return self._keep(claim, [best], f"{bare} [{best}]{sentence[len(bare) :]}")
        self.dropped += 1
        self._adrift += 1
        return ""

    def _answers_nothing(self, claim: _Claim) -> bool:
        return tuple(claim.words) in self._idle or claim.text.rstrip().endswith(("?", "\uff1f")) or (
            len(claim.words) > _DENIED and contains(self._prompt, claim.words))  # fmt: skip

    def _keep(self, claim: _Claim, cited: Sequence[int], sentence: str) -> str:
        self._adrift = 0
        self._idle.add(tuple(claim.words))
        self._cited += [n for n in dict.fromkeys(cited) if n not in self._cited]
        return sentence

    def _best(self, claim: _Claim) -> int:
        """The number of the passage that bears the claim out and holds most of its words; 0: none holds half."""
        shares = [claim.share(held) if claim.borne_by([held]) else 0.0 for held in self._passages]
        best = max(shares, default=0.0)
        return shares.index(best) + 1 if best > _MOST else 0


class _Held:
    """What a passage holds."""

    def __init__(self, passage: Passage) -> None:
        text = _plain(passage.indexed)
        self.passage = passage
        self.words = words(text)
        self.stems = frozenset(map(_stem, self.words))
        self.numbers = _numbers(text)


class _Claim:
    """What a sentence says."""

    def __init__(self, text: str) -> None:
        self.text = text
        plain = _plain(text)
        self.words = words(plain)
        self.codes = [self.words] if " | " in text else codes(plain)
        self.numbers = _numbers(plain)

    def borne_by(self, passages: Sequence[_Held]) -> bool:
        """Whether each number and code, or the row of a table, stands in one of the passages."""
        return all(any(contains(p.words, code) for p in passages) for code in self.codes) and all(
            any(_fits(unit, p.numbers.get(number, ())) for p in passages)
            for number, units in self.numbers.items() for unit in units)  # fmt: skip

    def share(self, passage: _Held) -> float:
        """Which part of the words that say something stands in the passage, 0 .. 1."""
        telling = [word for word in self.words if word not in ASKING]
        return sum(_stem(word) in passage.stems for word in telling) / len(telling) if telling else 0.0


def _numbers(text: str) -> dict[str, set[str]]:
    """Each number as it is written, with its units; '' where one stands without."""
    found: dict[str, set[str]] = {}
    unit, after = "", len(text)
    for match in reversed([*_NUMBER.finditer(text)]):
        if own := _SYMBOL.match(text, match.end()):
            unit = re.sub(r"[\u00b7*]", "", own[1]).replace("u", "\u03bc").replace("L", "l")
            unit = re.sub("ohms?", "\u03a9", unit)
        elif not _SHARING.fullmatch(text, match.end(), after):
            unit = ""
        found.setdefault(match[0], set()).add(unit)
        after = match.start()
    return found


def _fits(unit: str, held: Collection[str]) -> bool:
    """Whether a number with this unit may be the one that a passage has with those."""
    return unit in held or "" in held or (not unit and bool(held))


def _stem(word: str) -> str:
    """Much the same for the forms of a word."""
    return word[: max(4, len(word) - 2)]


def _plain(text: str) -> str:
    """One form of minus signs; units apart from numbers, and both from scripts that are written without blanks."""
    text = re.sub("[\u2010-\u2015\u2212]", "-", unicodedata.normalize("NFKC", text))
    return _UNIT.sub(r"\1 \2", _EDGE.sub(" ", text))
