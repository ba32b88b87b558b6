"""Greedy pair merging, the heart of both tokenizer models: join the neighbours of best priority until none is left.

`merge(symbols, joiner, priorities) -> symbols`. At most 3 n pairs are ever asked for or queued, so that a word of n
symbols costs O(n log n) whatever it holds.
"""

from __future__ import annotations

from collections.abc import Mapping
from heapq import heapify, heappop, heappush


def merge(symbols: list[bytes], joiner: bytes, priorities: Mapping[bytes, float | None]) -> list[bytes]:
    """Merge neighbours in order of ascending `priorities[left + joiner + right]`; equal ones from left to right.

    A priority is None for a pair that must not merge. The rule is that of llama.cpp for BPE (priority: rank of the
    merge) and SPM (priority: negated score of the joined piece).
    """
    count = len(symbols)
    # a doubly linked list in arrays; a symbol merged into its left neighbour becomes empty
    text = list(symbols)
    after = list(range(1, count + 1))
    before = list(range(-1, count - 1))
    # (priority, left, right, length of both): the length tells whether a queued pair is still what it was
    queue: list[tuple[float, int, int, int]] = []
    for left in range(count - 1):
        value = priorities[text[left] + joiner + text[left + 1]]
        if value is not None:
            queue.append((value, left, left + 1, len(text[left]) + len(text[left + 1])))
    heapify(queue)
    while queue:
        _, left, right, length = heappop(queue)
        if not text[left] or not text[right] or len(text[left]) + len(text[right]) != length:
            continue
        joined = text[left] = text[left] + text[right]
        text[right] = b""
        following = after[left] = after[right]
        if following < count:
            before[following] = left
            value = priorities[joined + joiner + text[following]]
            if value is not None:
                heappush(queue, (value, left, following, length + len(text[following])))
        preceding = before[left]
        if preceding >= 0:
            value = priorities[text[preceding] + joiner + joined]
            if value is not None:
                heappush(queue, (value, preceding, left, length + len(text[preceding])))
    return [symbol for symbol in text if symbol]
