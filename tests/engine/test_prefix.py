"""Prompts that begin like earlier ones take their blocks, and nobody can tell but by the clock."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from edged import gguf, tokenizers
from edged.engine.engine import Engine
from edged.engine.kvcache import NO_BLOCK, KVCache, Pool
from edged.engine.request import Done, Request
from edged.engine.scheduler import Scheduler, Sequence
from edged.gguf import memory
from edged.kernels.table import KV_BLOCK
from edged.models.blocks import Group
from tests import tiny
from tests.engine.running import GREEDY, Answer, answers, opened, prompt, request

KINDS = [("llama", "q4_1"), ("gemma3", "q8_0"), ("gemma3", "f16")]


@pytest.fixture(scope="module", params=KINDS, ids="-".join)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    arch, kind = request.param
    return tiny.write(tmp_path_factory.mktemp("tiny") / "model.gguf", arch, kind, n_ctx=512)


def cached(answer: Answer) -> int:
    assert isinstance(answer.end, Done)
    return answer.end.usage.cached_tokens


def one(engine: Engine, wanted: Request) -> Answer:
    return answers(engine, wanted)[0]


@pytest.mark.parametrize("chunk", [0, 7])
def test_d08_a_cached_prefix_changes_no_bit(model: Path, chunk: int) -> None:
    """Cold, again, and again after another that shares a part: same tokens, same log-probabilities."""
    first = request(200, 12)
    other = first._replace(prompt=(*first.prompt[:100], *prompt(60, seed=5)))
    with opened(model, prefix_cache=0) as engine:
        cold = [one(engine, wanted) for wanted in (first, other)]
        assert [cached(answer) for answer in cold] == [0, 0]
    with opened(model, prefill_chunk=chunk) as engine:
        got = [one(engine, wanted) for wanted in (first, first, other, first, other)]
        stats = engine.stats()
    assert [cached(answer) for answer in got] == [0, 192, 96, 192, 128]
    assert [answer.tokens for answer in got] == [cold[i].tokens for i in (0, 0, 1, 0, 1)]
    assert (stats["prefix_hits_total"], stats["prefix_tokens_total"]) == (4, 608)
    assert stats["prompt_tokens_total"] == 200 * 3 + 160 * 2 - 608


def test_a_prompt_leaves_a_token_to_feed(model: Path) -> None:
    """Of a prompt that is in the cache as a whole the last block is computed again, for the logits."""
    with opened(model) as engine:
        got = [one(engine, request(64, 2)) for _ in range(2)]
    assert cached(got[1]) == 32
    assert got[0].tokens == got[1].tokens


def test_a_scored_prompt_is_computed(model: Path) -> None:
    scored = request(100, 3, prompt_logprobs=True)
    with opened(model) as engine:
        got = [one(engine, wanted) for wanted in (scored, scored)]
    assert cached(got[1]) == 0
    assert got[0].scores == got[1].scores


def test_requests_that_run_share_what_they_have_in_common(model: Path) -> None:
    """Eight at once with one beginning: alone or together the same, in the room of little more than one."""
    wanted = [request(200, 12)._replace(prompt=(*prompt(200), *prompt(9, seed=i))) for i in range(8)]
    with opened(model, prefix_cache=0) as engine:
        alone = [one(engine, single).tokens for single in wanted]
    with opened(model) as engine:
        one(engine, wanted[0])
        before = engine.stats()["kv_blocks_kept"]
        got = [Answer() for _ in wanted]
        for answer, single in zip(got, wanted, strict=True):
            engine.submit(single, answer)
        engine.step()
        assert engine.stats()["kv_blocks_used"] == before + 8  # the beginning once, and an own block for each
        while engine.step():
            pass
        assert engine.stats()["kv_blocks_used"] == 0
    assert [answer.tokens for answer in got] == alone


def test_an_answer_fed_back_is_reused_unless_deterministic(model: Path) -> None:
    """A conversation: the second prompt holds the first and its answer, whose blocks are `decode`."""
    first = request(40, 100)
    with opened(model) as engine:
        answer = one(engine, first).ids
        second = request(1, 8)._replace(prompt=(*first.prompt, *answer, *prompt(10, seed=1)))
        exact = one(engine, second._replace(deterministic=True))
        assert cached(exact) == 32
    with opened(model) as engine:
        one(engine, first)
        loose = one(engine, second)
        assert cached(loose) == 128
        # what follows a decode block is no tile block
        assert cached(one(engine, second._replace(deterministic=True))) == 32
    with opened(model, prefix_cache=0) as engine:
        assert exact.tokens == one(engine, second).tokens
    largest = max(abs(a.logprob - b.logprob) for a, b in zip(exact.tokens, loose.tokens, strict=True) if a.id == b.id)
    assert largest < 0.1


def test_what_is_kept_is_bounded(model: Path) -> None:
    """In every group, in blocks and in bytes."""
    with opened(model, prefix_cache=256, kv_tokens=2048) as engine:
        for seed in range(12):
            one(engine, request(300, 2, seed=seed))
            assert engine.stats()["kv_blocks_kept"] <= 256 // KV_BLOCK
        cache = engine._runner.cache
        assert cache.used_bytes <= sum(256 // KV_BLOCK * pool.stride for pool in cache.pools)
        for pool in cache.pools:
            assert 0 < resident(pool) <= 256 // KV_BLOCK * pool.stride
        # the latest is what is left of them
        assert cached(one(engine, request(300, 2, seed=11))) == 256
        assert cached(one(engine, request(300, 2, seed=0))) == 0


def resident(pool: Pool) -> int:
    """Bytes of the pool's pages that are in memory (Linux, admin-guide/mm/pagemap.rst)."""
    first, n = pool.address // memory.PAGE, pool._memory.nbytes // memory.PAGE
    with open("/proc/self/pagemap", "rb") as file:
        file.seek(8 * first)
        pages = np.frombuffer(file.read(8 * n), np.uint64)
    return int((pages >> np.uint64(63)).sum()) * memory.PAGE


def test_the_beginning_of_a_long_prompt_outlives_its_end(model: Path) -> None:
    with opened(model, prefix_cache=128) as engine:
        one(engine, request(400, 2))
        assert cached(one(engine, request(400, 2))) == 128


def test_pauses_and_prefixes(model: Path) -> None:
    """Too small a pool for what runs: sequences are paused, blocks are discarded, and nobody can tell."""
    wanted = [request(1, 150, seed=i)._replace(prompt=(*prompt(70, seed=i % 2), *prompt(30, seed=i))) for i in range(6)]
    with opened(model, context=256, prefix_cache=0) as engine:
        alone = [one(engine, single).tokens for single in wanted]
    with opened(model, context=256, kv_tokens=480) as engine:
        for _ in range(2):
            assert [answer.tokens for answer in answers(engine, *wanted)] == alone
        assert engine.stats()["paused_total"] > 0
        assert engine.stats()["prefix_hits_total"] > 0


def test_whatever_comes_the_books_agree(scaled) -> None:
    """Random sequences over few beginnings, on a small pool: every block is free, kept or used as often as tables say,
    and what a sequence reads is what it, or one with the same tokens, has written."""
    chance = random.Random(7)
    groups = (Group(1, 1, 8, window=40), Group(1, 1, 8))
    cache = KVCache(groups, 256, 4, 320, 64, keep=160)
    books: Scheduler[Sequence] = Scheduler(cache, 12)
    written: dict[tuple[int, int], list[int]] = {}  # (group, block) -> the tokens up to its end
    begin = [[chance.randrange(3) for _ in range(120)] for _ in range(3)]
    for number in range(scaled(400, soak=20_000)):
        tokens = chance.choice(begin)[: chance.randint(1, 120)]
        tokens = tokens + [chance.randrange(3) for _ in range(chance.randint(0, 60))]
        books.add(Sequence(number, tokens, deterministic=chance.random() < 0.5))
        for _ in range(chance.randint(1, 5)):
            step = books.next_step(64)
            for _, rows in step.decode + step.prompt:
                start, end = rows.start, rows.start + len(rows.tokens)
                sequence = next(s for s in books.running if s.slot == rows.slot)
                for i, pool in enumerate(cache.pools):
                    row = pool.table[rows.slot]
                    for column in range(pool.first_column(start), start // KV_BLOCK):
                        assert written[i, row[column]] == sequence.tokens[: (column + 1) * KV_BLOCK]
                    for column in range(start // KV_BLOCK, -(-end // KV_BLOCK)):
                        assert row[column] != NO_BLOCK and pool._users[row[column]] == 1
                        written[i, row[column]] = sequence.tokens[: min(end, (column + 1) * KV_BLOCK)]
            books.advance(step)
            for sequence, rows in step.decode + step.prompt:
                if rows.n_logits:
                    sequence.tokens.append(chance.randrange(3))
                    if chance.random() < 0.01 or len(sequence.tokens) == 256:
                        books.remove(sequence)
            check(cache, 160 // KV_BLOCK)
        for victim in [*books.running, *books.waiting]:
            if chance.random() < 0.1:
                books.remove(victim)
    assert books.n_hits > 20 and books.n_paused > 2


def check(cache: KVCache, most: int) -> None:
    for pool in cache.pools:
        used = pool.table[pool.table != NO_BLOCK].tolist()
        assert [used.count(block) for block in range(pool.n_blocks)] == pool._users
        assert sorted([*pool._free, *pool.kept, *set(used)]) == list(range(pool.n_blocks))
        assert len(pool.kept) <= most
        for block, node in pool.kept.items():
            assert block in node.blocks and node.parent is not None and node.parent.children[node.key] is node


@pytest.mark.parametrize("name", ["smollm2", "gemma3"])
def test_a_real_model(name: str, request: pytest.FixtureRequest) -> None:
    """A conversation's second prompt over a long first: bit for bit as cold."""
    path = request.getfixturevalue(f"{name}_path")
    with gguf.open(path) as file:
        tokenizer = tokenizers.open(file.meta)
    text = (Path(__file__).parents[2] / "README.md").read_text("utf-8")
    manual = tuple(tokenizer.encode(text)[:700])
    wanted = [Request((*manual, *tokenizer.encode(question)), 12, GREEDY, top_logprobs=3)
              for question in ("\nQ: What is edged?\nA:", "\nQ: How is it built?\nA:")]  # fmt: skip
    with opened(path, context=1024, threads=2) as engine:
        got = [one(engine, single) for single in wanted]
    assert cached(got[1]) >= 672
    with opened(path, context=1024, threads=2, prefix_cache=0) as engine:
        assert got[1].tokens == one(engine, wanted[1]).tokens
