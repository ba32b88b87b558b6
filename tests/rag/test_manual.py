"""The demo manual and the questions about it."""

from __future__ import annotations

from pathlib import Path

from edged.rag.evaluate import read
from edged.rag.formats import markdown
from edged.rag.words import contains, words

MANUAL = Path(__file__).resolve().parents[2] / "packaging" / "manual"


def test_every_gold_answer_stands_in_its_section() -> None:
    questions = read(MANUAL / "qa.jsonl")
    document = markdown.read((MANUAL / "controller.md").read_bytes(), "controller.md")
    assert sum(q.gold is not None for q in questions) >= 25 and sum(q.gold is None for q in questions) >= 15
    for asked in questions:
        if asked.gold is not None:
            blocks = [b for b in document.blocks if not asked.section or asked.section in b.headings]
            assert any(contains(words(b.text), words(asked.gold)) for b in blocks), asked
