"""The paged KV cache: which block holds which positions of which sequence.

A cache has a pool of blocks per layer group; a block holds KV_BLOCK positions of all layers of its group. A sequence
owns a slot, which is a row of every group's block table. Blocks come from the pool as positions are written and go back
when the sequence leaves or, in a group with a window, once no later position can see them.

    block (stride bytes)  [layer][K|V][kv head][KV_BLOCK][head dim] f16, padded to whole pages

Memory is reserved for the whole pool but taken only by blocks in use: a block that goes back gives up its pages.
Windowed pools hold what all slots can need at once, so only the pools of groups without a window run short.
"""

from __future__ import annotations

import numpy as np

from edged.gguf import memory
from edged.kernels.table import KV_BLOCK
from edged.models.blocks import Group

NO_BLOCK = -1


def blocks_of(n: int) -> int:
    """Blocks that n positions fill."""
    return -(-n // KV_BLOCK)


class Pool:
    """The blocks of one group. table: i32 (slots, blocks of a context), NO_BLOCK where there is none."""

    def __init__(self, group: Group, n_blocks: int, n_slots: int, n_ctx: int) -> None:
        self.group = group
        self.v_offset = 2 * group.n_heads_kv * KV_BLOCK * group.head_dim
        self.layer_bytes = 2 * self.v_offset
        self.stride = -(-group.n_layers * self.layer_bytes // memory.PAGE) * memory.PAGE
        self.n_blocks = n_blocks
        self._memory = memory.reserve(n_blocks * self.stride, "the KV cache")
        self.address: int = self._memory.__array_interface__["data"][0]
        self.table = np.full((n_slots, blocks_of(n_ctx)), NO_BLOCK, np.int32)
        self._free = list(range(n_blocks - 1, -1, -1))  # the lowest is taken first
        self._owned: list[range] = [range(0)] * n_slots  # columns of the table that hold blocks

    @property
    def n_free(self) -> int:
        return len(self._free)

    def missing(self, slot: int, end: int) -> int:
        """Blocks to take before the slot holds positions up to `end`."""
        return max(0, blocks_of(end) - self._owned[slot].stop)

    def take(self, slot: int, end: int) -> None:
        """Let the slot hold positions up to `end`; there must be enough free blocks."""
        owned = self._owned[slot]
        for column in range(owned.stop, blocks_of(end)):
            self.table[slot, column] = self._free.pop()
        self._owned[slot] = range(owned.start, max(owned.stop, blocks_of(end)))

    def forget(self, slot: int, start: int) -> None:
        """Give back the blocks that hold only positions before `start`."""
        owned = self._owned[slot]
        keep = min(max(owned.start, start // KV_BLOCK), owned.stop)
        for column in range(owned.start, keep):
            block = int(self.table[slot, column])
            self.table[slot, column] = NO_BLOCK
            memory.discard(self._memory[block * self.stride : (block + 1) * self.stride])
            self._free.append(block)
        self._owned[slot] = range(keep, owned.stop)

    def release(self, slot: int) -> None:
        """Give back all blocks of the slot."""
        self.forget(slot, self._owned[slot].stop * KV_BLOCK)
        self._owned[slot] = range(0)


class KVCache:
    """The pools of all groups, in the order of the graph's groups.

    n_tokens: positions that the groups without a window hold, all slots together; at least n_ctx. max_rows: positions
    of one slot that a step writes at most.
    """

    def __init__(self, groups: tuple[Group, ...], n_ctx: int, n_slots: int, n_tokens: int, max_rows: int) -> None:
        self.n_blocks = blocks_of(n_tokens)
        self.pools = []
        for group in groups:
            n_blocks = self.n_blocks
            if group.window:
                # a step at position p reads from p - window + 1 and writes up to p + max_rows
                n_blocks = n_slots * min(blocks_of(n_ctx), blocks_of(group.window + max_rows) + 1)
            self.pools.append(Pool(group, n_blocks, n_slots, n_ctx))
        self._full = [pool for pool in self.pools if not pool.group.window]
        self._windowed = [pool for pool in self.pools if pool.group.window]
        self._free_slots = list(range(n_slots - 1, -1, -1))

    @property
    def n_free(self) -> int:
        """Blocks that are free in every pool that can run short."""
        return min((pool.n_free for pool in self._full), default=self.n_blocks)

    @staticmethod
    def n_needed(end: int) -> int:
        """Blocks for positions up to `end`, from the start."""
        return blocks_of(end)

    @property
    def n_used(self) -> int:
        return self.n_blocks - self.n_free

    @property
    def used_bytes(self) -> int:
        """Memory of the blocks in use, of all groups."""
        return sum((pool.n_blocks - pool.n_free) * pool.stride for pool in self.pools)

    def open_slot(self, end: int) -> int | None:
        """A slot with room for positions up to `end`; None if there is no slot or are too few blocks."""
        if not self._free_slots or blocks_of(end) > self.n_free:
            return None
        slot = self._free_slots.pop()
        for pool in self._full:
            pool.take(slot, end)
        return slot

    def extend(self, slot: int, start: int, end: int) -> bool:
        """Make ready to write positions start..end of the slot; False, and nothing done, if blocks are short.

        Windowed groups let go what no position from `start` on sees.
        """
        if any(pool.missing(slot, end) > pool.n_free for pool in self._full):
            return False
        for pool in self._full:
            pool.take(slot, end)
        for pool in self._windowed:
            pool.forget(slot, max(0, start - pool.group.window + 1))
            pool.take(slot, end)
        return True

    def close_slot(self, slot: int) -> None:
        """Give back the slot and all its blocks."""
        for pool in self.pools:
            pool.release(slot)
        self._free_slots.append(slot)
