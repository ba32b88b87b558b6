"""`deadline`: when the time is up, what has come is the answer."""

from __future__ import annotations

from typing import Any

import pytest

from tests.service.running import Running
from tests.stub_engine import StubEngine, endless

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
MESSAGES = [{"role": "user", "content": "x"}]
BODIES: dict[str, dict[str, Any]] = {CHAT: {"messages": MESSAGES}, COMPLETIONS: {"prompt": "x"}}
LATE = {"ended_by": "deadline"}


def text_of(part: dict[str, Any]) -> str:
    holder = part.get("message") or part.get("delta")
    return part["text"] if "text" in part else (holder or {}).get("content", "")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", BODIES)
def test_the_answer_so_far(path: str, stream: bool) -> None:
    with Running(StubEngine(endless(65))) as running:
        running.engine.hold()
        running.engine.step(3)
        body = {**BODIES[path], "deadline": 0.2}
        if stream:
            events = running.events(path, body)
            assert events.pop() == "[DONE]"
            parts = [part for event in events for part in event["choices"]]
        else:
            parts = running.post(path, body).json()["choices"]
        assert "".join(map(text_of, parts)) == "AAA"
        assert parts[-1]["finish_reason"] == "length" and parts[-1]["edged"] == LATE
        assert not any("edged" in part for part in parts[:-1])
        running.engine.wait(lambda stats: stats["cancelled_total"] == 1 and not stats["running"])


def test_nothing_has_come_yet() -> None:
    """Also while the request waits for its turn: the choices that run and those that wait end alike."""
    with Running(StubEngine(endless(65), slots=1)) as running:
        running.engine.hold()
        choices = running.post(COMPLETIONS, {"prompt": ["x", "y"], "deadline": 0.1}).json()["choices"]
        assert [(c["text"], c["finish_reason"], c["edged"]) for c in choices] == [("", "length", LATE)] * 2


@pytest.mark.parametrize("deadline", [60, None])
def test_an_answer_in_time_says_nothing_of_it(deadline: float | None) -> None:
    with Running() as running:
        (choice,) = running.post(COMPLETIONS, {"prompt": "x", "deadline": deadline}).json()["choices"]
        assert choice["text"] == "Hi" and choice["finish_reason"] == "stop" and "edged" not in choice


@pytest.mark.parametrize("deadline", [0, -1, "1", True, 1e9])
def test_bad_deadline(deadline: Any) -> None:
    with Running() as running:
        reply = running.post(COMPLETIONS, {"prompt": "x", "deadline": deadline})
        assert reply.status_code == 400 and reply.json()["error"]["param"] == "deadline"
