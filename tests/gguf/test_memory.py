"""The mapped file: page sizes, locked memory, address space, changes on disk."""

from __future__ import annotations

import ctypes
import errno
import inspect
import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from edged import gguf
from edged.errors import BadModel, LimitTooLow, ModelChanged
from edged.gguf import memory
from tests.gguf import raw
from tests.gguf.limited import open_limited

MIB = 1 << 20


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """An untied model of three tensors of 1 MiB each, of ones, twos and threes."""
    writer = gguf.Writer()
    for value, name in enumerate(("token_embd.weight", "blk.0.w", "output.weight"), 1):
        writer.add_tensor(name, np.full((256, 1024), value, np.float32))
    path = tmp_path / "m.gguf"
    writer.write(path)
    return path


class Kernel:
    """Stands in for the C library: notes calls, fails as told."""

    def __init__(self, **errors: int) -> None:
        self.errors = errors
        self.calls: list[tuple[str, int, int]] = []

    def __getattr__(self, name: str):
        def call(start: int, length: int, advice: int = 0) -> int:
            self.calls.append((f"{name} {advice}" if advice else name, start, length))
            error = self.errors.get(f"{name}_{advice}" if advice else name, 0)
            ctypes.set_errno(error)
            return -1 if error else 0

        return call


# -- I02: page sizes


def test_i02_no_page_size_is_written_down() -> None:
    assert "4096" not in inspect.getsource(memory)
    assert os.sysconf("SC_PAGE_SIZE") == memory.PAGE


@pytest.mark.parametrize("page", [4096, 16384, 65536])
def test_i02_ranges_are_rounded_to_pages_and_joined(page: int) -> None:
    assert memory.page_ranges([(32, 33)], page) == [(0, page)]
    assert memory.page_ranges([(page, 2 * page)], page) == [(page, 2 * page)]
    assert memory.page_ranges([(5 * page + 32, 6 * page + 1), (32, page)], page) == [(0, page), (5 * page, 7 * page)]
    assert memory.page_ranges([(10, 20), (page - 1, page + 1), (30, 3 * page)], page) == [(0, 3 * page)]


@pytest.mark.parametrize("page", [16384, 65536])
def test_i02_calls_have_whole_pages_and_the_right_bytes(path: Path, page: int, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Kernel()
    monkeypatch.setattr(memory, "PAGE", page)
    monkeypatch.setattr(memory, "_libc", kernel)
    with gguf.open(path) as model:
        tensor = model.tensors["blk.0.w"]
        assert tensor.offset % 32 == 0 and tensor.offset % page
        assert set(model.tensor_bytes("blk.0.w").view("<f4").tolist()) == {2.0}
        locked = model.lock("hot")
        # the embedding is cold, the two other tensors are neighbours
        [(start, length)] = [call[1:] for call in kernel.calls if call[0] == "mlock"]
        end = model.tensors["output.weight"].address + model.tensors["output.weight"].nbytes
        assert (start % page, length % page, length) == (0, 0, locked)
        assert start <= tensor.address < start + page and end <= start + length < end + page


# -- I01: locked memory

_LOCKER = """
import json, logging, os, resource, sys
from edged import gguf
from edged.errors import LimitTooLow
path, mode, limit = sys.argv[1:]
logged = []
logging.getLogger("edged").addHandler(logging.Handler())
logging.getLogger("edged").handlers[0].emit = lambda record: logged.append(record.getMessage())
model = gguf.open(path)
resource.setrlimit(resource.RLIMIT_MEMLOCK, (int(limit), resource.getrlimit(resource.RLIMIT_MEMLOCK)[1]))
if os.geteuid() == 0:
    os.seteuid(65534)  # root may lock without limit
failed = ""
try:
    locked = model.lock(mode)
except LimitTooLow as e:
    locked, failed = -1, str(e)
with open("/proc/self/status") as status:
    kept = next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmLck"))
first = model.tensor_bytes("blk.0.w").view("<f4")[0]
print(json.dumps({"locked": locked, "kept": kept, "failed": failed, "logged": logged, "first": float(first)}))
"""


def lock(path: Path, mode: str, limit: int) -> dict:
    """What `Model.lock` does in a process that may lock `limit` bytes."""
    done = subprocess.run(
        [sys.executable, "-c", _LOCKER, str(path), mode, str(limit)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("limit", [65536, 3 * MIB // 2])
def test_i01_a_low_limit_gives_one_warning_and_leaves_nothing_locked(path: Path, limit: int) -> None:
    needed = -(-path.stat().st_size // memory.PAGE) * memory.PAGE
    result = lock(path, "all", limit)
    assert (result["locked"], result["kept"], result["failed"], result["first"]) == (0, 0, "", 2.0)
    [warning] = result["logged"]
    assert f"needs {needed} bytes" in warning and f"{limit} bytes" in warning and "LimitMEMLOCK=4M" in warning


def test_i01_required_fails(path: Path) -> None:
    result = lock(path, "required", 65536)
    assert result["kept"] == 0 and result["logged"] == []
    assert "65536 bytes" in result["failed"] and "LimitMEMLOCK=4M" in result["failed"]


@pytest.mark.skipif(
    0 <= resource.getrlimit(resource.RLIMIT_MEMLOCK)[1] < 6 * MIB,
    reason="may not lock 6 MiB (ulimit -H -l)",
)
def test_i01_within_the_limit_whole_pages_are_locked(path: Path) -> None:
    whole = -(-path.stat().st_size // memory.PAGE) * memory.PAGE
    for mode in ("all", "required"):
        result = lock(path, mode, 6 * MIB)
        assert (result["locked"], result["kept"], result["logged"]) == (whole, whole, [])
    hot = lock(path, "hot", 6 * MIB)
    assert hot["locked"] == hot["kept"] and 2 * MIB <= hot["kept"] <= 2 * MIB + 2 * memory.PAGE
    assert lock(path, "off", 6 * MIB)["kept"] == 0


def test_i01_ranges_locked_before_a_failure_are_unlocked(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Kernel()
    monkeypatch.setattr(memory, "_libc", kernel)
    page = memory.PAGE
    assert memory.lock([(0, page), (4 * page, 5 * page)]) == 2 * page
    kernel.errors["mlock"] = errno.ENOMEM
    kernel.calls.clear()
    with pytest.raises(LimitTooLow, match=f"needs {2 * page} bytes"):
        memory.lock([(0, page), (4 * page, 5 * page)])
    assert kernel.calls == [("mlock", 0, page), ("munlock", 0, page), ("munlock", 4 * page, page)]


def test_i01_the_embedding_is_hot_where_it_is_the_output_layer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = gguf.Writer()
    writer.add_tensor("token_embd.weight", np.zeros((256, 1024), np.float32))
    writer.write(tmp_path / "tied.gguf")
    monkeypatch.setattr(memory, "_libc", Kernel())
    with gguf.open(tmp_path / "tied.gguf") as model:
        assert model.lock("hot") >= MIB


# -- I13: address space


def test_i13_a_32_bit_process_is_told_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = raw.save(tmp_path, raw.gguf())
    os.truncate(path, 3 << 30)  # sparse
    monkeypatch.setattr(memory, "POINTER_BYTES", 4)
    with pytest.raises(LimitTooLow, match=f"{3 << 30} bytes .*needs a 64-bit userland"):
        gguf.open(path)


def test_i13_a_map_that_fails_names_size_and_limit(tmp_path: Path) -> None:
    path = raw.save(tmp_path, raw.gguf())
    os.truncate(path, 3 << 30)
    [result], _ = open_limited([path])
    assert result.startswith("limit_too_low: ") and f"cannot map {3 << 30} bytes" in result
    assert "the address space is limited to " in result


# -- A11, I03: files cut or changed


def test_a11_a_cut_file_is_refused(path: Path) -> None:
    content = path.read_bytes()
    for size in (len(content) - 1, len(content) - memory.PAGE, len(content) // 2):
        os.truncate(path, size)
        with pytest.raises(BadModel, match=f"tensor '.*' ends at byte .* the file has {size} "):
            gguf.open(path)
    for size in range(1, 200):  # inside the header
        path.write_bytes(content[:size])
        with pytest.raises(BadModel):
            gguf.open(path)


def test_i03_a_change_in_place_is_noticed(path: Path) -> None:
    with gguf.open(path) as model:
        model.check_unchanged()
        with open(path, "r+b") as file:
            file.seek(-4, os.SEEK_END)
            file.write(b"abcd")
        os.utime(path, ns=(0, 0))  # the clock of a file system may stand still for milliseconds
        with pytest.raises(ModelChanged, match=r"m\.gguf: changed on disk"):
            model.check_unchanged()


def test_i03_a_cut_in_place_is_noticed(path: Path) -> None:
    with gguf.open(path) as model:
        size = path.stat().st_size
        os.truncate(path, size - 4)
        with pytest.raises(ModelChanged, match=f"size {size} -> {size - 4} bytes"):
            model.check_unchanged()


def test_i03_a_model_installed_by_rename_leaves_the_old_one_whole(path: Path) -> None:
    with gguf.open(path) as model:
        assert not model.replaced()
        writer = gguf.Writer()
        writer.add_tensor("blk.0.w", np.zeros((4, 4), np.float32))
        writer.write(path)
        model.check_unchanged()
        assert model.replaced()
        assert set(model.tensor_bytes("blk.0.w").view("<f4").tolist()) == {2.0}
        path.unlink()
        model.check_unchanged()
        assert model.replaced()


# -- reading ahead, closing


def resident(address: int) -> int:
    """Bytes in memory of the map that starts at `address`."""
    with open("/proc/self/smaps") as maps:
        for line in maps:
            if line.startswith(f"{address:x}-"):
                return next(int(line.split()[1]) * 1024 for line in maps if line.startswith("Rss:"))
    pytest.fail("not mapped")


def test_prefault_maps_every_page(path: Path) -> None:
    with gguf.open(path) as model:
        model.prefault()
        assert resident(model.parts[0].address) >= path.stat().st_size


def test_prefault_on_kernels_that_cannot_populate(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_libc", Kernel(madvise_22=errno.EINVAL))
    with gguf.open(path) as model:
        model.prefault()
        assert resident(model.parts[0].address) >= path.stat().st_size


def test_prefault_ends_when_the_model_is_closed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = gguf.open(path)
    kernel = Kernel()
    monkeypatch.setattr(memory, "_libc", kernel)
    monkeypatch.setattr(memory, "_SLICE", memory.PAGE)
    kernel.madvise = lambda *call: (kernel.calls.append(call), model.close())[0] or 0
    model.prefault()
    assert len(kernel.calls) == 2  # the advice and the populating of the first slice
    model.prefault()
    assert len(kernel.calls) == 2


def test_a_closed_model_has_not_changed(path: Path) -> None:
    model = gguf.open(path)
    model.close()
    path.write_bytes(b"another")
    for part in model.parts:
        part.check_unchanged()  # who still runs at the end of the daemon is told of the end, not of this


def test_arrays_outlive_the_model(tmp_path: Path) -> None:
    path = raw.save(tmp_path, raw.gguf([raw.key("k", np.arange(3, dtype="<i4")), raw.key("s", ["a", "b"])]))
    model = gguf.open(path)
    numbers, strings = model.meta["k"], model.meta["s"]
    part = model.parts[0]
    model.close()
    model.close()
    assert numbers.tolist() == [0, 1, 2] and list(strings) == ["a", "b"]  # type: ignore[union-attr,arg-type]
    assert len(part.data) == 0


def test_closing_gives_the_memory_back(path: Path) -> None:
    def mapped() -> int:
        with open("/proc/self/maps") as maps:
            return sum(str(path) in line for line in maps)

    descriptors = len(os.listdir("/proc/self/fd"))
    model = gguf.open(path)
    assert mapped() == 1
    model.close()
    del model
    assert mapped() == 0
    assert len(os.listdir("/proc/self/fd")) == descriptors


def test_a_refused_file_is_let_go(tmp_path: Path) -> None:
    path = raw.save(tmp_path, raw.gguf([], [raw.tensor(shape=(1 << 40,))]))
    descriptors = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with pytest.raises(BadModel):
            gguf.open(path)
    assert len(os.listdir("/proc/self/fd")) == descriptors
