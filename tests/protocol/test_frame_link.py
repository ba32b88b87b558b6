"""The frame link: both halves against each other, what is repeated, what is out of order, what is left alone."""

from __future__ import annotations

import struct

import pytest

from edged.errors import LinkFailed
from edged.protocol import frame_link as link
from edged.protocol.frame import Frame, FrameDecoder, encode
from edged.protocol.frame_host import Ended, LinkHost, Progress, State, Text
from edged.protocol.frame_link import Asked, Cancelled, DeviceEvent, LinkDevice, Write

NONCE = b"\1\2\3\4"
QUESTION = b"ASK why does the pump stop when the door opens, and what has to be done?"


def say(device: LinkDevice, kind: int, sequence: int, payload: bytes = b"", flags: int = 0) -> list[object]:
    """Feed one frame -> the events, each write as the frame it holds."""
    events = device.feed(encode(Frame(kind, sequence, payload, flags)), 0)
    return [decoded(event) for event in events]


def decoded(event: DeviceEvent) -> object:
    if isinstance(event, Write):
        [frame] = FrameDecoder().feed(event.data)
        return frame
    return event


def greeted() -> LinkDevice:
    device = LinkDevice()
    assert say(device, link.HELLO, 9, NONCE) == [Frame(link.WELCOME, 9, NONCE + struct.pack("<H", 4096))]
    return device


def asked(request: bytes = b"ASK x") -> LinkDevice:
    device = greeted()
    assert say(device, link.REQUEST, 10, request, link.FIRST) == [Asked(request), Frame(link.TAKEN, 10, b"\5\0")]
    return device


def error(sequence: int, code: str, text: bytes = b"") -> Frame:
    return Frame(link.ERROR, sequence, bytes([link.CODES.index(code)]) + text)


def test_an_answer_comes_in_parts() -> None:
    device = asked()
    device.progress(40)
    assert say(device, link.NEXT, 11) == [Frame(link.BUSY, 11, b"\x28")]
    device.text(b"a" * 60)
    assert say(device, link.STATUS, 12) == [Frame(link.STATE, 12, b"\1\x28\x3c\0")]
    assert say(device, link.NEXT, 13) == [Frame(link.TEXT, 13, b"a" * 51)]
    device.text(b"b")
    device.end("length", 70_000, 3)
    assert say(device, link.STATUS, 14) == [Frame(link.STATE, 14, b"\2\x28\x0a\0")]
    assert say(device, link.NEXT, 15) == [Frame(link.TEXT, 15, b"aaaaaaaaab")]
    assert say(device, link.NEXT, 16) == [Frame(link.DONE, 16, struct.pack("<BIHH", 1, 61, 0xFFFF, 3))]
    assert say(device, link.NEXT, 17) == [error(17, "nothing")]
    assert say(device, link.STATUS, 18) == [Frame(link.STATE, 18, bytes(4))]


def test_a_repeated_frame_gets_the_same_answer_and_is_not_done_twice() -> None:
    device = greeted()
    first, again = (say(device, link.REQUEST, 10, b"ASK x", link.FIRST) for _ in range(2))
    assert first[0] == Asked(b"ASK x") and again == first[1:]
    device.text(b"one")
    part = say(device, link.NEXT, 11)
    device.text(b"two")
    assert say(device, link.NEXT, 11) == part == [Frame(link.TEXT, 11, b"one")]
    assert say(device, link.NEXT, 12) == [Frame(link.TEXT, 12, b"two")]


def test_frames_fit_small_buffers() -> None:
    device = asked()
    device.text(bytes(100))
    for event in device.feed(encode(Frame(link.NEXT, 11)), 0):
        assert isinstance(event, Write) and len(event.data) <= 64
    device.fail("x" * 300)
    device.feed(encode(Frame(link.NEXT, 12)), 0)
    [event] = device.feed(encode(Frame(link.NEXT, 13)), 0)
    assert isinstance(event, Write) and len(event.data) == 64 and decoded(event) == error(13, "failed", b"x" * 50)


def test_a_request_goes_in_parts() -> None:
    device = greeted()
    assert say(device, link.REQUEST, 10, b"late") == [error(10, "order")]
    assert say(device, link.REQUEST, 11, b"ASK ", link.FIRST | link.MORE) == [Frame(link.TAKEN, 11, b"\4\0")]
    assert say(device, link.REQUEST, 12, b"why", link.MORE) == [Frame(link.TAKEN, 12, b"\7\0")]
    assert say(device, link.REQUEST, 13, b"?") == [Asked(b"ASK why?"), Frame(link.TAKEN, 13, b"\x08\0")]
    assert say(device, link.REQUEST, 14, b"late") == [error(14, "order")]


def test_a_request_that_is_too_long_is_refused() -> None:
    device = LinkDevice(longest=300)
    say(device, link.HELLO, 0, NONCE)
    assert say(device, link.REQUEST, 1, bytes(200), link.FIRST | link.MORE) == [Frame(link.TAKEN, 1, b"\xc8\0")]
    assert say(device, link.REQUEST, 2, bytes(101), link.MORE) == [error(2, "long")]
    assert say(device, link.REQUEST, 3, b"x") == [error(3, "order")]


def test_out_of_sequence_means_a_new_session() -> None:
    device = LinkDevice()
    assert say(device, link.NEXT, 1) == [error(1, "session")]
    device = asked()
    for sequence in (9, 12, 10):  # 10 again, with another content
        assert say(device, link.NEXT, sequence) == [error(sequence, "session")]
    device.text(b"still there")
    assert say(device, link.NEXT, 11) == [Frame(link.TEXT, 11, b"still there")]
    assert say(device, link.HELLO, 0, NONCE)[0] == Cancelled()
    assert say(device, link.NEXT, 1) == [error(1, "nothing")]


def test_sequence_numbers_begin_again_after_65535() -> None:
    device = LinkDevice()
    say(device, link.HELLO, 0xFFFF, NONCE)
    assert say(device, link.STATUS, 0) == [Frame(link.STATE, 0, bytes(4))]


def test_cancel_and_a_new_request_end_the_answer_under_way() -> None:
    device = asked()
    device.text(b"abc")
    say(device, link.NEXT, 11)
    device.text(b"def")
    assert say(device, link.CANCEL, 12) == [Cancelled(), Frame(link.DONE, 12, struct.pack("<BIHH", 3, 3, 0, 0))]
    device.text(b"too late")
    assert say(device, link.NEXT, 13) == [error(13, "nothing")]
    assert say(device, link.CANCEL, 14) == [Frame(link.DONE, 14, struct.pack("<BIHH", 3, 0, 0, 0))]
    assert say(device, link.REQUEST, 15, b"VER", link.FIRST)[0] == Asked(b"VER")
    assert say(device, link.REQUEST, 16, b"VER", link.FIRST)[:2] == [Cancelled(), Asked(b"VER")]
    device.end("stop")
    assert say(device, link.REQUEST, 17, b"VER", link.FIRST)[0] == Asked(b"VER")


def test_a_host_that_went_away_is_noticed_once() -> None:
    device = LinkDevice(patience=60)
    device.feed(encode(Frame(link.HELLO, 0, NONCE)), 100)
    assert device.expire(1000) == []
    device.feed(encode(Frame(link.REQUEST, 1, b"VER", link.FIRST)), 1000)
    assert device.expire(1060) == []
    assert device.expire(1061) == [Cancelled()]
    assert device.expire(1062) == []


def test_unknown_kinds_and_its_own_frames() -> None:
    device = greeted()
    assert say(device, 0x33, 10) == [error(10, "kind")]
    assert say(device, link.TEXT, 11, b"echo") == []
    assert say(device, link.STATUS, 11) == [Frame(link.STATE, 11, bytes(4))]


def talk(host: LinkHost, device: LinkDevice, answer: bytes = b"because", *, lose: frozenset[int] = frozenset(),
         start: float = 0.0) -> list[object]:
    """Let them talk until the host has no more to do; frames with the numbers in `lose` never arrive, on either way."""
    events: list[object] = []
    now, number = start, 0
    while host.working:
        now = max(now, host.wake)
        written = host.due(now)
        number += 1
        for event in device.feed(written, now) if number not in lose else []:
            if isinstance(event, Asked):
                events.append(event)
                device.text(answer)
                device.end("stop", 7, 2)
            elif isinstance(event, Write):
                number += 1
                if number not in lose:
                    events += host.feed(event.data, now + 0.01)
    return events


ANSWERED = [Asked(QUESTION), Text(b"because"), Ended("stop", 7, 7, 2)]


def test_host_and_device() -> None:
    host, device = LinkHost(NONCE), LinkDevice()
    assert talk(host, device) == []
    for _ in range(2):
        host.ask(QUESTION)
        assert talk(host, device) == ANSWERED
    assert host.repeated == 0


@pytest.mark.parametrize("number", range(1, 15))
def test_whichever_frame_is_lost_the_question_is_answered_once(number: int) -> None:
    host, device = LinkHost(NONCE), LinkDevice()
    host.ask(QUESTION)
    assert talk(host, device, lose=frozenset({number})) == ANSWERED
    assert host.repeated == (number <= 10)


def test_a_device_that_was_started_anew_is_asked_again_unless_it_had_begun() -> None:
    host = LinkHost(NONCE)
    host.ask(QUESTION)
    assert talk(host, LinkDevice()) == ANSWERED
    host.ask(QUESTION)
    assert talk(host, LinkDevice()) == ANSWERED
    host.status()
    assert talk(host, LinkDevice()) == [State("idle", 0, 0)]
    host.ask(b"VER")
    device = LinkDevice()
    while not host.feed(b"".join(e.data for e in device.feed(host.due(9), 9) if isinstance(e, Write)), 9):
        pass  # up to BUSY
    with pytest.raises(LinkFailed, match="session"):
        talk(host, LinkDevice(), start=9)
    host.ask(QUESTION)
    assert talk(host, device, start=9) == ANSWERED


def test_the_host_gives_up_in_time() -> None:
    host = LinkHost(NONCE, patience=5, reply_time=0.5)
    host.ask(QUESTION)
    with pytest.raises(LinkFailed, match="no answer within 5 seconds"):
        talk(host, LinkDevice(), lose=frozenset(range(100)))
    assert host.repeated == 9 and not host.working


def test_the_host_ignores_echoes_and_answers_that_are_not_its_own() -> None:
    host = LinkHost(NONCE)
    host.ask(b"VER")
    assert host.feed(host.due(0), 0) == []
    for frame in (
        Frame(link.WELCOME, 0, bytes(6)),  # another nonce
        Frame(link.WELCOME, 1, NONCE + bytes(2)),
        Frame(link.WELCOME, 0, NONCE),  # too short
        Frame(link.TEXT, 0, NONCE + b"text"),
    ):
        assert host.feed(encode(frame), 0) == []
        assert host.due(0) == b""
    host.feed(encode(Frame(link.WELCOME, 0, NONCE + bytes(2))), 0)
    assert FrameDecoder().feed(host.due(0)) == [Frame(link.REQUEST, 1, b"VER", link.FIRST)]


def test_the_host_waits_between_questions_whether_there_is_text() -> None:
    host, device = LinkHost(NONCE, pause=0.1), LinkDevice()
    host.ask(b"VER")
    events: list[object] = []
    while not events:
        events += host.feed(b"".join(e.data for e in device.feed(host.due(5), 5) if isinstance(e, Write)), 5)
    assert events == [Progress(0)]
    assert host.due(5.05) == b"" and host.wake == 5.1
    assert host.due(5.1)


def test_errors_reach_the_caller_by_name() -> None:
    host, device = LinkHost(NONCE), LinkDevice(longest=10)
    host.ask(QUESTION)
    with pytest.raises(LinkFailed) as failed:
        talk(host, device)
    assert failed.value.code == "long"
    device.fail("nobody listens")
    host.ask(b"VER")
    assert talk(host, device)[-1] == Ended("stop", 7, 7, 2)


def test_a_new_question_drops_the_old_one() -> None:
    host, device = LinkHost(NONCE), LinkDevice()
    host.ask(b"ASK one")
    for _ in range(2):
        host.feed(b"".join(e.data for e in device.feed(host.due(0), 0) if isinstance(e, Write)), 0)
    device.text(b"old")
    host.due(0)  # NEXT is under way
    host.ask(QUESTION)
    assert talk(host, device) == ANSWERED


def test_cancel_from_the_host() -> None:
    host, device = LinkHost(NONCE), LinkDevice()
    host.ask(b"ASK one")
    host.cancel()
    events: list[object] = []
    while host.working:
        for event in device.feed(host.due(0), 0):
            events += host.feed(event.data, 0) if isinstance(event, Write) else [event]
    assert events == [Asked(b"ASK one"), Cancelled(), Ended("cancelled", 0, 0, 0)]
