"""Search, prompt and answers over a small manual."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edged.errors import ContextFull
from edged.rag import answer, prompt
from edged.rag.search import search
from edged.rag.store import Filter, Store
from tests.rag.manuals import embed, new, put

PUMP = [
    "The pump controller accepts a supply of 24 V. Reverse polarity destroys the input stage.",
    "Fault E-0x1F means that the motor is blocked. Remove the cover and turn the shaft by hand.",
    "Fault E-0x20 means that the sensor cable is broken. Replace the cable.",
    "Register CR2 at 0x4002 has the reset value 0x0018. Write it only while the motor stands.",
    "Grease the bearings every 4000 hours with the grease from the service set.",
]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = new(tmp_path)
    put(store, "pump.md", *PUMP, product="pump", version="2")
    put(store, "fan.md", "The fan needs no grease at all.", "Fault E-0x1F of the fan means dust.", product="fan")
    return store


def test_codes_go_first_and_filters_hold(store: Store) -> None:
    found = search(store, embed, "what does E-0x20 mean", 3)
    assert "E-0x20" in found[0].text and found[0].sources[0].path == "pump.md"
    assert {p.sources[0].path for p in search(store, embed, "fault E-0x1F", 5, Filter(product="fan"))} == {"fan.md"}


def test_neighbours_are_merged_into_one_passage(store: Store) -> None:
    passages = search(store, embed, "fault means", 10, Filter(document="pump.md"))
    assert len(passages) == 1
    assert (passages[0].page, passages[0].page_end) == (1, 5)
    assert passages[0].text == "\n".join(PUMP)


@pytest.mark.parametrize("query", ["", "  ", '"', "NEAR(", "a:b", "\0", "*"])
def test_J01_search_never_raises(store: Store, query: str) -> None:
    assert all(p.text for p in search(store, embed, query))


@pytest.mark.parametrize(("question", "gold", "page"), [
    ("What does fault E-0x1F of the motor mean?", "motor is blocked", 2),
    ("Which supply does the pump controller accept?", "24 V", 1),
    ("What is the reset value of register CR2?", "0x0018", 4),
    ("How often do I grease the bearings?", "every 4000 hours", 5),
])  # fmt: skip
def test_extracted_answers_quote_the_stored_words(store: Store, question: str, gold: str, page: int) -> None:
    found = answer.extract(store, embed, question, k=1, only=Filter(product="pump"))
    assert not found.refused and gold in found.text
    for quote in found.quotes:
        assert store.quote(quote.passage.content, quote.start, quote.end) == quote.text
        assert quote.passage.page == page and quote.passage.headings == ("Manual",)


@pytest.mark.parametrize("question", [
    "What does fault E-0x21 mean?", "E-0x2", "Who won the football game yesterday?", "",
    "Price of the licence upgrade?",
])  # fmt: skip
def test_K04_what_the_manuals_lack_is_refused(store: Store, question: str) -> None:
    found = answer.extract(store, embed, question)
    assert found.refused and found.text == answer.NOT_FOUND


def test_a_code_alone_is_answered_without_the_model(store: Store) -> None:
    def fail(texts: object) -> np.ndarray:
        raise AssertionError("the model was asked")

    assert "sensor cable" in answer.extract(store, fail, "E-0x20").text


def test_D03_chunks_are_dropped_whole_and_from_the_end(store: Store) -> None:
    def render(messages: list[dict[str, str]]) -> list[int]:
        return [0] * sum(len(message["content"].split()) for message in messages)

    passages = [search(store, embed, q, 1)[0] for q in ("E-0x1F motor", "E-0x20 cable", "CR2", "grease bearings")]
    whole = prompt.pack("Why?", passages, render, 10_000, 9)
    assert (len(whole.used), whole.dropped) == (4, 0)
    for n in range(1, 5):
        size = len(render(prompt.messages("Why?", passages[:n])))
        least, less = (prompt.pack("Why?", passages, render, room, 9) for room in (size, size + 1))
        assert least == less and least.used == tuple(passages[:n]) and least.dropped == 4 - n
    with pytest.raises(ContextFull, match="room for 5"):
        prompt.pack("Why?", passages, render, 5, 9)


def test_the_prompt_has_the_instruction_first_and_the_question_last(store: Store) -> None:
    (merged,) = search(store, embed, "fault means", 10, Filter(document="pump.md"))
    single = prompt.chunks([merged])
    assert sorted(p.text for p in single) == sorted(PUMP) and "Fault" in single[0].text
    system, user = prompt.messages("Why?", single)
    assert system == {"role": "system", "content": prompt.INSTRUCTION}
    assert user["content"].startswith(f"[1] Manual\n{single[0].text}\n\n[2] Manual\n")
    assert user["content"].endswith("\n\nQuestion: Why?")


@pytest.mark.parametrize(("text", "sentences"), [
    ("One thing. Another thing!", ["One thing.", "Another thing!"]),
    ("At 3.3 V. it stops", ["At 3.3 V. it stops"]),
    ("温度が高い。停止する。", ["温度が高い。", "停止する。"]),
    ("| a | b |\n\n  | c | d |", ["| a | b |", "| c | d |"]),
    (" \n ", []),
])  # fmt: skip
def test_sentences(text: str, sentences: list[str]) -> None:
    assert [text[a:b] for a, b in answer.split(text)] == sentences
