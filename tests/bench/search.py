"""The store's exact ten nearest of many vectors, beside numpy's float32 product of all of them; and a whole search.

Random directions are the hard case of an exact scan: the tenth and the hundredth neighbour are almost equally near.
"""

from __future__ import annotations

import resource
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from edged.kernels import load
from edged.kernels.scan import scanner
from edged.rag.document import Chunk, Document
from edged.rag.search import near
from edged.rag.store import Binding, Content, Store
from tests.bench.report import Report, Result

DIM, K, PER_DOCUMENT, QUERIES = 384, 10, 1000, 21
WORDS = 40  # of a chunk, drawn from VOCABULARY as often as words of a language are (Zipf)
# without digits, which would make them codes
VOCABULARY = ["".join(chr(97 + int(digit)) for digit in str(i)) for i in range(5000)]
TARGETS = {100_000: "4 ms", 1_000_000: "45 ms"}
MEMORY = "64 MB"


def run(report: Report, sizes: Sequence[int]) -> None:
    """Adds `nearest` (ms), `scan memory` (MB) and `search` (ms) for each number of vectors."""
    for size in sizes:
        with tempfile.TemporaryDirectory() as folder:
            _run(report, size, Path(folder, "manuals.db"))


def _run(report: Report, size: int, path: Path) -> None:
    rng = np.random.default_rng(1)
    vectors = np.empty((size, DIM), np.float32)
    _fill(path, vectors, rng)
    store = Store(path, scan=scanner(load.open()))
    queries = rng.standard_normal((QUERIES, DIM), dtype=np.float32)
    what = f"{size} x {DIM}"

    used = _peak(lambda: [_nearest(store, q) for q in queries[:5]])
    times = {"numpy": _times(lambda q: _brute(vectors, q), queries),
             "edged": _times(lambda q: _nearest(store, q), queries)}  # fmt: skip
    for query in queries[:5]:
        assert _nearest(store, query) == _truth(vectors, query), "not the nearest"
    report.compare("nearest 10", what, "ms", times, TARGETS.get(size, ""))
    report.add(Result("scan memory", what, "edged", "MB", (used / 1e6,), MEMORY))
    questions = iter([" ".join(_words(rng, 8)) for _ in queries])
    report.add(Result("search", what, "edged", "ms", tuple(_times(lambda q: near(store, next(questions), q), queries))))
    store.close()


def _fill(path: Path, vectors: np.ndarray, rng: np.random.Generator) -> None:
    """Documents of PER_DOCUMENT chunks; vectors: f32 (n, DIM), made here, chunk i + 1 has row i."""
    store = Store(path, create=True)
    store.bind(Binding("bench", "bench", DIM, "mean"))
    for at in range(0, len(vectors), PER_DOCUMENT):
        part = vectors[at : at + PER_DOCUMENT]
        rng.standard_normal(dtype=np.float32, out=part)
        part /= np.linalg.norm(part, axis=1, keepdims=True)
        texts = [f"{at + i} " + " ".join(_words(rng, WORDS)) for i in range(len(part))]
        chunks, start = [], 0
        for text in texts:
            chunks.append(Chunk(text, start, start + len(text), 1, 1, ()))
            start += len(text) + 1
        store.put(f"{at}.txt", Content(str(at), "plain"), Document("", "\n".join(texts), (), ()), chunks, part)
    store.close()


def _words(rng: np.random.Generator, n: int) -> list[str]:
    return [VOCABULARY[i] for i in rng.zipf(1.3, n) % len(VOCABULARY)]


def _nearest(store: Store, query: np.ndarray) -> list[int]:
    with store.snapshot():
        return [chunk for chunk, _ in store.nearest(query, K)]


def _brute(vectors: np.ndarray, query: np.ndarray) -> np.ndarray:
    scores = vectors @ query
    best = np.argpartition(scores, -K)[-K:]
    return best[np.argsort(-scores[best])]


def _truth(vectors: np.ndarray, query: np.ndarray) -> list[int]:
    """The chunks of the nearest, in float64."""
    slices = (vectors[at : at + 65536].astype(np.float64) for at in range(0, len(vectors), 65536))
    scores = np.concatenate([part @ query / np.linalg.norm(part, axis=1) for part in slices])
    best: list[int] = (np.argsort(-scores, kind="stable")[:K] + 1).tolist()
    return best


def _times(call: Callable[[np.ndarray], object], queries: np.ndarray) -> list[float]:
    """Milliseconds of each call; the first, which maps pages, is not counted."""
    times = []
    for query in queries:
        start = time.perf_counter()
        call(query)
        times.append(1000 * (time.perf_counter() - start))
    return times[1:]


def _peak(call: Callable[[], object]) -> int:
    """Bytes of memory, no mapped files, that the process has more of during the call than before."""
    before, most, done = _anonymous(), 0, threading.Event()

    def watch() -> None:
        nonlocal most
        while not done.wait(0.001):
            most = max(most, _anonymous())

    thread = threading.Thread(target=watch)
    thread.start()
    call()
    done.set()
    thread.join()
    return max(most, _anonymous()) - before


def _anonymous() -> int:
    """Bytes of memory of this process that are no mapped file."""
    fields = Path("/proc/self/statm").read_text().split()
    return (int(fields[1]) - int(fields[2])) * resource.getpagesize()
