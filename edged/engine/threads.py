"""How many worker threads: one for each processor that is allowed, fast, and given time on by the cgroup.

More threads than the cgroup's quota are stopped in turn by the kernel while the others wait for them at every barrier;
a slow core makes the fast ones wait just so.

Source: Linux, admin-guide/cgroup-v2.rst (cpu.max), scheduler/sched-bwc.rst (cpu.cfs_quota_us).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Set

from edged.engine import cgroup

# Share of the fastest core's capacity from which a core counts as fast. The little cores of big.LITTLE chips are at
# 0.25 to 0.55, while clock limits set cores of one kind apart by up to 0.15.
_FAST = 0.75


def worker_count(root: str = "", affinity: Set[int] | None = None) -> int:
    """floor(min(allowed processors that are fast, cgroup quota)), at least 1.

    root: prefix of /proc and /sys, and affinity: processors allowed instead of this process's own, for tests.
    """
    cpus = os.sched_getaffinity(0) if affinity is None else affinity
    count: float = len(_fast(root, cpus))
    for quota in _quotas(root):
        count = min(count, quota)
    return max(1, int(count))


def _fast(root: str, cpus: Set[int]) -> Set[int]:
    """The fast ones of `cpus`; all where the kernel does not tell, as on chips with equal cores."""
    capacity = {cpu: cgroup.read(f"{root}/sys/devices/system/cpu/cpu{cpu}/cpu_capacity") for cpu in cpus}
    known = {cpu: int(text) for cpu, text in capacity.items() if text.strip().isdecimal()}
    if len(known) < len(cpus):
        return cpus
    limit = _FAST * max(known.values())
    return {cpu for cpu, value in known.items() if value >= limit}


def _quotas(root: str) -> Iterator[float]:
    """Processors' worth of time allowed by this process's cgroup and each one above it."""
    for folder, v2 in cgroup.folders(root, "cpu"):
        if v2:
            quota, _, period = cgroup.read(folder / "cpu.max").strip().partition(" ")
        else:
            quota = cgroup.read(folder / "cpu.cfs_quota_us").strip()
            period = cgroup.read(folder / "cpu.cfs_period_us").strip()
        if quota.isdecimal() and period.isdecimal() and int(period):  # else "max" or -1, or no file (root)
            yield int(quota) / int(period)
