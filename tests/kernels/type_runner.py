"""Checks the kernels of one tensor type with numpy and ctypes alone, so that it works where numba does not.

    python -m tests.kernels.type_runner CASES.npz LEVEL      prints one line per case, exits 1 if one failed

Every buffer ends where its last page does and the next page is not mapped: a kernel that reads or writes past the end
of the weights of the last tensor of a file, of its output or of its scratch dies here. Weights start at any multiple
of two bytes.
"""

from __future__ import annotations

import ctypes
import hashlib
import mmap
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

from edged.kernels.table import tile_scratch_bytes

# Errors may be this part of the product; where it cancels, of |w| |x|, which is about sqrt(k) times a random product.
TOLERANCE, TOLERANCE_NORM = 1e-5, 3e-7
PROT_NONE = 0


class Guarded:
    """A copy of `data` that ends, `after` bytes before it, at a page that must not be touched."""

    def __init__(self, data: np.ndarray, after: int = 0) -> None:
        size = data.nbytes + after
        page = mmap.PAGESIZE
        length = (size + page - 1) // page * page
        self._map = mmap.mmap(-1, length + page)
        start = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        mprotect = ctypes.CDLL(None, use_errno=True).mprotect
        mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        if mprotect(start + length, page, PROT_NONE):
            raise OSError(ctypes.get_errno(), "mprotect")
        self.address = start + length - size
        raw = np.frombuffer(self._map, np.uint8, data.nbytes, length - size)
        self.array = raw.view(data.dtype).reshape(data.shape)
        self.array[...] = data


def check(library: Any, case: dict[str, Any]) -> list[str]:
    """What is wrong with the kernels of the case's type, one line each."""
    name, k = str(case["type"]), int(case["k"])
    return [f"{name} {k}: {fault}" for fault in _Check(library, name, k, case).faults()]


def digest(library: Any, case: dict[str, Any]) -> str:
    """A hash of the bits of matvec; all NaN are alike."""
    return hashlib.sha256(np.nan_to_num(_Check(library, str(case["type"]), int(case["k"]), case).matvec())).hexdigest()


class _Check:
    def __init__(self, library: Any, name: str, k: int, case: dict[str, Any]) -> None:
        self.library, self.name, self.k, self.case = library, name, k, case
        self.weights = Guarded(case["weights"])
        self.n, self.stride = case["weights"].shape
        self.records = Guarded(case["records"])
        self.product = case["product"]
        size = np.abs(np.nan_to_num(self.product))
        self.limit = np.maximum(TOLERANCE * size, TOLERANCE_NORM * case["norms"])  # (tokens, weight rows)

    def faults(self) -> Iterator[str]:
        yield from self.row()
        one = self.matvec()
        yield from self.compare("matvec", one)
        yield from self.matvec_rows(one)
        yield from self.tile()

    def call(self, kernel: str, *arguments: int) -> None:
        getattr(self.library, f"{kernel}_{self.name}")(*arguments)

    def row(self) -> Iterator[str]:
        """Equal bits, and NaN where the reference has NaN."""
        out = Guarded(np.zeros(self.k, np.float32))
        for r, want in enumerate(self.case["rows"]):
            self.call("row", self.weights.address + r * self.stride, self.k, out.address)
            if not np.array_equal(out.array, want, equal_nan=True):
                yield f"row {r} differs from the reference at {np.flatnonzero(out.array != want)[:4]}"

    def matvec(self) -> np.ndarray:
        """All tokens one by one, and that rows outside r0 .. r1 are left alone and `add` adds."""
        out = Guarded(np.full((len(self.product), self.n), 7, np.float32))
        for token in range(len(self.product)):
            x, y = self.records.address + token * self.records.array.shape[1], out.address + token * self.n * 4
            for r0, r1 in ((0, 0), (0, 5), (5, self.n)):
                self.call("matvec", self.weights.address, self.stride, r0, r1, self.k, x, y, 0)
        return out.array.copy()

    def matvec_rows(self, one: np.ndarray) -> Iterator[str]:
        """1 to 16 rows have the bits of matvec; ragged ranges, a wide output, adding."""
        record, ldy = self.records.array.shape[1], self.n + 3
        for count in range(1, 17):
            first = 16 if count % 2 else 0
            before = np.full((count, ldy), 2, np.float32)
            for r0, r1, add in ((1, self.n, 0), (3, 9, 1)):
                out = Guarded(before)
                x = self.records.address + first * record
                self.call("matvec_rows", self.weights.address, self.stride, r0, r1, self.k, x, record, count,
                          out.address, ldy, add)  # fmt: skip
                want = before.copy()
                want[:, r0:r1] = one[first : first + count, r0:r1] + (np.float32(2) if add else 0)
                if not np.array_equal(out.array, want, equal_nan=True):
                    yield f"matvec_rows of {count} rows, {r0} to {r1}, add {add}, differs from matvec"

    def tile(self) -> Iterator[str]:
        """Right, and a token's bits are the same however many there are and however the rows are cut."""
        whole = self.tiles(len(self.product), [(0, self.n)])
        yield from self.compare("tile", whole)
        for count, cuts in (
            (1, [(0, self.n)]),
            (self.library.lanes, [(0, 3), (3, 4), (4, 33), (33, self.n)]),
            (self.library.lanes + 1, [(0, 0), (0, 1), (1, self.n)]),
            (21, [(0, 30), (30, self.n)]),
        ):
            if not np.array_equal(self.tiles(count, cuts), whole[:count], equal_nan=True):
                yield f"tile of {count} tokens, rows {cuts}, differs from the tile of all"
        added = self.tiles(5, [(0, self.n)], before=2)
        if not np.array_equal(added, whole[:5] + np.float32(2), equal_nan=True):
            yield "tile does not add"
        if not (self.tiles(5, [(0, self.n)], stop=1) == 0).all():
            yield "tile does not stop"

    def tiles(self, count: int, cuts: list[tuple[int, int]], *, before: float = 0, stop: int = 0) -> np.ndarray:
        panels = Guarded(self.case[f"panels{self.library.lanes}"][: -(-count // self.library.lanes)])
        out = Guarded(np.full((count, self.n), before, np.float32))
        scratch = Guarded(np.full(tile_scratch_bytes(self.k), 0xA5, np.uint8))
        word = Guarded(np.array([stop], np.int32))
        for r0, r1 in cuts:
            self.call("tile", self.weights.address, self.stride, r0, r1, self.k, panels.address, count, out.address,
                      self.n, int(before != 0), scratch.address, word.address)  # fmt: skip
        return out.array.copy()

    def compare(self, kernel: str, got: np.ndarray) -> Iterator[str]:
        """Close where the product is finite; NaN where a weight is; not finite where a weight is infinite."""
        for r in range(self.n):
            want = self.product[:, r]
            if np.isnan(want).any():
                good = bool(np.isnan(got[:, r]).all())
            elif np.isinf(want).any():
                good = not np.isfinite(got[:, r]).any()
            else:
                good = bool((np.abs(got[:, r] - want) <= self.limit[:, r]).all())
            if not good:
                token = int(np.argmax(~(np.abs(got[:, r] - want) <= self.limit[:, r])))
                yield f"{kernel} row {r} token {token}: {got[token, r]!r}, expected {want[token]!r}"


def main(path: str, level: str) -> int:
    from edged.kernels import load

    library = load.open(level)
    file = np.load(path)
    failed = 0
    for prefix in sorted({name.partition("/")[0] for name in file.files}):
        case = {name.partition("/")[2]: file[name] for name in file.files if name.partition("/")[0] == prefix}
        faults = check(library, case)
        failed += bool(faults)
        print(prefix, "; ".join(faults[:3]) or f"ok {digest(library, case)}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
