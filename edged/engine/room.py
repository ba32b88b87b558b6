"""Whether a model fits the memory there is, asked before a step would find out.

Weights are mapped from their file, so the kernel can always drop their pages; but what does not stay is read from the
disk again for every token, a hundred times slower. The KV cache counts in full: it is used up in time.

Source: Linux, filesystems/proc.rst (MemAvailable), admin-guide/cgroup-v2.rst (memory.max), cgroup-v1/memory.rst.
"""

from __future__ import annotations

from collections.abc import Iterator

from edged.engine import cgroup
from edged.errors import LimitTooLow

PROGRAM = 50_000_000  # bytes of Python, numpy, the vocabulary and what a step works in
_UNLIMITED = 1 << 60  # version 1 writes its "no limit" as a number near 2**63


def check(weights: int, kv: int, mode: str = "refuse", root: str = "") -> None:
    """Raise LimitTooLow, or log a warning, if so many bytes of weights and of KV cache do not fit.

    mode: "refuse", "warn" or "off". root: prefix of /proc and /sys, for tests.
    """
    if mode == "off":
        return
    need = weights + kv + PROGRAM
    least = min(limits(root), default=None)
    if least is None or need <= least[0]:
        return
    free, what = least
    message = (f"{need / 1e6:.0f} MB are needed (weights {weights / 1e6:.0f}, KV cache {kv / 1e6:.0f}, program "
               f"{PROGRAM / 1e6:.0f}), {free / 1e6:.0f} MB are free by {what}")  # fmt: skip
    if mode == "warn":
        import logging  # only now: not needed for a first token

        logging.getLogger(__name__).warning("%s: expect every token to wait for the disk", message)
        return
    raise LimitTooLow(message, hint="take a smaller model, lower engine.context or engine.kv_tokens, or set "
                                    "engine.memory_check to warn")  # fmt: skip


def limits(root: str = "") -> Iterator[tuple[int, str]]:
    """Bytes that may still be taken, and what says so: the machine, and each control group that has a limit."""
    for line in cgroup.read(f"{root}/proc/meminfo").splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            yield 1024 * int(value.split()[0]), "MemAvailable"
    for folder, v2 in cgroup.folders(root, "memory"):
        most, used = ("memory.max", "memory.current") if v2 else ("memory.limit_in_bytes", "memory.usage_in_bytes")
        limit, now = cgroup.read(folder / most).strip(), cgroup.read(folder / used).strip()
        if limit.isdecimal() and now.isdecimal() and int(limit) < _UNLIMITED:
            rows = dict(line.split(" ", 1) for line in cgroup.read(folder / "memory.stat").splitlines())
            prefix = "" if v2 else "total_"
            files = sum(int(rows.get(f"{prefix}{kind}_file", 0)) for kind in ("active", "inactive"))
            yield max(0, int(limit) - max(0, int(now) - files)), f"{most} of {folder.name or 'the control group'}"
