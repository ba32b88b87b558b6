"""Blocks are owned by one slot, come back when they should, and give up their memory."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np

from edged.engine.kvcache import NO_BLOCK, KVCache, Pool, blocks_of
from edged.gguf import memory
from edged.kernels.table import KV_BLOCK
from edged.models.blocks import Group

FULL, LOCAL = Group(3, 2, 16), Group(5, 2, 16, window=40)
N_CTX, N_SLOTS, MAX_ROWS = 512, 4, 64


def cache(n_tokens: int = 2 * N_CTX) -> KVCache:
    return KVCache((LOCAL, FULL), N_CTX, N_SLOTS, n_tokens, MAX_ROWS)


def blocks(pool: Pool, slot: int) -> list[int]:
    return [block for block in pool.table[slot].tolist() if block != NO_BLOCK]


def test_a_slot_holds_what_was_promised() -> None:
    kv = cache()
    slot = kv.open_slot(100)
    assert slot is not None
    local, full = kv.pools
    assert len(blocks(full, slot)) == 4
    assert kv.extend(slot, 0, 33)
    assert [len(blocks(pool, slot)) for pool in (local, full)] == [2, 4]
    assert (kv.n_used, kv.used_bytes) == (4, 2 * local.stride + 4 * full.stride)
    kv.close_slot(slot)
    assert (kv.n_used, kv.used_bytes) == (0, 0)
    assert (local.table == NO_BLOCK).all()


def test_too_few_blocks_change_nothing() -> None:
    kv = cache(N_CTX)
    slots = [kv.open_slot(N_CTX // 2), kv.open_slot(N_CTX // 2 - KV_BLOCK)]
    assert kv.n_free == 1
    assert kv.open_slot(2 * KV_BLOCK) is None
    assert kv.extend(slots[1], 0, N_CTX // 2)
    before = [pool.table.copy() for pool in kv.pools]
    assert not kv.extend(slots[1], N_CTX // 2, N_CTX // 2 + 1)
    assert all((pool.table == table).all() for pool, table in zip(kv.pools, before, strict=True))


def test_slots_run_out() -> None:
    kv = cache()
    assert None not in [kv.open_slot(1) for _ in range(N_SLOTS)]
    assert kv.open_slot(1) is None


def test_a_windowed_group_keeps_its_window() -> None:
    """Before a step at position p every position in p - window + 1 .. p has its block, and few others do."""
    kv = cache()
    slot = kv.open_slot(N_CTX)
    assert slot is not None
    local = kv.pools[0]
    chance = random.Random(1)
    start = 0
    while start < N_CTX:
        end = min(N_CTX, start + chance.randint(1, MAX_ROWS))
        assert kv.extend(slot, start, end)
        first = max(0, start - LOCAL.window + 1) // KV_BLOCK
        held = [column for column, block in enumerate(local.table[slot].tolist()) if block != NO_BLOCK]
        assert held == list(range(first, blocks_of(end)))
        start = end


def test_windowed_pools_never_run_out() -> None:
    """All slots at once, in the largest steps, at the positions that span most blocks."""
    kv = cache(n_tokens=N_SLOTS * N_CTX)
    slots = [kv.open_slot(N_CTX) for _ in range(N_SLOTS)]
    for offset in range(1, KV_BLOCK):
        for slot in slots:
            for start in range(offset, N_CTX - MAX_ROWS, MAX_ROWS):
                assert slot is not None and kv.extend(slot, start, start + MAX_ROWS)
            for pool in kv.pools:
                pool.release(slot)


def test_no_block_has_two_owners(scaled) -> None:
    """Whatever comes, goes and grows: each block is either free or in one place of one table."""
    kv = cache(N_CTX)
    chance = random.Random(2)
    fed: dict[int, int] = {}
    for _ in range(scaled(2000, soak=200_000)):
        slot = chance.choice(list(fed)) if fed else None
        what = chance.random()
        if slot is not None and what < 0.1:
            kv.close_slot(slot)
            del fed[slot]
        elif what < 0.3:
            n = chance.randint(1, 200)
            opened = kv.open_slot(n)
            if opened is not None:
                fed[opened] = 0
        elif slot is not None:
            end = min(N_CTX, fed[slot] + chance.randint(1, MAX_ROWS))
            if end > fed[slot] and kv.extend(slot, fed[slot], end):
                fed[slot] = end
        for pool in kv.pools:
            owned = pool.table[pool.table != NO_BLOCK]
            assert len(set(owned.tolist())) == len(owned) == pool.n_blocks - pool.n_free


def test_returned_blocks_take_no_memory() -> None:
    pool = Pool(Group(8, 4, 64), 64, 1, 64 * KV_BLOCK)
    data = pool._memory
    pool.take(0, 64 * KV_BLOCK)
    before = resident(pool.address)
    data[:] = 1
    assert resident(pool.address) - before >= data.nbytes
    pool.release(0)
    assert resident(pool.address) - before == 0
    assert not data.any()


def resident(address: int) -> int:
    """Bytes in memory of the mapping that holds the address."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        head = line.split()[0]
        if "-" in head and not head.endswith(":"):
            low, high = (int(part, 16) for part in head.split("-"))
            inside = low <= address < high
        elif inside and head == "Rss:":
            return int(line.split()[1]) * 1024
    raise AssertionError("no such mapping")


def test_reserved_memory_is_free_until_used() -> None:
    huge = memory.reserve(1 << 36, "a test")
    assert huge.shape == (1 << 36,)
    assert huge[:: 1 << 30].sum() == 0
    huge[: 4 * memory.PAGE] = 1
    memory.discard(huge[1 : 1 + 3 * memory.PAGE])
    assert huge[: 4 * memory.PAGE : memory.PAGE].tolist() == [1, 0, 0, 1]
    assert np.shares_memory(huge, huge[10:20])
