"""Worker threads from fake /proc and /sys trees (I08)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from edged.engine.threads import worker_count

V2 = "30 23 0:26 {top} /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
V1 = (
    "31 25 0:27 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n"
    "32 25 0:28 {top} /sys/fs/cgroup/cpu,cpuacct rw,nosuid shared:9 master:2 - cgroup cgroup rw,cpu,cpuacct\n"
)


def put(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def v2(root: Path, cgroup: str = "/", top: str = "/", **limits: str) -> None:
    """A cgroup v2 mount; limits: path of a cgroup below the mount, "__" for "/", and its cpu.max."""
    put(root, {"/proc/self/cgroup": f"0::{cgroup}\n", "/proc/self/mountinfo": V2.format(top=top)})
    for folder, limit in limits.items():
        put(root, {f"/sys/fs/cgroup/{folder.replace('__', '/')}/cpu.max": limit + "\n"})


def v1(root: Path, cgroup: str = "/", top: str = "/", **limits: int) -> None:
    own = f"12:cpuset:/\n4:cpu,cpuacct:{cgroup}\n1:name=systemd:/x:y\n0::/elsewhere\n"
    put(root, {"/proc/self/cgroup": own, "/proc/self/mountinfo": V1.format(top=top)})
    for folder, quota in limits.items():
        where = f"/sys/fs/cgroup/cpu,cpuacct/{folder.replace('__', '/')}"
        put(root, {f"{where}/cpu.cfs_quota_us": f"{quota}\n", f"{where}/cpu.cfs_period_us": "100000\n"})


def count(root: Path, cpus: int = 16) -> int:
    return worker_count(str(root), set(range(cpus)))


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        ("200000 100000", 2),
        ("765000 100000", 7),
        ("max 100000", 16),
        ("50000 100000", 1),
        ("1600001 100000", 16),
        ("3000000 100000", 16),
        ("150000 50000", 3),
        ("", 16),
        ("garbage", 16),
        ("100000 0", 16),
    ],
)
def test_i08_v2_quota(tmp_path: Path, limit: str, expected: int) -> None:
    v2(tmp_path, "/unit", unit=limit)
    assert count(tmp_path) == expected


def test_i08_the_tightest_ancestor_decides(tmp_path: Path) -> None:
    cgroup = "/system.slice/edged.service"
    v2(tmp_path, cgroup, **{"system.slice": "300000 100000", "system.slice__edged.service": "800000 100000"})
    assert count(tmp_path) == 3
    v2(tmp_path, cgroup, **{"system.slice": "max 100000"})
    assert count(tmp_path) == 8
    v2(tmp_path, cgroup, **{".": "250000 100000"})  # the mounted root: a container's own limit
    assert count(tmp_path) == 2


@pytest.mark.parametrize(("quota", "expected"), [(200000, 2), (765000, 7), (-1, 16), (50000, 1)])
def test_i08_v1_quota(tmp_path: Path, quota: int, expected: int) -> None:
    v1(tmp_path, "/docker/abc", docker__abc=quota, docker=-1)
    assert count(tmp_path) == expected
    v1(tmp_path, "/docker/abc", docker__abc=-1, docker=quota)
    assert count(tmp_path) == expected


def test_i08_in_a_container_the_mount_is_the_cgroup(tmp_path: Path) -> None:
    v1(tmp_path, "/docker/abc", top="/docker/abc", **{".": 400000})
    assert count(tmp_path) == 4
    v1(tmp_path, "/docker/abc/child", top="/docker/abc", child=300000)
    assert count(tmp_path) == 3
    v2(tmp_path, "/", top="/docker/abc", **{".": "500000 100000"})
    assert count(tmp_path) == 5


def test_i08_a_cgroup_outside_the_namespace(tmp_path: Path) -> None:
    v2(tmp_path, "/../..", **{".": "300000 100000"})
    assert count(tmp_path) == 3


def test_i08_affinity_limits(tmp_path: Path) -> None:
    v2(tmp_path, "/unit", unit="800000 100000")
    assert count(tmp_path, 3) == 3
    assert count(tmp_path / "nothing", 5) == 5


def test_i08_own_affinity_is_the_default(tmp_path: Path) -> None:
    allowed = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(allowed)})
        assert worker_count(str(tmp_path)) == 1
        assert worker_count() == 1
    finally:
        os.sched_setaffinity(0, allowed)
    assert worker_count(str(tmp_path)) == len(allowed)


def capacities(root: Path, *values: int) -> None:
    put(root, {f"/sys/devices/system/cpu/cpu{i}/cpu_capacity": f"{value}\n" for i, value in enumerate(values)})


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ((530, 530, 530, 530, 1024, 1024, 1024, 1024), 4),  # RK3588: four A55, four A76
        ((446, 446, 446, 446, 1024, 1024), 2),  # RK3399: four A53, two A72
        ((1024, 1024, 1024, 1024), 4),
        ((414, 414, 892, 892, 892, 1024), 4),  # two little, three middle, one prime core
    ],
)
def test_i08_little_cores_are_left_out(tmp_path: Path, values: tuple[int, ...], expected: int) -> None:
    capacities(tmp_path, *values)
    assert count(tmp_path, len(values)) == expected
    v2(tmp_path, "/unit", unit="150000 100000")
    assert count(tmp_path, len(values)) == 1


def test_i08_only_allowed_cores_are_compared(tmp_path: Path) -> None:
    capacities(tmp_path, 530, 530, 1024, 1024)
    assert worker_count(str(tmp_path), {0, 1}) == 2
    assert worker_count(str(tmp_path), {1, 3}) == 1


def test_i08_mount_points_with_spaces(tmp_path: Path) -> None:
    put(tmp_path, {
        "/proc/self/cgroup": "0::/\n",
        "/proc/self/mountinfo": "30 23 0:26 / /sys/fs/my\\040groups rw - cgroup2 none rw\n",
        "/sys/fs/my groups/cpu.max": "200000 100000\n",
    })  # fmt: skip
    assert count(tmp_path) == 2
