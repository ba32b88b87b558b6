"""Find and load the kernel library for this processor: `open() -> Library`.

The best level whose features the processor reports is taken, or the one named by the argument or by
EDGED_KERNEL_LEVEL. A library first runs a self-test in a child process: one that dies there (SIGILL in a virtual
machine that hides instructions, say) or computes wrong numbers costs one log line, and the next lower level is taken.
Raises BadKernels.
"""

from __future__ import annotations

import ctypes
import os
import platform
import signal
import warnings
from typing import Any

from edged.errors import BadKernels
from edged.kernels.table import (
    ABI,
    ACT_F32,
    ACT_Q8_32,
    LEVEL_BY_NAME,
    LEVELS,
    TYPES,
    Level,
    TensorType,
    act_panel_parts,
    act_row_parts,
    tile_scratch_bytes,
)

ENV = "EDGED_KERNEL_LEVEL"
FOLDER = os.path.join(os.path.dirname(os.path.realpath(__file__)), "_built")
BUILD = "python -m edged.kernels.build"

_C_TYPES = {"p": ctypes.c_void_p, "i": ctypes.c_int64, "w": ctypes.c_int32, "f": ctypes.c_float, "": None}
# <asm/hwcap.h> of AArch64
_AT_HWCAP, _HWCAP = 16, {"asimd": 1 << 1, "asimddp": 1 << 20}


class Library:
    """The kernels of one level; each exported function is an attribute that takes integers, addresses and floats."""

    def __init__(self, level: Level, path: str) -> None:
        """Load without running anything. Raises BadKernels if the file is missing, broken or of another ABI."""
        if not os.path.exists(path):
            raise BadKernels(f"no kernel library {path}", hint=f"build it: {BUILD} --level {level.name}")
        try:
            self._library = ctypes.CDLL(path)
            abi = ctypes.c_int32.in_dll(self._library, "edged_abi").value
            signatures = ctypes.c_char.in_dll(self._library, "edged_signatures")
        except (OSError, ValueError) as e:
            raise BadKernels(f"kernel library {path}: {e}", hint=f"build it: {BUILD} --force") from e
        if abi != ABI:
            raise BadKernels(
                f"kernel library {path} has ABI {abi}, this edged needs ABI {ABI}",
                hint=f"install edged anew, or build the library: {BUILD} --force",
            )
        text = ctypes.string_at(ctypes.addressof(signatures)).decode("ascii")
        self._signatures = dict(line.split(" ") for line in text.split("\n"))
        self.level, self.path = level, path
        self.lanes = level.lanes

    def has(self, name: str) -> bool:
        """Whether the library has a kernel of this name."""
        return name in self._signatures

    def __getattr__(self, name: str) -> Any:
        signature = self.__dict__.get("_signatures", {}).get(name)
        if signature is None:
            raise AttributeError(f"no kernel {name}")
        function = getattr(self._library, name)
        arguments, _, result = signature.partition(">")
        function.argtypes = [_C_TYPES[c] for c in arguments]
        function.restype = _C_TYPES[result]
        setattr(self, name, function)
        return function


def open(level: str | None = None) -> Library:  # the seam's name: load.open()
    """The library of `level`, by default of the best level that works here. Raises BadKernels."""
    name = level or os.environ.get(ENV, "")
    features = cpu_features()
    if name:
        return _load_named(name, features)
    fitting = [c for c in LEVELS if features.issuperset(c.features) and c.family == _family()]
    if not fitting:
        raise BadKernels(f"no kernel level for this processor ({_family()})", hint=f"levels: {_names()}")
    for candidate in fitting:
        path = library_path(candidate)
        if candidate is not fitting[-1] and not os.path.exists(path):
            _warn("no kernel library %s, trying the next lower level", path)
            continue
        library = Library(candidate, path)
        fault = trial(library)
        if not fault:
            return library
        _warn("kernels %s do not work on this processor (%s)", candidate.name, fault)
    raise BadKernels("no kernel library works on this processor", hint=f"tried: {_names(fitting)}")


def _warn(message: str, *values: object) -> None:
    import logging  # only now: not needed for a first token

    logging.getLogger(__name__).warning(message, *values)


def library_path(level: Level) -> str:
    """Where the library of a level is expected."""
    return os.path.join(FOLDER, f"libedged_{level.name}.so")


def cpu_features() -> frozenset[str]:
    """What the processor can do, in the words of Level.features; empty on an unknown family."""
    if _family() == "aarch64":
        getauxval = ctypes.CDLL(None).getauxval
        getauxval.argtypes, getauxval.restype = [ctypes.c_ulong], ctypes.c_ulong
        bits = getauxval(_AT_HWCAP)
        return frozenset(name for name, bit in _HWCAP.items() if bits & bit)
    fd = os.open("/proc/cpuinfo", os.O_RDONLY)
    try:
        head = os.read(fd, 16384)  # the first processor is enough
    finally:
        os.close(fd)
    flags = head.partition(b"\nflags")[2].partition(b"\n")[0]
    return frozenset(flags.decode("ascii").split())


def trial(library: Library) -> str:
    """Run the self-test in a child process; returns what went wrong, '' if nothing. Raises BadKernels if kernels are
    missing."""
    missing = [t.name for t in TYPES if not library.has(f"matvec_{t.name}")]
    if missing:
        raise BadKernels(
            f"kernel library {library.path} has no kernels for {', '.join(missing)}: it was built from other sources",
            hint=f"install edged anew, or build the library: {BUILD} --force",
        )
    with warnings.catch_warnings():
        # the child only calls loaded code and exits: locks that other threads held do not matter
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        for number in (signal.SIGILL, signal.SIGSEGV, signal.SIGBUS):
            signal.signal(number, signal.SIG_DFL)  # a death is a result here, and no traceback is wanted
        status = 2
        try:
            status = 0 if self_test(library) else 1
        finally:
            os._exit(status)
    status = os.waitpid(child, 0)[1]
    if os.WIFSIGNALED(status):
        return signal.Signals(os.WTERMSIG(status)).name
    return "" if status == 0 else "wrong results"


def self_test(library: Library) -> bool:
    """Multiply four rows of each tensor type with ones, by every kernel, and compare with the row's own sum."""
    return all(_self_test_type(library, kind) for kind in TYPES)


def _self_test_type(library: Library, t: TensorType) -> bool:
    k, rows, tokens = 256, 4, 1
    stride = t.row_bytes(k)
    weights = ctypes.create_string_buffer(b"\x21" * (rows * stride), rows * stride)
    row = (ctypes.c_float * k)()
    getattr(library, f"row_{t.name}")(ctypes.addressof(weights), k, ctypes.addressof(row))
    record, panel = _ones(t, k, library.level)
    scratch = ctypes.create_string_buffer(tile_scratch_bytes(k) + 64)
    stop = ctypes.c_int32(0)
    y = (ctypes.c_float * (4 * rows))()
    to, size = ctypes.addressof(y), 4 * rows
    matrix = (ctypes.addressof(weights), stride, 0, rows, k)
    getattr(library, f"matvec_{t.name}")(*matrix, record, to, 0)
    getattr(library, f"matvec_rows_{t.name}")(*matrix, record, 0, 2, to + size, rows, 0)
    aligned = (ctypes.addressof(scratch) + 63) & ~63
    getattr(library, f"tile_{t.name}")(
        *matrix, panel, tokens, to + 3 * size, rows, 0, aligned, ctypes.addressof(stop)
    )
    total = sum(row)
    return total != 0 and all(abs(v - total) <= 1e-4 * abs(total) for v in y)


def _ones(t: TensorType, k: int, level: Level) -> tuple[bytes, bytes]:
    """A row record and a panel whose values are all 1."""
    one, n = ctypes.c_float(1.0), level.lanes
    f1 = bytes(one)
    f32 = bytes(ctypes.c_float(32.0))
    if t.act == ACT_F32:
        return f1 * k, f1 * (k * n)
    q, panel_q = b"\x01" * k, bytes([1 + level.bias]) * (k * n)
    if t.act == ACT_Q8_32:
        parts = [q, f1 * (k // 32), f32 * (k // 32)]
        panel = [panel_q, f1 * (k // 32 * n), f32 * (k // 32 * n)]
    else:
        parts = [q, f1 * (k // 256), (32).to_bytes(4, "little") * (k // 32), (16).to_bytes(2, "little") * (k // 16)]
        panel = [panel_q, f1 * (k // 256 * n), f32 * (k // 32 * n)]
    return _placed(parts, act_row_parts(t.act, k)), _placed(panel, act_panel_parts(t.act, k, n))


def _placed(parts: list[bytes], offsets: tuple[int, ...]) -> bytes:
    """Each part at its offset."""
    out = b""
    for part, offset in zip(parts, offsets):  # noqa: B905  (the total size is the last offset)
        out = out.ljust(offset, b"\0") + part
    return out.ljust(offsets[-1], b"\0")


def _load_named(name: str, features: frozenset[str]) -> Library:
    """The library of a level that was asked for by name; there is no other choice."""
    level = LEVEL_BY_NAME.get(name)
    if level is None or level.family != _family():
        raise BadKernels(f"no kernel level {name!r} for {_family()}", hint=f"levels: {_names()}")
    library = Library(level, library_path(level))
    fault = trial(library)
    if fault:
        missing = sorted(set(level.features) - features)
        lacks = f"; it lacks {', '.join(missing)}" if missing else ""
        raise BadKernels(f"kernels {name} do not work on this processor ({fault}{lacks})", hint=f"unset {ENV}")
    return library


def _family() -> str:
    machine = platform.machine()
    return {"arm64": "aarch64", "AMD64": "x86_64"}.get(machine, machine)


def _names(levels: tuple[Level, ...] | list[Level] | None = None) -> str:
    return ", ".join(c.name for c in levels or LEVELS if c.family == _family())
