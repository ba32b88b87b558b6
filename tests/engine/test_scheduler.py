"""What runs when: fair shares, pauses, and the promise that a running sequence always gets on. No kernels."""

from __future__ import annotations

import random

import pytest

from edged.engine.kvcache import NO_BLOCK, KVCache
from edged.engine.scheduler import Scheduler, Sequence, Step
from edged.kernels.table import KV_BLOCK
from edged.models.blocks import Group

N_CTX = 256


def scheduler(n_slots: int = 4, n_tokens: int = 2 * N_CTX, max_decode: int = 8) -> Scheduler[Sequence]:
    return Scheduler(KVCache((Group(1, 1, 8),), N_CTX, n_slots, n_tokens, 64), max_decode)


def add(books: Scheduler[Sequence], number: int, n: int, **options: bool) -> Sequence:
    sequence = Sequence(number, range(n), **options)
    books.add(sequence)
    return sequence


def shape(rows: list) -> dict[int, tuple[int, int, int]]:
    """Sequence number -> start, tokens, logits."""
    return {sequence.number: (row.start, len(row.tokens), row.n_logits) for sequence, row in rows}


def test_a_prompt_goes_in_chunks_then_tokens_one_by_one() -> None:
    books = scheduler()
    sequence = add(books, 0, 100)
    seen = []
    for _ in range(4):
        step = books.next_step(40)
        seen.append((shape(step.prompt), shape(step.decode)))
        books.advance(step)
        if sequence.n_fed >= 100:
            sequence.tokens.append(1)
    assert seen == [({0: (0, 40, 0)}, {}), ({0: (40, 40, 0)}, {}), ({0: (80, 20, 1)}, {}), ({}, {0: (100, 1, 1)})]


def test_prompts_share_a_step_equally_and_decode_rows_are_never_left_out() -> None:
    books = scheduler()
    speaker = add(books, 0, 1)
    books.advance(books.next_step(8))
    speaker.tokens.append(5)
    for number, n in ((1, 200), (2, 10), (3, 90)):
        add(books, number, n)
    step = books.next_step(60)
    assert shape(step.decode) == {0: (1, 1, 1)}
    assert shape(step.prompt) == {2: (0, 10, 1), 3: (0, 25, 0), 1: (0, 25, 0)}


def test_a_step_that_was_stopped_is_planned_the_same_way_again() -> None:
    books = scheduler()
    add(books, 0, 50)
    add(books, 1, 70)
    first = books.next_step(64)
    assert books.next_step(64) == first


def test_sequences_start_in_order_when_there_is_room() -> None:
    books = scheduler(n_slots=2)
    sequences = [add(books, i, 100) for i in range(3)]
    books.next_step(64)
    assert books.running == sequences[:2]
    books.remove(sequences[0])
    books.next_step(64)
    assert books.running == sequences[1:]


def test_a_prompt_that_finds_no_room_waits_and_is_not_overtaken() -> None:
    books = scheduler(n_tokens=N_CTX)
    first, second, third = add(books, 0, 200), add(books, 1, 100), add(books, 2, 1)
    books.next_step(64)
    assert books.running == [first]
    assert list(books.waiting) == [second, third]


def test_the_youngest_is_paused_and_fed_anew_as_before() -> None:
    books = scheduler(n_slots=2, n_tokens=N_CTX)
    old, young = add(books, 0, 90), add(books, 1, 90)
    books.advance(books.next_step(256))
    while not books.n_paused:
        for sequence in (old, young):
            sequence.tokens.append(7)
        books.advance(books.next_step(256))
    assert (books.running, list(books.waiting)) == ([old], [young])
    assert (young.slot, young.n_fed) == (None, 0)
    n = len(young.tokens)
    books.remove(old)
    fed = []
    while young.n_pending:
        step = books.next_step(256)
        fed += [("prompt", *row) for row in shape(step.prompt).values()]
        fed += [("decode", *row) for row in shape(step.decode).values()]
        books.advance(step)
    assert fed[0] == ("prompt", 0, 90, 0)
    assert {kind for kind, *_ in fed[1:]} == {"decode"}
    assert sum(count for _, _, count, _ in fed) == n
    assert [logits for *_, logits in fed] == [0] * (len(fed) - 1) + [1]


def test_scored_prompts_get_logits_for_every_token_within_the_room_for_them() -> None:
    books = scheduler(max_decode=8)
    add(books, 0, 30, scored=True)
    add(books, 1, 30)
    positions = []
    while len(positions) < 30:
        step = books.next_step(64)
        assert sum(row.n_logits for _, row in step.prompt) <= 8
        for sequence, row in step.prompt:
            if sequence.number == 0:
                positions += range(row.start + len(row.tokens) - row.n_logits, row.start + len(row.tokens))
        books.advance(step)
        first = books.running[0]
        first.n_scored = min(first.n_fed, 29)
    assert positions == list(range(30))


@pytest.mark.parametrize("n", [1, 2, 20])
def test_a_prompt_without_an_answer_leaves_out_its_last_token(n: int) -> None:
    books = scheduler()
    sequence = add(books, 0, n, scored=True, last=False)
    assert sequence.n_pending == n - 1
    while sequence.n_pending:
        books.advance(books.next_step(64))
    assert sequence.n_fed == n - 1
    assert not books.next_step(64).prompt


def test_whatever_comes_the_oldest_gets_on_and_nothing_is_lost(scaled) -> None:
    """Random arrivals, ends and cancellations on a pool of little more than one context."""
    chance = random.Random(3)
    books = scheduler(n_slots=5, n_tokens=N_CTX * 5 // 4)
    goals: dict[int, int] = {}
    number = 0
    for _ in range(scaled(1500, soak=100_000)):
        if chance.random() < 0.2 and len(goals) < 8:
            n = chance.randint(1, N_CTX // 3)
            add(books, number, n)
            goals[number] = min(N_CTX, n + chance.randint(1, N_CTX))
            number += 1
        step: Step[Sequence] = books.next_step(chance.randint(1, 64))
        everyone = [*books.running, *books.waiting]
        assert sorted(s.number for s in everyone) == sorted(goals)
        assert [s.number for s in books.running] == sorted(s.number for s in books.running)
        if everyone:
            assert min(everyone, key=lambda s: s.number) in [s for s, _ in step.decode + step.prompt]
        for sequence, row in step.decode + step.prompt:
            assert (row.start, row.slot) == (sequence.n_fed, sequence.slot)
            columns = books._cache.pools[0].table[row.slot, : -(-(row.start + len(row.tokens)) // KV_BLOCK)]
            assert NO_BLOCK not in columns
        books.advance(step)
        for sequence, row in step.decode + step.prompt:
            if row.n_logits:
                sequence.tokens.append(0)
                if len(sequence.tokens) == goals[sequence.number]:
                    del goals[sequence.number]
                    books.remove(sequence)
        if everyone and chance.random() < 0.02:
            victim = chance.choice(everyone)
            if goals.pop(victim.number, None):
                books.remove(victim)
    assert books.n_paused > 10
