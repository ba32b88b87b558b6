"""Link one object file to a shared library, for any target from any machine, without a C toolchain."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

_EMULATION = {"x86_64": "elf_x86_64", "aarch64": "aarch64linux"}
# Boards run kernels with 4, 16 and 64 KiB pages: segments must be loadable on all of them.
_PAGE = 65536


def link(code: bytes, path: Path, machine: str, *, soname: str) -> None:
    """Write the library to `path`. Raises RuntimeError with the linker's words if none can link the target."""
    source = path.with_suffix(".o")
    source.write_bytes(code)
    options = [
        "-m", _EMULATION[machine], "-shared", "-z", "noexecstack", "-z", f"max-page-size={_PAGE}", "--gc-sections",
        "-s", "--hash-style=gnu", "-soname", soname, "-o", str(path), str(source),
    ]  # fmt: skip
    failures = []
    try:
        for linker in _linkers():
            done = subprocess.run([*linker, *options], capture_output=True, text=True)
            if done.returncode == 0:
                return
            failures.append(f"{' '.join(linker)}: {done.stderr.strip()}")
    finally:
        source.unlink()
    raise RuntimeError(f"no linker can make a {machine} library\n" + "\n".join(failures))


def _linkers() -> list[list[str]]:
    """Linkers to try, the system's own first (GNU ld refuses a foreign emulation)."""
    found = [[path] for name in ("ld.lld", "ld") if (path := shutil.which(name))]
    return [*found, [sys.executable, "-m", "ziglang", "ld.lld"]]
