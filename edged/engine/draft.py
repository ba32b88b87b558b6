"""Drafts: what a sequence may say next, guessed from what stands in its prompt and its answer so far.

If the last NGRAM tokens have occurred before, what followed them then is the draft (prompt lookup decoding, Saxena,
2023: github.com/apoorvumang/prompt-lookup-decoding). The model computes it in one step with the token before it; as far
as it would have chosen the same, several tokens come of the step. Each is chosen as ever, from its own logits and with
its own random number, so guesses change no answer.
"""

from __future__ import annotations

from collections.abc import Sequence

NGRAM = 3
FIRST_LENGTH = 4
MOST_LENGTH = 64  # a step seldom has as many rows to spare
MOST_WAIT = 64  # tokens without a draft, at most, after drafts of which nothing was right


class Drafter:
    """The guesses for one sequence. They grow as long as they are right; after wrong ones there are none for a while.

    n_drafted, n_accepted: tokens guessed, and right, so far; for its user to count.
    """

    def __init__(self) -> None:
        self.n_drafted = 0
        self.n_accepted = 0
        self._ends: dict[tuple[int, ...], int] = {}  # NGRAM tokens -> the place after their last occurrence
        self._indexed = 0
        self._length = FIRST_LENGTH
        self._wait = 1
        self._resume = 0  # number of tokens from which on there are drafts again

    def draft(self, tokens: Sequence[int], most: int) -> list[int]:
        """Up to `most` tokens; the same until `learn` is called or tokens come."""
        n = len(tokens)
        if n < self._resume or n <= NGRAM:
            return []
        for end in range(max(self._indexed, NGRAM), n):
            self._ends[tuple(tokens[end - NGRAM : end])] = end
        self._indexed = n
        found = self._ends.get(tuple(tokens[n - NGRAM :]))
        if found is None:
            return []
        period = n - found  # what ends here may go on as a loop
        return [tokens[found + i % period] for i in range(min(most, self._length))]

    def learn(self, n_tokens: int, n_drafted: int, n_accepted: int) -> None:
        """What came of a draft, after which the sequence has n_tokens."""
        if n_accepted == n_drafted:
            self._length = min(2 * max(self._length, n_drafted), MOST_LENGTH)
        else:
            self._length = max(1, n_accepted)
        if n_accepted:
            self._wait = 1
        else:
            self._wait = min(2 * self._wait, MOST_WAIT)
            self._resume = n_tokens + self._wait
