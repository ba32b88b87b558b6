"""The figures of an evaluation, on questions whose outcome is plain."""

from __future__ import annotations

from pathlib import Path

import pytest

from edged.errors import BadRequest
from edged.rag.evaluate import Question, evaluate, read, threshold
from tests.rag.manuals import embed, new, put
from tests.rag.test_answer import PUMP

QUESTIONS = [
    Question("reset value of register CR2", "0x0018", "pump.md"),
    Question("Fault E-0x20", "sensor cable"),
    Question("Fault E-0x1F motor blocked", "words that stand nowhere"),
    Question("Fault E-0x99", None),
    Question("colour of the football team", None),
]


def test_figures(tmp_path: Path) -> None:
    store = new(tmp_path)
    # apart, so that they are not merged into one passage
    for i, paragraph in enumerate(PUMP):
        put(store, "pump.md" if i == 3 else f"{i}.md", paragraph)
    report = evaluate(store, embed, QUESTIONS, least=0.3)
    assert (report.answerable, report.unanswerable) == (3, 2)
    assert report.hit_at_1 == report.hit_at_3 == report.mrr == report.right == pytest.approx(2 / 3)
    assert report.answered == report.refused == 1 and report.precision == pytest.approx(2 / 3)
    assert report.seconds > 0
    least = threshold(store, embed, QUESTIONS)
    assert 0 < least < 1 and evaluate(store, embed, QUESTIONS, least=least).refused == 1
    with pytest.raises(BadRequest, match="with and without"):
        threshold(store, embed, QUESTIONS[:2])
    assert evaluate(store, embed, []).mrr is None


def test_a_malformed_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "qa.jsonl"
    path.write_text('{"question": "a", "gold": "b"}\n\n{"question": "c", "gold": null}\n')
    assert read(path) == [Question("a", "b"), Question("c", None)]
    path.write_text('{"question": "a", "gold": "b"}\n{"nothing": 1}\n')
    with pytest.raises(BadRequest, match="line 2"):
        read(path)


def test_a_hit_is_one_of_the_right_place(tmp_path: Path) -> None:
    store = new(tmp_path)
    put(store, "pump.md", "Nothing.", "Fault E-0x20 means that the sensor cable is open.")
    for place, hits in [({}, 1), ({"section": "Manual"}, 1), ({"section": "Wiring"}, 0), ({"page": 3}, 0)]:
        report = evaluate(store, embed, [Question("Fault E-0x20", "sensor cable", **place)], least=0.0)
        assert report.hit_at_3 == report.right == hits, place
