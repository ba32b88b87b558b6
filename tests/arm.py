"""Run Python on an emulated AArch64 processor: `run_arm("cortex-a76", ["-c", "..."])`.

The root holds Debian's Python and the wheels edged needs at run time. The machine's own apt and pip download it;
it is only unpacked (nothing in it is configured or executed, so no privileges are needed) and kept in the cache:
$EDGED_ARM_ROOT or $XDG_CACHE_HOME/edged/arm64-<digest of what is in it>. Nothing is chrooted: qemu looks paths up in
the root first, so the checkout, the model cache and /tmp are where they are on the host.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent
DEBS = ("python3-minimal", "libpython3-stdlib", "libstdc++6")
WHEELS = ("numpy", "click", "h11", "jinja2", "sqlite-utils", "pyserial")
PLATFORMS = ("manylinux_2_17_aarch64", "manylinux_2_27_aarch64", "manylinux_2_28_aarch64", "manylinux2014_aarch64")
QEMU = ("qemu-aarch64-static", "qemu-aarch64")


class ArmUnavailableError(Exception):
    """This machine cannot emulate AArch64; the message says what is missing."""


def run_arm(
    cpu: str, argv: Sequence[str], env: Mapping[str, str] | None = None, *, timeout: float = 600, text: bool = True,
    input: str | None = None,
) -> subprocess.CompletedProcess:
    """Run the root's Python with `argv` on a `cpu` known to qemu, from the checkout, with the checkout importable.

    The environment is only what Python needs plus `env`. The result is returned whatever its exit code; a fatal signal
    in the emulated process is a negative return code, as with any child. Raises ArmUnavailableError.
    """
    return subprocess.run(
        command(cpu, argv), env=environment(env), cwd=CHECKOUT, timeout=timeout, capture_output=True, text=text,
        input=input,
    )


def command(cpu: str, argv: Sequence[str]) -> list[str]:
    """The command line `run_arm` executes, for callers that want a Popen of their own (see `environment`)."""
    return [_qemu(), "-cpu", cpu, "-L", str(root()), str(root() / "usr/bin/python3"), *argv]


def environment(env: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment `run_arm` uses. Bytecode goes to the root: emulated compilation is slow, and done once."""
    return {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": os.environ.get("HOME", "/"),
        "LANG": "C.UTF-8",
        "PYTHONPATH": f"{CHECKOUT}{os.pathsep}{root() / 'site'}",
        "PYTHONPYCACHEPREFIX": str(root() / "pycache"),
        **{k: v for k, v in os.environ.items() if k in ("TMPDIR", "XDG_CACHE_HOME", "EDGED_TEST_MODELS")},
        **(env or {}),
    }


@functools.cache
def root() -> Path:
    """The AArch64 root, made on first use. Raises ArmUnavailableError."""
    _qemu()
    if given := os.environ.get("EDGED_ARM_ROOT"):
        if not (Path(given) / "usr/bin/python3").exists():
            raise ArmUnavailableError(f"EDGED_ARM_ROOT={given} holds no usr/bin/python3")
        return Path(given)
    digest = hashlib.sha256(repr((DEBS, WHEELS, PLATFORMS)).encode()).hexdigest()[:12]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "edged"
    cache.mkdir(parents=True, exist_ok=True)
    target = cache / f"arm64-{digest}"
    with open(cache / "arm64.lock", "w") as lock:  # several test processes may come here at once
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            with tempfile.TemporaryDirectory(dir=cache, prefix="arm64-new-") as work:
                _make(Path(work))
                (Path(work) / "root").rename(target)
    return target


def _qemu() -> str:
    for name in QEMU:
        if path := shutil.which(name):
            return path
    raise ArmUnavailableError("no qemu-aarch64-static (Debian package qemu-user-static)")


def _make(work: Path) -> None:
    """Fill work/root."""
    for tool in ("apt-get", "dpkg-deb"):
        if not shutil.which(tool):
            raise ArmUnavailableError(f"no {tool} to fetch the AArch64 root with")
    for folder in ("apt/lists/partial", "apt/cache/archives/partial", "root/site"):
        (work / folder).mkdir(parents=True)
    (work / "apt/status").touch()  # nothing is installed: apt resolves every dependency
    settings = {
        "APT::Architecture": "arm64",
        "APT::Architectures::": "arm64",
        "APT::Install-Recommends": "false",
        "APT::Sandbox::User": "",
        "Acquire::Languages": "none",
        "Debug::NoLocking": "true",
        "Dir::Cache": str(work / "apt/cache"),
        "Dir::State": str(work / "apt"),
        "Dir::State::status": str(work / "apt/status"),
    }
    apt = ["apt-get", "-q", "-y", *(f"-o{key}={value}" for key, value in settings.items())]
    _do([*apt, "update"])
    _do([*apt, "--download-only", "install", *DEBS])
    for deb in sorted((work / "apt/cache/archives").glob("*.deb")):
        _do(["dpkg-deb", "--extract", str(deb), str(work / "root")])
    version = (work / "root/usr/bin/python3").readlink().name.removeprefix("python")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-compile", "--only-binary=:all:"]
    target = ["--target", str(work / "root/site"), "--implementation=cp", f"--python-version={version}"]
    _do([*pip, *target, *(f"--platform={name}" for name in PLATFORMS), *WHEELS])


def _do(argv: list[str]) -> None:
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        tail = (done.stderr or done.stdout).strip()[-600:]
        raise ArmUnavailableError(f"{' '.join(argv[:1])} failed while making the AArch64 root: {tail}")
