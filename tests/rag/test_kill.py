"""Whatever happens to who writes (killed, others beside it, a full disk), the store is whole and the work goes on."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

from edged.errors import NotFound
from edged.rag.search import search
from edged.rag.store import Store
from tests.rag.ingesting import LINES, start
from tests.rag.manuals import embed, new, put

MANUALS = 6


def whole(store: Store, lines: int = LINES) -> int:
    """How many manuals there are; each is there once, with all its chunks."""
    store.check()
    rows = store.documents()
    assert all(row.chunks == row.pages == lines for row in rows if row.path.startswith("manual"))
    assert max(Counter(row.path for row in rows).values(), default=0) <= 1
    stats = store.stats()
    assert stats["chunks"] == stats["vectors"] == stats["words"] == sum(row.chunks for row in rows)
    return len(rows)


def test_j09_j11_killed_at_random_moments_the_ingest_goes_on(tmp_path: Path, scaled) -> None:
    chance = random.Random(3)
    came_through, kept = set(), set()
    rounds = scaled(3, soak=50)
    for number in range(rounds):
        folder = tmp_path / str(number // 5)  # a new store now and then: making it may be what is killed
        folder.mkdir(exist_ok=True)
        process = start(folder, 0, MANUALS)
        time.sleep(chance.uniform(0, 0.6))
        process.kill()
        process.communicate()
        try:
            with closing(Store(folder / "manuals.db")) as store:
                came_through.add(whole(store))
                kept.add(store.stats()["pending"])
        except NotFound:  # killed before there was a store
            came_through.add(0)
    for folder in tmp_path.iterdir():
        output = start(folder, 0, MANUALS).communicate()[0].decode().split("\n")
        assert len(output) == MANUALS + 1
        with closing(Store(folder / "manuals.db")) as store:
            assert whole(store) == MANUALS and store.stats()["pending"] == 0
            assert search(store, embed, "line 77 of manual 3", 1)[0].sources[0].path == "manual3.txt"
    assert rounds < 50 or (len(came_through) > 2 and len(kept) > 1), "the kills met always the same"


def test_j11_ingests_and_searches_at_once_never_see_half_a_document(tmp_path: Path, scaled) -> None:
    lines, n = 40, scaled(30, soak=1500)
    with closing(new(tmp_path)) as store:
        put(store, "fixed", *["needle here"] * lines)
        writers = [start(tmp_path, 0, n, lines), start(tmp_path, n // 2, n + n // 2, lines)]  # half of it the same
        outputs: list[bytes] = []
        threads = [threading.Thread(target=lambda p=p: outputs.append(p.communicate()[0])) for p in writers]
        for thread in threads:
            thread.start()
        searches = 0
        while any(thread.is_alive() for thread in threads):
            with store.snapshot():
                assert {row.chunks for row in store.documents()} == {lines}
                hits = store.matching([["manual"]], 50) + [chunk for chunk, _ in store.nearest(embed(["line 5"])[0], 9)]
                assert len(store.chunks(hits)) == len(hits)
            assert "needle" in search(store, embed, "needle", 1)[0].text
            searches += 1
            time.sleep(0.05)
        assert searches and [process.wait() for process in writers] == [0, 0]
        outcomes = Counter(line.split()[0] for output in outputs for line in output.decode().splitlines())
        assert outcomes["added"] + outcomes["unchanged"] == 2 * n and not outcomes["failed"]
        assert whole(store, lines) == n + n // 2 + 1 and store.stats()["pending"] == 0


FULL = """
import resource, signal, sys
from pathlib import Path
from edged.errors import DiskFull
from edged.rag.ingest import ingest_one
from tests.rag.ingesting import text
from tests.rag.manuals import embed, new
from tests.rag.test_ingest import read, split

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # a write beyond the limit fails with EFBIG
store = new(Path(sys.argv[1]))
ingest = lambda number, lines: ingest_one(store, f"manual{number}.txt", text(number, lines), read, split, embed)
assert ingest(1, 300).outcome == "added"
before = store.documents(), {**store.stats(), "bytes": 0, "pending": 0}
unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
longest = max(Path(f"{store.path}{end}").stat().st_size for end in ("", "-wal"))
resource.setrlimit(resource.RLIMIT_FSIZE, (longest + int(sys.argv[2]), unlimited[1]))
try:
    ingest(2, 3000)
except DiskFull as e:
    print(e.code, e.message, e.hint, sep="|")
store.check()
assert before == (store.documents(), {**store.stats(), "bytes": 0, "pending": 0}), "not as it was before"
assert store.matching([["77"]], 5), "search does not work"
resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
if sys.argv[3] == "same":
    done = ingest(2, 3000)
    print(done.outcome, done.embedded)
"""


@pytest.mark.parametrize("later", ["same", "new"])
@pytest.mark.parametrize("room", [0, 200_000, 3_000_000])
def test_j11_a_full_disk_is_named_and_leaves_the_store_as_it_was(tmp_path: Path, room: int, later: str) -> None:
    command = [sys.executable, "-c", FULL, str(tmp_path), str(room), later]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    code, message, hint = done.stdout.splitlines()[0].split("|")
    assert code == "disk_full" and str(tmp_path / "manuals.db") in message and "free some space" in hint
    if later == "new":  # another process, after the one that found the disk full
        process = start(tmp_path, 2, 3, 3000)
        assert process.communicate()[0].startswith(b"added ") and process.returncode == 0
    else:
        assert done.stdout.splitlines()[1].startswith("added ")
    with closing(Store(tmp_path / "manuals.db")) as store:
        store.check()
        assert [row.chunks for row in store.documents()] == [300, 3000] and store.stats()["pending"] == 0
