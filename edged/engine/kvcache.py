"""The paged KV cache: which block holds which positions of which sequence.

A cache has a pool of blocks per layer group; a block holds KV_BLOCK positions of all layers of its group. A sequence
owns a slot, which is a row of every group's block table. Blocks come from the pool as positions are written and go back
when the sequence leaves or, in a group with a window, once no later position can see them.

    block (stride bytes)  [layer][K|V][kv head][KV_BLOCK][head dim] f16, padded to whole pages

Full blocks enter a tree of prefixes (`prefix`). A sequence that begins with the tokens of some takes them instead of
computing them; they are never written again, so sharing needs no copies. Those nobody uses are kept, in each pool at
most as many as allowed, until blocks run short: the one that was let go first goes first. Sequences let their last
block go first, so what goes is always the end of a prefix.

Memory is reserved for the whole pool but taken only by blocks in use or kept: a block that is free has no pages.
Windowed pools hold what all slots can need at once and what may be kept, so only pools without a window run short.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from edged.engine.prefix import NO_BLOCK, Node, root, walk
from edged.gguf import memory
from edged.kernels.table import KV_BLOCK
from edged.models.blocks import Group


def blocks_of(n: int) -> int:
    """Blocks that n positions fill."""
    return -(-n // KV_BLOCK)


class Pool:
    """The blocks of one group. table: i32 (slots, blocks of a context), NO_BLOCK where there is none.

    kept: blocks of the tree that no slot uses, with their nodes, in the order in which they were let go.
    """

    def __init__(self, group: Group, n_blocks: int, n_slots: int, n_ctx: int) -> None:
        self.group = group
        self.v_offset = 2 * group.n_heads_kv * KV_BLOCK * group.head_dim
        self.layer_bytes = 2 * self.v_offset
        self.stride = -(-group.n_layers * self.layer_bytes // memory.PAGE) * memory.PAGE
        self.n_blocks = n_blocks
        self.kept: dict[int, Node] = {}
        self._memory = memory.reserve(n_blocks * self.stride, "the KV cache")
        self.address: int = self._memory.__array_interface__["data"][0]
        self.table = np.full((n_slots, blocks_of(n_ctx)), NO_BLOCK, np.int32)
        self._free = list(range(n_blocks - 1, -1, -1))  # the lowest is taken first
        self._users = [0] * n_blocks
        self._nodes: dict[int, Node] = {}
        self._owned: list[range] = [range(0)] * n_slots  # columns of the table that hold blocks

    @property
    def n_unused(self) -> int:
        """Blocks that can be taken at once."""
        return len(self._free)

    @property
    def n_free(self) -> int:
        """Blocks that can be taken once nothing is kept."""
        return len(self._free) + len(self.kept)

    def in_use(self, block: int) -> bool:
        return self._users[block] > 0

    def missing(self, slot: int, end: int) -> int:
        """Blocks to take before the slot holds positions up to `end`."""
        return max(0, blocks_of(end) - self._owned[slot].stop)

    def first_column(self, start: int) -> int:
        """The first block that a step at position `start` reads."""
        return max(0, start - self.group.window + 1) // KV_BLOCK if self.group.window else 0

    def take(self, slot: int, end: int) -> None:
        """Let the slot hold positions up to `end`; there must be enough unused blocks."""
        owned = self._owned[slot]
        for column in range(owned.stop, blocks_of(end)):
            block = self._free.pop()
            self._users[block] = 1
            self.table[slot, column] = block
        self._owned[slot] = range(owned.start, max(owned.stop, blocks_of(end)))

    def share(self, slot: int, first: int, blocks: Iterable[int]) -> None:
        """Let an empty slot hold these blocks of the tree, from column `first` on."""
        column = first
        for block in blocks:
            self._use(block)
            self.table[slot, column] = block
            column += 1
        self._owned[slot] = range(first, column)

    def swap(self, slot: int, column: int, block: int) -> None:
        """Let the slot use a block of the tree that holds the same as its own."""
        self._use(block)
        self._let_go(int(self.table[slot, column]))
        self.table[slot, column] = block

    def enter(self, block: int, node: Node) -> None:
        """The block, which is in use, is in the tree from now on."""
        self._nodes[block] = node

    def discard(self, block: int) -> None:
        """Give up a block that is kept."""
        del self.kept[block], self._nodes[block]
        self._give_back(block)

    def forget(self, slot: int, start: int) -> None:
        """Let go the blocks that no step at position `start` or later reads."""
        owned = self._owned[slot]
        keep = min(max(owned.start, self.first_column(start)), owned.stop)
        self._clear(slot, range(owned.start, keep))
        self._owned[slot] = range(keep, owned.stop)

    def release(self, slot: int) -> None:
        """Let go all blocks of the slot, the last one first."""
        self._clear(slot, self._owned[slot][::-1])
        self._owned[slot] = range(0)

    def bytes_of(self, block: int) -> np.ndarray:
        """The block's memory: u8 (stride,)."""
        return self._memory[block * self.stride : (block + 1) * self.stride]

    def fill(self, data: np.ndarray) -> int:
        """A block that was unused with this content."""
        block = self._free.pop()
        self.bytes_of(block)[:] = data
        return block

    def keep(self, block: int, node: Node) -> None:
        """The block, which no slot uses, is in the tree from now on."""
        self._nodes[block] = self.kept[block] = node

    def _clear(self, slot: int, columns: range) -> None:
        for column in columns:
            self._let_go(int(self.table[slot, column]))
            self.table[slot, column] = NO_BLOCK

    def _use(self, block: int) -> None:
        self.kept.pop(block, None)
        self._users[block] += 1

    def _let_go(self, block: int) -> None:
        self._users[block] -= 1
        if self._users[block]:
            return
        node = self._nodes.get(block)
        if node:
            self.kept[block] = node
        else:
            self._give_back(block)

    def _give_back(self, block: int) -> None:
        memory.discard(self.bytes_of(block))
        self._free.append(block)


class KVCache:
    """The pools of all groups, in the order of the graph's groups.

    n_tokens: positions that the groups without a window hold, all slots together; at least n_ctx. max_rows: positions
    of one slot that a step writes at most. keep: positions kept, at most, of sequences that have left; 0: no prefix is
    ever shared.
    """

    def __init__(self, groups: tuple[Group, ...], n_ctx: int, n_slots: int, n_tokens: int, max_rows: int,
                 keep: int = 0) -> None:
        self.n_blocks = blocks_of(n_tokens)
        self._most_kept = keep // KV_BLOCK
        self.pools = []
        for group in groups:
            n_blocks = self.n_blocks
            if group.window:
                # a step at position p reads from p - window + 1 and writes up to p + max_rows
                most = min(blocks_of(n_ctx), blocks_of(group.window + max_rows) + 1)
                n_blocks = n_slots * most + self._most_kept
            self.pools.append(Pool(group, n_blocks, n_slots, n_ctx))
        self._full = [pool for pool in self.pools if not pool.group.window]
        self._windowed = [pool for pool in self.pools if pool.group.window]
        self._free_slots = list(range(n_slots - 1, -1, -1))
        self._root = root()
        # where each slot's sequence is in the tree; None once it has left it
        self._tails: list[Node | None] = [None] * n_slots

    @property
    def n_free(self) -> int:
        """Blocks that are free, or kept for nobody yet, in every pool that can run short."""
        return min((pool.n_free for pool in self._full), default=self.n_blocks)

    @property
    def n_used(self) -> int:
        return self.n_blocks - self.n_free

    @property
    def n_kept(self) -> int:
        """Blocks that nobody uses but that a prompt may begin with."""
        return max((len(pool.kept) for pool in self._full), default=0)

    @property
    def n_bytes(self) -> int:
        """Memory of all blocks of all groups."""
        return sum(pool.n_blocks * pool.stride for pool in self.pools)

    @property
    def used_bytes(self) -> int:
        """Memory of the blocks in use and kept, of all groups."""
        return sum((pool.n_blocks - pool.n_unused) * pool.stride for pool in self.pools)

    def prefix(self, tokens: Sequence[int], n: int, tile_only: bool) -> list[Node]:
        """Blocks of the tree with which these tokens begin, no more than the first n of them.

        Ends where every windowed group still has what the next position sees. tile_only: see `prefix`.
        """
        path: list[Node] = []
        length = 0
        runs = [0] * len(self.pools)  # blocks without a gap up to the end of the path
        for node in walk(self._root, tokens, n, tile_only):
            path.append(node)
            for i, block in enumerate(node.blocks):
                runs[i] = 0 if block == NO_BLOCK else runs[i] + 1
            start = node.depth * KV_BLOCK
            if all(run >= node.depth - pool.first_column(start) for pool, run in zip(self.pools, runs, strict=True)):
                length = node.depth
        return path[:length]

    def n_needed(self, end: int, prefix: Sequence[Node] = ()) -> int:
        """Blocks by which `n_free` falls for positions up to `end`, the first of which are this prefix."""
        if not self._full:
            return 0
        i = self.pools.index(self._full[0])
        return blocks_of(end) - sum(self._full[0].in_use(node.blocks[i]) for node in prefix)

    def open_slot(self, end: int, prefix: Sequence[Node] = ()) -> int | None:
        """A slot with room for positions up to `end`, of which it holds the prefix; None if there is no slot or are
        too few blocks."""
        if not self._free_slots or self.n_needed(end, prefix) > self.n_free:
            return None
        slot = self._free_slots.pop()
        for i, pool in enumerate(self.pools):
            first = min(pool.first_column(len(prefix) * KV_BLOCK), len(prefix))
            pool.share(slot, first, (node.blocks[i] for node in prefix[first:]))
        for pool in self._full:
            self._take(pool, slot, end)
        self._tails[slot] = (prefix[-1] if prefix else self._root) if self._most_kept else None
        return slot

    def extend(self, slot: int, start: int, end: int) -> bool:
        """Make ready to write positions start..end of the slot; False, and nothing done, if blocks are short.

        Windowed groups let go what no position from `start` on sees.
        """
        if any(pool.missing(slot, end) > pool.n_free for pool in self._full):
            return False
        for pool in self._full:
            self._take(pool, slot, end)
        for pool in self._windowed:
            pool.forget(slot, start)
            self._take(pool, slot, end)
            self._trim(pool)
        return True

    def remember(self, slot: int, tokens: Sequence[int], n_fed: int, n_prompt: int) -> None:
        """Enter into the tree what is full of the slot, of whose tokens n_fed are computed and n_prompt its prompt."""
        tail = self._tails[slot]
        while tail is not None and (tail.depth + 1) * KV_BLOCK <= n_fed:
            tail = self._enter(slot, tail, tail.child_key(tokens, n_prompt))
        self._tails[slot] = tail

    def close_slot(self, slot: int) -> None:
        """Give back the slot and all its blocks."""
        for pool in self.pools:
            pool.release(slot)
        for pool in (*self._full, *self._windowed):
            self._trim(pool)
        self._free_slots.append(slot)

    def kept_tiles(self) -> list[Node]:
        """The `tile` nodes that nobody uses and that are whole, they and all above; parents first."""
        found = {self._root: None}  # a dict, for its order
        for node in reversed(self._full[0].kept.values() if self._full else ()):
            if node.tile and node.parent in found and NO_BLOCK not in node.blocks:
                found[node] = None
        return list(found)[1:]

    def keep(self, parents: Sequence[int], tokens: Sequence[Sequence[int]], data: np.ndarray) -> None:
        """Fill an empty cache with kept `tile` nodes, parents (-1: none) first, as many as are allowed.

        data: u8 (nodes, bytes of a block of each group).
        """
        nodes: list[Node] = []
        for parent, words, row in zip(parents[: self._most_kept], tokens, data, strict=False):
            tail = nodes[parent] if parent >= 0 else self._root
            node = Node(tail, (tuple(words), True), [])
            start = 0
            for pool in self.pools:
                node.blocks.append(pool.fill(row[start : start + pool.stride]))
                start += pool.stride
            nodes.append(node)
        for node in reversed(nodes):  # the end of a prefix goes first
            for pool, block in zip(self.pools, node.blocks, strict=True):
                pool.keep(block, node)

    def _enter(self, slot: int, tail: Node, key: tuple[tuple[int, ...], bool]) -> Node | None:
        """The node of the slot's block after `tail`; None if another sequence's block, with other bits, has the place.

        A sequence uses the blocks of all nodes above its own, so that what is kept is never above what is used.
        """
        node = tail.children.get(key)
        if node is None:
            node = Node(tail, key, [NO_BLOCK] * len(self.pools))
        elif not node.tile:
            return None
        for i, pool in enumerate(self.pools):
            own = int(pool.table[slot, tail.depth])
            if own == NO_BLOCK:  # a short window has passed it already
                continue
            if node.blocks[i] == NO_BLOCK:
                node.blocks[i] = own
                pool.enter(own, node)
            else:
                pool.swap(slot, tail.depth, node.blocks[i])
        return node

    def _take(self, pool: Pool, slot: int, end: int) -> None:
        for _ in range(pool.missing(slot, end) - pool.n_unused):
            self._discard(pool, next(iter(pool.kept)))
        pool.take(slot, end)

    def _trim(self, pool: Pool) -> None:
        """Keep no more than is allowed. Of a running sequence a windowed pool keeps the beginning."""
        while len(pool.kept) > self._most_kept:
            left = (block for block, node in pool.kept.items() if not (pool.group.window and self._runs(node)))
            self._discard(pool, next(left, next(reversed(pool.kept))))

    def _runs(self, node: Node) -> bool:
        """Whether a running sequence has this prefix."""
        pairs = zip(self.pools, node.blocks, strict=True)
        return any(not pool.group.window and pool.in_use(block) for pool, block in pairs)

    def _discard(self, pool: Pool, block: int) -> None:
        """Give up a block that is kept; in a group without a window the whole node."""
        node = pool.kept[block]
        if not pool.group.window:
            node.remove()
            for other, kept in zip(self.pools, node.blocks, strict=True):
                if kept != NO_BLOCK:
                    other.discard(kept)
        else:
            pool.discard(block)
            node.blocks[self.pools.index(pool)] = NO_BLOCK
