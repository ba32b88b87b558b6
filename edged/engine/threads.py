"""How many worker threads: one for each processor that is allowed, fast, and given time on by the cgroup.

More threads than the cgroup's quota are stopped in turn by the kernel while the others wait for them at every barrier;
a slow core makes the fast ones wait just so.

Source: Linux, admin-guide/cgroup-v2.rst (cpu.max), scheduler/sched-bwc.rst (cpu.cfs_quota_us), proc_pid_mountinfo(5).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Set
from pathlib import PurePosixPath

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
    capacity = {cpu: _read(f"{root}/sys/devices/system/cpu/cpu{cpu}/cpu_capacity") for cpu in cpus}
    known = {cpu: int(text) for cpu, text in capacity.items() if text.strip().isdecimal()}
    if len(known) < len(cpus):
        return cpus
    limit = _FAST * max(known.values())
    return {cpu for cpu, value in known.items() if value >= limit}


def _quotas(root: str) -> Iterator[float]:
    """Processors' worth of time allowed by this process's cgroup and each one above it, as far as they are visible."""
    for folder, mount, v2 in _cpu_cgroups(root):
        while True:
            if v2:
                quota, _, period = _read(f"{root}{folder}/cpu.max").strip().partition(" ")
            else:
                quota = _read(f"{root}{folder}/cpu.cfs_quota_us").strip()
                period = _read(f"{root}{folder}/cpu.cfs_period_us").strip()
            if quota.isdecimal() and period.isdecimal() and int(period):  # else "max" or -1, or no file (root)
                yield int(quota) / int(period)
            if folder == mount:
                break
            folder = folder.parent


def _cpu_cgroups(root: str) -> Iterator[tuple[PurePosixPath, PurePosixPath, bool]]:
    """Hierarchies that may limit cpu time: this process's folder, where the hierarchy is mounted, whether it is v2."""
    own: dict[str, str] = {}  # controller ("" for v2) -> path of the cgroup in its hierarchy
    for line in _read(f"{root}/proc/self/cgroup").splitlines():
        _, controllers, where = line.split(":", 2)
        own.update((controller, where) for controller in controllers.split(","))
    for line in _read(f"{root}/proc/self/mountinfo").splitlines():
        # id parent major:minor root mountpoint options tags... - fstype source superoptions
        left, _, right = line.partition(" - ")
        kind, _, options = right.split(" ", 2)
        if kind == "cgroup2":
            controller = ""
        elif kind == "cgroup" and "cpu" in options.split(","):
            controller = "cpu"
        else:
            continue
        if controller not in own:
            continue
        top, mount = (PurePosixPath(_unescape(field)) for field in left.split(" ")[3:5])
        path = PurePosixPath(own[controller])
        # In a container the mounted root may be the container's cgroup while `path` is the host's, or the reverse.
        below = path.relative_to(top) if path.is_relative_to(top) else PurePosixPath()
        yield mount / below, mount, not controller


def _unescape(field: str) -> str:
    """mountinfo writes space, tab, newline and backslash as octal."""
    return field.encode().decode("unicode_escape") if "\\" in field else field


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
