"""Memory from fake /proc and /sys trees (I11)."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from edged.engine import room
from edged.errors import LimitTooLow
from tests import tiny
from tests.engine.running import opened
from tests.engine.test_threads import V1, put, v2

GB, MB = 10**9, 10**6


def meminfo(root: Path, available: int, free: int = 200 * MB) -> None:
    rows = {"MemTotal": 4 * GB, "MemFree": free, "MemAvailable": available}
    put(root, {"/proc/meminfo": "".join(f"{name}: {value // 1024:>12} kB\n" for name, value in rows.items())})


def test_i11_page_cache_counts_as_free(tmp_path: Path) -> None:
    meminfo(tmp_path, 3 * GB)
    room.check(GB, 100 * MB, root=str(tmp_path))


def test_i11_the_kv_cache_counts_in_full(tmp_path: Path) -> None:
    meminfo(tmp_path, 3 * GB)
    with pytest.raises(LimitTooLow, match=r"3150 MB are needed \(weights 1000, KV cache 2100, program 50\), 3000 MB"):
        room.check(GB, 2100 * MB, root=str(tmp_path))


def test_i11_a_control_group_limits(tmp_path: Path) -> None:
    """Its own limit or one above it; what its files take can be had back."""
    meminfo(tmp_path, 3 * GB)
    v2(tmp_path, "/system.slice/edged.service", **{"system.slice__edged.service": "max 100000"})
    own, above = "/sys/fs/cgroup/system.slice/edged.service", "/sys/fs/cgroup/system.slice"
    stat = f"anon 5\nactive_file {150 * MB}\ninactive_file {150 * MB}\n"
    put(tmp_path, {f"{own}/memory.max": "max\n", f"{above}/memory.max": f"{512 * MB}\n",
                   f"{above}/memory.current": f"{400 * MB}\n", f"{above}/memory.stat": stat})  # fmt: skip
    room.check(300 * MB, 50 * MB, root=str(tmp_path))
    with pytest.raises(LimitTooLow, match=r"1150 MB are needed .*, 412 MB are free by memory.max of system.slice"):
        room.check(GB, 100 * MB, root=str(tmp_path))


@pytest.mark.parametrize("limit", [512 * MB, 2**63 - 4096])
def test_i11_version_1(tmp_path: Path, limit: int) -> None:
    meminfo(tmp_path, 3 * GB)
    mountinfo = V1.format(top="/") + "33 25 0:29 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
    own = "/sys/fs/cgroup/memory/a"
    put(tmp_path, {"/proc/self/cgroup": "5:memory:/a\n", "/proc/self/mountinfo": mountinfo,
                   f"{own}/memory.limit_in_bytes": f"{limit}\n", f"{own}/memory.usage_in_bytes": "1000\n",
                   f"{own}/memory.stat": "total_inactive_file 0\n"})  # fmt: skip
    if limit > GB:
        room.check(GB, 0, root=str(tmp_path))
    else:
        with pytest.raises(LimitTooLow, match=r"512 MB are free by memory.limit_in_bytes of a"):
            room.check(GB, 0, root=str(tmp_path))


def test_i11_override(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    meminfo(tmp_path, GB)
    room.check(GB, 0, "off", str(tmp_path))
    assert not caplog.records
    room.check(GB, 0, "warn", str(tmp_path))
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


def test_a_machine_that_tells_nothing_refuses_nothing(tmp_path: Path) -> None:
    room.check(GB, 0, root=str(tmp_path))


def test_i11_an_engine_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With its weights and the KV cache of its settings."""
    path = tiny.write(tmp_path / "model.gguf")
    monkeypatch.setattr(room, "limits", lambda root: iter([(room.PROGRAM + path.stat().st_size + 100_000, "a test")]))
    with opened(path, context=32):
        pass
    with pytest.raises(LimitTooLow, match="KV cache 1,"), opened(path, context=512, kv_tokens=2048):
        pass
    with opened(path, context=512, kv_tokens=2048, memory_check="warn"):
        pass
