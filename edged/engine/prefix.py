"""Prefixes that are in the cache: a tree whose nodes are full blocks, keyed by their tokens below those before them.

A block is `tile` if all its positions, and all before them, were computed as a prompt: it equals what any request with
the same tokens would compute, bit for bit. Others hold generated tokens, whose numbers are rounded differently; they
are nodes of their own, which only requests that allow it may use.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from edged.kernels.table import KV_BLOCK

NO_BLOCK = -1
Key = tuple[tuple[int, ...], bool]  # tokens, tile


class Node:
    """A full block after those of its parents. blocks: one of each group; NO_BLOCK where a windowed group let it go."""

    __slots__ = ("blocks", "children", "depth", "key", "parent")

    def __init__(self, parent: Node | None, key: Key, blocks: list[int]) -> None:
        self.parent = parent
        self.key = key
        self.blocks = blocks
        self.depth: int = parent.depth + 1 if parent else 0  # blocks up to its end
        self.children: dict[Key, Node] = {}
        if parent:
            parent.children[key] = self

    @property
    def tile(self) -> bool:
        return self.key[1]

    def remove(self) -> None:
        """Take the node out of the tree; it has no children."""
        assert self.parent is not None and not self.children
        del self.parent.children[self.key]

    def child_key(self, tokens: Sequence[int], n_prompt: int) -> Key:
        """The key of the block that comes next in a sequence whose first n_prompt tokens are its prompt."""
        end = (self.depth + 1) * KV_BLOCK
        return tuple(tokens[end - KV_BLOCK : end]), self.tile and end <= n_prompt


def root() -> Node:
    """An empty tree."""
    return Node(None, ((), True), [])


def walk(node: Node, tokens: Sequence[int], n: int, tile_only: bool) -> Iterator[Node]:
    """The nodes below a root that hold the first n tokens, as far as there are any."""
    while (node.depth + 1) * KV_BLOCK <= n:
        words, _ = node.child_key(tokens, n)
        child = node.children.get((words, True))
        if child is None and not tile_only:
            child = node.children.get((words, False))
        if child is None:
            return
        yield child
        node = child
