"""What is kept of a model's text: whole, byte by byte, and cut off."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edged.rag.answer import NOT_FOUND
from edged.rag.citations import ADRIFT, LONGEST, Checked
from edged.rag.search import Passage

CR2 = "Register CR2 at 0x4002 has the reset value 0x0018. Write it only while the motor stands."
SUPPLY = "The controller takes a supply of 24 V at -40 to 85 °C and 3.5 A; the sensor a supply of 5 V."
FAULT = "Fault E-0x1F means that the motor is blocked. Remove the cover and turn the shaft by hand."


def passage(text: str) -> Passage:
    return Passage(1, 0, len(text), text, f"Reset values\n{text}", 1, 1, ("Reset values",), (), 1.0, 0.5)


TABLE = "Terminal | Relay | Remark\nX3.5 | K2 | Closed on alarm\nX3.6 | K2 | Closed while there is no alarm"
PASSAGES = [passage(CR2), passage(SUPPLY), passage(FAULT), passage(TABLE)]

CASES = [
    ("It is 0x0018 [1]. The motor must stand [1].", "It is 0x0018 [1]. The motor must stand [1].", 0, [1]),
    ("It lies at 0x4003 [1]. It is 24 V [2].", "It is 24 V [2].", 1, [2]),
    ("It is 24 volts. [2] Turn the shaft by hand.[3]", "It is 24 volts [2]. Turn the shaft by hand[3].", 0, [2, 3]),
    ("It is 24 volts.\n[2]\nTurn the shaft [3].", "It is 24 volts [2].\nTurn the shaft [3].", 0, [2, 3]),
    ("CR2 and the supply [1, 2] differ. The motor [1; 3].", "CR2 and the supply [1, 2] differ. The motor [1; 3].",
     0, [1, 2, 3]),
    ("Bananas are yellow [1].", NOT_FOUND, 1, []),
    ("The motor stood still [1].", "The motor stood still [1].", 0, [1]),
    ("Nothing happens [7]. Nor here [0]. Nor [1, 9].", NOT_FOUND, 3, []),
    # numbers are compared as they are written
    ("It takes 5 V [2].", "It takes 5 V [2].", 0, [2]),
    ("It takes 3 A [2].", NOT_FOUND, 1, []),
    ("From 40 degrees on [2].", NOT_FOUND, 1, []),
    ("From \u221240 \u00b0C on [2].", "From \u221240 \u00b0C on [2].", 0, [2]),
    ("At 24V and 3.5A [2].", "At 24V and 3.5A [2].", 0, [2]),
    ("At 24 V [1].", NOT_FOUND, 1, []),
    # lists
    ("1. Remove the cover [3].\n2. Turn the shaft [3].", "1. Remove the cover [3].\n2. Turn the shaft [3].", 0, [3]),
    ("- Remove the cover\n- Turn the shaft by hand", "- Remove the cover [3]\n- Turn the shaft by hand [3]", 0, [3]),
    # sentences that cite nothing
    ("The supply of the controller is 24 V.", "The supply of the controller is 24 V [2].", 0, [2]),
    ("The supply of the controller is 23 V.", NOT_FOUND, 1, []),
    ("Peel the banana with 24 V before lunch.", NOT_FOUND, 1, []),
    ("It is.", NOT_FOUND, 1, []),
    ("", NOT_FOUND, 0, []),
    ("[1]", NOT_FOUND, 1, []),
    # what answers nothing
    ("Reset values [1]\nIt is 0x0018 [1].", "It is 0x0018 [1].", 1, [1]),
    ("Question: What is the reset value [1]? It is 0x0018 [1].", "It is 0x0018 [1].", 1, [1]),
    ("End each sentence with the number of its passage, like [1]. It is 0x0018 [1].", "It is 0x0018 [1].", 1, [1]),
    ("What is the reset value of the motor? [1]", NOT_FOUND, 1, []),
    ("It is 0x0018 [1]. It is 0x0018 [1].", "It is 0x0018 [1].", 1, [1]),
    # rows of tables
    ("X3.5 | K2 | closed on alarm [4]\nX3.6 | K2 | open on alarm [4]", "X3.5 | K2 | closed on alarm [4]", 1, [4]),
    ("\u96fb\u6e90\u306f24V\u3067\u3059\u3002[2]", "\u96fb\u6e90\u306f24V\u3067\u3059[2]\u3002", 0, [2]),
]  # fmt: skip


UNITS = passage(
    "The supply is 24 V DC, in cold rooms 19.2 to 28.8 V DC at 50/60 Hz. The output gives 4 to 20 mA into 250 ohm. The "
    "input takes 0-15 kV. Holes of 4, 6 and 8 mm. Cut an opening of 92 x 90 mm. Torque 0.4 N\u00b7m. Wait 5 minutes, "
    "then 10\u00b5s.\nWeight (kg) | 3.7\nStep 7"
)


@pytest.mark.parametrize(("sentence", "right"), [
    ("The supply is 24 V [1].", True), ("The supply is 24V DC [1].", True), ("The supply is 24 volts [1].", True),
    ("The supply is 24 mA [1].", False), ("The supply is 24 kV [1].", False), ("The supply is 20 V [1].", False),
    ("The supply is 19.2 V at least [1].", True), ("The supply is 19.2 V to 28.8 V [1].", True),
    ("The supply is 19.2 to 28.8 V [1].", True), ("The supply is 19.2 to 28.8 mA [1].", False),
    ("The supply is 19.2 to 20 mA [1].", False), ("The supply has 50 Hz or 60Hz [1].", True),
    ("The output gives 4 mA at least [1].", True), ("The input takes 0 to 15 kV [1].", True),
    ("The output gives 20 mm [1].", False), ("The output into 250 \u2126 [1].", True),
    ("Holes of 4 mm, 6 mm or 8 mm [1].", True), ("Holes of 6 V [1].", False), ("The opening is 92 mm wide [1].", True),
    ("Torque 0.4 Nm [1].", True), ("Torque 24 Nm [1].", False), ("Then wait 10 us [1].", True),
    ("Wait 5 min [1].", True), ("The weight is 3.7 kg [1].", True), ("At step 7 the supply is 24 V [1].", True),
    ("The weight is 3.7 A [1].", True),  # not seen: the passage has the number without its unit
])  # fmt: skip
def test_a_number_stands_with_its_unit(sentence: str, right: bool) -> None:
    checked = Checked([UNITS])
    assert checked.push(sentence) + checked.finish() == (sentence if right else "")


def kept(pieces: list[str], whole: bool = True) -> tuple[str, Checked]:
    """What was handed on, after checking that the answer is the same."""
    checked = Checked(PASSAGES, "What is the reset value of the motor?")
    text = "".join([*map(checked.push, pieces), checked.finish(whole)])
    assert checked.answer(0.7).text == (text or NOT_FOUND)
    return text or NOT_FOUND, checked


@pytest.mark.parametrize(("text", "wanted", "dropped", "cited"), CASES, ids=[case[0][:30] for case in CASES])
def test_sentences_are_kept_if_passages_hold_their_figures(text: str, wanted: str, dropped: int, cited: list[int]
                                                            ) -> None:
    for pieces in ([text], list(text), [text[:9], text[9:]]):
        found, checked = kept(pieces)
        answer = checked.answer(0.7)
        assert (found, answer.dropped, [q.n for q in answer.quotes]) == (wanted, dropped, cited)
        assert answer.mode == "generate" and answer.confidence == 0.7 and answer.refused == (wanted == NOT_FOUND)
        assert all(q.passage is PASSAGES[q.n - 1] and q.text == q.passage.text for q in answer.quotes)


def test_a_sentence_is_handed_on_when_the_next_begins() -> None:
    checked = Checked(PASSAGES)
    assert checked.push("The motor must stand.") == ""
    assert checked.push(" [1") == ""
    assert checked.push("] The") == "The motor must stand [1]."
    assert checked.push(" shaft turns [3]. ") == "" and checked.finish() == " The shaft turns [3]."


@pytest.mark.parametrize(("text", "wanted", "dropped"), [
    ("It is 24 V [2]. The motor must not", "It is 24 V [2].", 1),
    ("It is 24 V [2]. The motor must stand [1].", "It is 24 V [2]. The motor must stand [1].", 0),
    ("The value is 3.", NOT_FOUND, 1),  # of 3.5
    ("It is 24 V [2].  ", "It is 24 V [2].", 0),
    ("The mo", NOT_FOUND, 1),
    ("", NOT_FOUND, 0),
])  # fmt: skip
def test_half_a_sentence_is_dropped(text: str, wanted: str, dropped: int) -> None:
    for pieces in ([text], list(text)):
        found, checked = kept(pieces, whole=False)
        assert (found, checked.dropped) == (wanted, dropped)


@pytest.mark.parametrize("text", [
    "not in the passages", "Not in the passages.", "The passages do not contain the torque [1].",
    "The passages don't mention it.", "There is no information about the torque in the passages.",
    "I cannot answer this from the text.", "The torque is not specified.", "The manual says nothing about it.",
    "The provided passages contain no answer. The supply is 24 V [2].",
    "Based on the passages, the torque is not mentioned.",
])  # fmt: skip
def test_a_model_that_finds_nothing_has_no_answer(text: str) -> None:
    for pieces in ([text], list(text)):
        found, checked = kept(pieces)
        assert found == NOT_FOUND and checked.denied and checked.dropped == 1


def test_a_denial_after_an_answer_is_dropped() -> None:
    found, checked = kept(["The supply is 24 V [2]. The passages do not say more."])
    assert found == "The supply is 24 V [2]." and not checked.denied and checked.dropped == 1


@pytest.mark.parametrize("text", ["The motor does not stand [1].", "Do not write it while the motor runs [1]."])
def test_not_is_no_denial(text: str) -> None:
    assert kept([text])[0] == text


WRONG = "It takes 7 A [2]. "


@pytest.mark.parametrize(("text", "wanted", "dropped"), [
    (WRONG * ADRIFT + "It is 24 V [2]. So it is.", NOT_FOUND, ADRIFT + 1),
    (WRONG * ADRIFT, NOT_FOUND, ADRIFT),
    (WRONG * 2 + "It is 24 V [2]. " + WRONG * ADRIFT + "The motor stands [1].", "It is 24 V [2].", ADRIFT + 3),
    ("It is 24 V [2]. " + "so " * LONGEST + "it is. The motor stands [1].", "It is 24 V [2].", 1),
], ids=["adrift", "adrift at the end", "adrift later", "long"])  # fmt: skip
def test_a_model_that_goes_astray_is_not_heard_out(text: str, wanted: str, dropped: int) -> None:
    """Nor does it matter how much of its text came before that was seen."""
    for size in (1, 4, 30, len(text)):
        checked, handed = Checked(PASSAGES), ""
        for at in range(0, len(text), size):
            if checked.over:
                break
            handed += checked.push(text[at : at + size])
        handed += checked.finish()
        assert (handed or NOT_FOUND, checked.dropped) == (wanted, dropped)
        assert checked.over and checked.push("The motor stands [1]. ") == checked.finish() == ""


PIECES = ["The motor", " stands", " 24 V", ".", "!", " ", "\n", "[1]", "[2]", " [1]", "[", "1", "]", ",", "[1, 2]",
          "- ", "\u3002", "\u6e29\u5ea6", " not in the passages", "3.5 A",
          WRONG, WRONG * 2, "so " * (LONGEST // 6)]  # fmt: skip


@given(st.lists(st.sampled_from(PIECES), max_size=25))
def test_pieces_do_not_matter_and_nothing_raises(parts: list[str]) -> None:
    whole, checked = kept(["".join(parts)])
    for pieces in (parts, list("".join(parts))):
        found, piecewise = kept(pieces)
        assert (found, piecewise.dropped, piecewise.denied) == (whole, checked.dropped, checked.denied)
        assert piecewise.over == checked.over
    assert all(f"{q.n}" in whole for q in checked.answer(1.0).quotes)
