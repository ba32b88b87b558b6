"""Which sequences run, and which of their tokens a step computes. No kernels, no threads: it only keeps the books.

Sequences wait in the order they came, run when there is a slot and room in the KV cache for their prompt and one token
more, and then feed their tokens, step by step: the prompt as prompt rows, generated tokens as decode rows.

When blocks run out the youngest running sequence is paused: its blocks go, and it waits again, before all that came
later. Once it runs again it feeds all its tokens anew, each in the way it was fed before, so its cache becomes the same
bit for bit and it goes on as if nothing had been. The oldest always finds room, as the cache holds one whole context.

What a sequence begins with may be in the cache (`prefix`); then it is not fed. Blocks of generated tokens are only
looked for when it starts: if it is paused, its prompt is computed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from edged.engine.batch import Rows
from edged.engine.kvcache import KVCache
from edged.engine.prefix import Node
from edged.kernels.table import KV_BLOCK


class Sequence:
    """The tokens of one request: the prompt's and those generated so far.

    number: the order in which requests came. n_scored: prompt tokens that have their log-probability; None if nobody
    asks for them. n_cached: prompt tokens that were found in the cache at the start. last: whether the prompt's last
    token is fed, which it need not be if nothing is generated. deterministic: take nothing but `tile` blocks.
    """

    def __init__(self, number: int, prompt: Iterable[int], *, scored: bool = False, last: bool = True,
                 deterministic: bool = False) -> None:
        self.number = number
        self.tokens = list(prompt)
        self.n_prompt = len(self.tokens)
        self.n_scored: int | None = 0 if scored else None
        self.n_fed = 0
        self.n_cached = 0
        self.slot: int | None = None
        self._last = last
        self._deterministic = deterministic

    def prefix(self, cache: KVCache) -> list[Node]:
        """What of it is in the cache. Its next token's logits are not, so one token is left to feed."""
        if self.n_scored is not None:
            return []
        again = len(self.tokens) > self.n_prompt
        return cache.prefix(self.tokens, self.n_prompt - (not again), self._deterministic or again)

    @property
    def n_pending(self) -> int:
        """Tokens whose turn has come and that are not in the cache yet."""
        return len(self.tokens) - self.n_fed - (not self._last)

    @property
    def in_prompt(self) -> bool:
        """Whether the next tokens to feed are the prompt's."""
        return self.n_fed < self.n_prompt

    def draft(self, most: int) -> list[int]:
        """Guesses of what comes after its tokens, to be computed with the last one. The same until `advance`."""
        return []

    def rows(self, n: int, draft: Iterable[int] = ()) -> Rows:
        """The next n tokens, and guesses of those after them."""
        assert self.slot is not None
        start, end = self.n_fed, self.n_fed + n
        n_logits = int(end == len(self.tokens))
        if self.n_scored is not None:
            n_logits += max(0, min(end, self.n_prompt - 1) - max(start, self.n_scored))
        guesses = list(draft)
        return Rows(self.tokens[start:end] + guesses, start, self.slot, n_logits + len(guesses), len(guesses))


S = TypeVar("S", bound=Sequence)


@dataclass
class Step(Generic[S]):
    """The rows of a step and whose they are."""

    decode: list[tuple[S, Rows]]
    prompt: list[tuple[S, Rows]]


class Scheduler(Generic[S]):
    """`waiting` is in the order in which sequences run next, `running` oldest first.

    n_hits: sequences that began with something in the cache; n_cached: tokens they found there.
    """

    def __init__(self, cache: KVCache, max_decode: int) -> None:
        """max_decode: decode rows of a step, and rows of logits; at least the number of slots."""
        self.waiting: deque[S] = deque()
        self.running: list[S] = []
        self.n_paused = 0
        self.n_hits = 0
        self.n_cached = 0
        self._cache = cache
        self._max_decode = max_decode

    def add(self, sequence: S) -> None:
        self.waiting.append(sequence)

    def remove(self, sequence: S) -> None:
        """The sequence ends here; its blocks are free at once."""
        if sequence.slot is None:
            self.waiting.remove(sequence)
        else:
            self.running.remove(sequence)
            self._release(sequence)

    def next_step(self, max_prompt: int) -> Step[S]:
        """What to compute next, with at most max_prompt prompt rows. Until `advance` is called the answer is the same,
        but for sequences that have come or gone."""
        self._admit()
        decode = self._decode_rows()
        return Step(decode, self._prompt_rows(max_prompt, self._max_decode - sum(rows.n_logits for _, rows in decode)))

    def advance(self, step: Step[S]) -> None:
        """The step has been computed. Guesses count as fed only once somebody adds them to n_fed."""
        for sequence, rows in step.decode + step.prompt:
            sequence.n_fed += len(rows.tokens) - rows.n_draft
            self._cache.remember(rows.slot, sequence.tokens, sequence.n_fed, sequence.n_prompt)

    def _admit(self) -> None:
        while self.waiting:
            sequence = self.waiting[0]
            reserve = len(self.running)  # a block for each that runs, lest one be paused for the newcomer at once
            end, prefix = len(sequence.tokens) + 1, sequence.prefix(self._cache)
            if self.running and self._cache.n_needed(end, prefix) + reserve > self._cache.n_free:
                return
            slot = self._cache.open_slot(end, prefix)
            if slot is None:
                return
            sequence.slot = slot
            sequence.n_fed = len(prefix) * KV_BLOCK
            if len(sequence.tokens) == sequence.n_prompt:
                sequence.n_cached = sequence.n_fed
                self.n_hits += bool(prefix)
                self.n_cached += sequence.n_fed
            self.waiting.popleft()
            self.running.append(sequence)
            self.running.sort(key=lambda s: s.number)

    def _decode_rows(self) -> list[tuple[S, Rows]]:
        """One row for each sequence past its prompt; those that were paused catch up, and others guess, with what rows
        are left."""
        spare = self._max_decode - len(self.running)
        decode = []
        for sequence in list(self.running):
            if sequence.in_prompt or sequence.slot is None:
                continue
            n = min(sequence.n_pending, 1 + spare)
            if self._make_room(sequence, n):
                draft = sequence.draft(spare - n + 1) if n == sequence.n_pending else []
                if draft and not self._extend(sequence, n + len(draft)):
                    draft = []
                spare -= n - 1 + len(draft)
                decode.append((sequence, sequence.rows(n, draft)))
        return decode

    def _make_room(self, sequence: S, n: int) -> bool:
        """Blocks for the next n tokens, taken from younger sequences if need be. False: it is itself the youngest."""
        while sequence.slot is not None:
            if self._extend(sequence, n):
                return True
            self._pause(self.running[-1])
        return False

    def _extend(self, sequence: S, n: int) -> bool:
        assert sequence.slot is not None
        return self._cache.extend(sequence.slot, sequence.n_fed, sequence.n_fed + n)

    def _pause(self, sequence: S) -> None:
        self.running.remove(sequence)
        self._release(sequence)
        self.waiting.appendleft(sequence)
        self.n_paused += 1

    def _release(self, sequence: S) -> None:
        assert sequence.slot is not None
        self._cache.close_slot(sequence.slot)
        sequence.slot = None
        sequence.n_fed = 0

    def _prompt_rows(self, budget: int, spare_logits: int) -> list[tuple[S, Rows]]:
        """Divide the budget equally; what a short prompt leaves goes to the longer ones."""
        todo = [sequence for sequence in self.running if sequence.in_prompt and sequence.n_pending][:budget]
        todo.sort(key=lambda sequence: sequence.n_prompt - sequence.n_fed)
        spare_logits -= len(todo)
        prompt = []
        for i, sequence in enumerate(todo):
            n = min(sequence.n_pending, sequence.n_prompt - sequence.n_fed, -(-budget // (len(todo) - i)))
            if sequence.n_scored is not None:
                n = min(n, 1 + spare_logits)
                spare_logits -= n - 1
            if n and self._extend(sequence, n):
                budget -= n
                prompt.append((sequence, sequence.rows(n)))
        return prompt
