"""A model file in memory: mapped read-only, read ahead, locked, watched. And memory of our own, to take and give back.

Nothing here assumes a page size: files are mapped from offset 0, and ranges for the kernel are rounded to the page size
it reports (4, 16 or 64 KiB). ctypes is used where the standard library has no call or keeps the GIL during it.

A file that is truncated while mapped ends the process by SIGBUS at the next access, which nothing can catch. Hence
models are installed by rename only, and `FileMap.check_unchanged` is cheap enough to be called for each request.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
import resource
import stat
import struct
from collections.abc import Iterable

import numpy as np

from edged.errors import BadModel, LimitTooLow, ModelChanged, NotFound

PAGE = os.sysconf("SC_PAGE_SIZE")
POINTER_BYTES = struct.calcsize("P")
_SLICE = 32 << 20  # bytes per call of prefault: a multiple of every page size, and how soon it notices `close`
_HEAD = 4 << 20  # bytes that most headers with a vocabulary fill
_MAP_NORESERVE = 0x4000  # asm-generic/mman-common.h; in the mmap module since Python 3.11
_MADV_POPULATE_READ = 22  # Linux 5.14, asm-generic/mman-common.h; newer than the constants of the mmap module

_libc = ctypes.CDLL(None, use_errno=True)
for _name, _arguments in (("madvise", 3), ("mlock", 2), ("munlock", 2)):
    _call = getattr(_libc, _name)
    _call.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)[:_arguments]
    _call.restype = ctypes.c_int


class FileMap:
    """One file, mapped read-only for as long as any view of it lives.

    Attributes: `path`; `size` in bytes; `data`, u8 (size,), read-only; `address` of its first byte.
    """

    def __init__(self, path: str) -> None:
        """Raises NotFound, BadModel (no regular file, empty, unreadable) or LimitTooLow (address space)."""
        self.path = path
        try:
            # O_NONBLOCK: opening a FIFO without a writer must fail below, not wait here.
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except FileNotFoundError:
            raise NotFound(f"{path}: no such file") from None
        except (OSError, ValueError) as e:  # ValueError: a NUL in the path
            raise BadModel(f"{path}: {getattr(e, 'strerror', None) or e}") from e
        try:
            status = os.fstat(self._fd)
            if not stat.S_ISREG(status.st_mode):
                raise BadModel(f"{path}: not a regular file")
            if not status.st_size:
                raise BadModel(f"{path}: the file is empty", hint="download it again")
            self.size = status.st_size
            self._mark = _mark(status)
            self._inode = (status.st_dev, status.st_ino)
            self.data = np.frombuffer(_map(self._fd, self.size, path), np.uint8)
        except BaseException:
            os.close(self._fd)
            raise
        self.address: int = self.data.__array_interface__["data"][0]
        # One call instead of a fault for every few pages of the header; where it fails, the faults come.
        _libc.madvise(self.address, min(_HEAD, self.size), _MADV_POPULATE_READ)

    def check_unchanged(self) -> None:
        """Raise ModelChanged if the mapped file was written or truncated in place. Takes about a microsecond.

        A file put in its place by rename is no change: the map keeps the old one (see `replaced`). A closed file has
        nothing to check.
        """
        if self._fd < 0:
            return
        now = _mark(os.fstat(self._fd))
        if now != self._mark:
            raise ModelChanged(
                f"{self.path}: changed on disk while in use (size {self._mark[0]} -> {now[0]} bytes)",
                hint="restart the service; install models by rename, never in place",
            )

    def replaced(self) -> bool:
        """Whether the path now names another file, or none."""
        try:
            status = os.stat(self.path)
        except OSError:
            return True
        return (status.st_dev, status.st_ino) != self._inode

    def prefault(self) -> None:
        """Read the file ahead and map its pages, so that first uses of the weights do not fault one by one.

        Blocks as long as the disk takes, without holding the GIL: meant for a thread of its own. Ends early on `close`.
        """
        # MADV_WILLNEED starts the reads; MADV_SEQUENTIAL would read further ahead, but also drop the weights first when
        # memory is short, although every token needs them all.
        data = self.data  # keeps the map alive; nothing is left of it after `close`
        populate = True
        for start in range(0, len(data), _SLICE):
            if self._fd < 0:
                return
            length = min(_SLICE, len(data) - start)
            _libc.madvise(self.address + start, length, mmap.MADV_WILLNEED)
            if populate and _libc.madvise(self.address + start, length, _MADV_POPULATE_READ):
                if ctypes.get_errno() != errno.EINVAL:
                    return  # truncated meanwhile: check_unchanged tells
                populate = False  # older kernel
            if not populate:
                data[start : start + length : PAGE].max()  # touches each page; numpy lets other threads run

    def close(self) -> None:
        """Let the file go; it is unmapped when the last array over it is. Idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            self.data = np.empty(0, np.uint8)


def _mark(status: os.stat_result) -> tuple[int, int]:
    return status.st_size, status.st_mtime_ns


def _map(fd: int, size: int, path: str) -> mmap.mmap:
    if POINTER_BYTES == 4 and size >= 1 << 31:
        raise LimitTooLow(
            f"{path}: a model of {size} bytes does not fit the address space of a 32-bit process",
            hint="needs a 64-bit userland",
        )
    try:
        return mmap.mmap(fd, size, access=mmap.ACCESS_READ)
    except OSError as e:
        allowed = _limit(resource.RLIMIT_AS)
        raise LimitTooLow(
            f"{path}: cannot map {size} bytes: {e.strerror}; the address space is limited to {allowed}",
            hint="raise the limit: ulimit -v, or LimitAS= in the unit file",
        ) from e


def reserve(size: int, what: str) -> np.ndarray:
    """Zeroed private memory: u8 (size,), at the start of a page. It takes up memory only where it has been written.

    what: named in LimitTooLow, which is raised if the address space is too small.
    """
    try:
        region = mmap.mmap(-1, max(size, 1), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE)
    except (OSError, OverflowError) as e:
        raise LimitTooLow(
            f"cannot reserve {size} bytes for {what}; the address space is limited to {_limit(resource.RLIMIT_AS)}",
            hint="raise the limit: ulimit -v, or LimitAS= in the unit file",
        ) from e
    with contextlib.suppress(OSError):  # a kernel without huge pages
        region.madvise(mmap.MADV_NOHUGEPAGE)  # a page that is written brings in no more than itself
    return np.frombuffer(region, np.uint8)[:size]


def discard(part: np.ndarray) -> None:
    """Give back the whole pages of a part of reserved memory, u8 (size,); they read as zeros afterwards."""
    address = part.__array_interface__["data"][0]
    start, end = -(-address // PAGE) * PAGE, (address + part.size) // PAGE * PAGE
    if start < end:
        _libc.madvise(start, end - start, mmap.MADV_DONTNEED)


def page_ranges(ranges: Iterable[tuple[int, int]], page: int) -> list[tuple[int, int]]:
    """Address ranges [start, end) rounded outwards to whole pages, sorted, touching ones joined."""
    joined: list[tuple[int, int]] = []
    for start, end in sorted((start // page * page, -(-end // page) * page) for start, end in ranges):
        if joined and start <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(end, joined[-1][1])
        else:
            joined.append((start, end))
    return joined


def lock(ranges: Iterable[tuple[int, int]]) -> int:
    """Lock the pages of address ranges [start, end) in memory, all or none; return the bytes locked.

    Reads what is not yet in memory, without holding the GIL. Raises LimitTooLow with the needed and allowed bytes.
    """
    pages = page_ranges(ranges, PAGE)
    needed = sum(end - start for start, end in pages)
    for start, end in pages:
        if _libc.mlock(start, end - start):
            reason = os.strerror(ctypes.get_errno())
            unlock(pages)  # mlock may fail half way through a range, and ranges before it are locked
            raise LimitTooLow(
                f"locking the model needs {needed} bytes, the limit on locked memory is "
                f"{_limit(resource.RLIMIT_MEMLOCK)}: {reason}",
                hint=f"put LimitMEMLOCK={-(-needed >> 20)}M under [Service] in the unit file, or switch mlock off",
            )
    return needed


def unlock(ranges: Iterable[tuple[int, int]]) -> None:
    """Unlock the pages of address ranges [start, end); those not locked are left alone."""
    for start, end in page_ranges(ranges, PAGE):
        _libc.munlock(start, end - start)


def _limit(which: int) -> str:
    soft, _ = resource.getrlimit(which)
    return "not set" if soft == resource.RLIM_INFINITY else f"{soft} bytes"
