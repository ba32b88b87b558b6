"""The build backend of edged: setuptools, plus the kernels compiled ahead of time.

    pip install .                            kernels of this machine's family, inside the wheel
    pip install -e .                         the same, used where they are built: kernels/_built (ignored by git)
    pip wheel . -C family=aarch64            a wheel for another family, cross-compiled
    pip install -e . -C family=all           every family, for the tests; not possible for a wheel, which names one

PEP 517 and PEP 660 hooks are setuptools' own, except that they add a linker to the build requirements where the machine
has none for the target, and that they note the chosen family for the commands below, which pyproject.toml names.
"""

from __future__ import annotations

import base64
import hashlib
import platform
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from setuptools import build_meta
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build import build
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

FAMILIES = ("x86_64", "aarch64")
MACHINES = {"x86_64": "x86_64", "amd64": "x86_64", "aarch64": "aarch64", "arm64": "aarch64"}
LINKER = "ziglang>=0.13"
# sched_yield and syscall are all the kernels take from libc: the first tag with both architectures is true
PLATFORM = "manylinux_2_17"
SDIST_EXTRA = ("packaging/edged_build.py", "systemd/edged.service", "CHANGELOG.md")

ConfigSettings = Mapping[str, "str | list[str] | None"] | None

# what the running hook was asked for; one hook runs in one process
_families: tuple[str, ...] = ()

# -- hooks -------------------------------------------------------------------------------------------------------------

get_requires_for_build_sdist = build_meta.get_requires_for_build_sdist
prepare_metadata_for_build_wheel = build_meta.prepare_metadata_for_build_wheel
prepare_metadata_for_build_editable = build_meta.prepare_metadata_for_build_editable
build_sdist = build_meta.build_sdist


def get_requires_for_build_wheel(config_settings: ConfigSettings = None) -> list[str]:
    """Build requirements beyond those of pyproject.toml."""
    needed = [] if all(map(has_linker, families(config_settings))) else [LINKER]
    return [*build_meta.get_requires_for_build_wheel(config_settings), *needed]


def get_requires_for_build_editable(config_settings: ConfigSettings = None) -> list[str]:
    """As for a wheel."""
    return get_requires_for_build_wheel(config_settings)


def build_wheel(
    wheel_directory: str, config_settings: ConfigSettings = None, metadata_directory: str | None = None
) -> str:
    """Build a wheel for one family; returns its file name."""
    global _families
    _families = families(config_settings)
    if len(_families) != 1:
        raise SystemExit("a wheel is for one family: build one wheel for each (make wheels)")
    return build_meta.build_wheel(wheel_directory, config_settings, metadata_directory)


def build_editable(
    wheel_directory: str, config_settings: ConfigSettings = None, metadata_directory: str | None = None
) -> str:
    """Build the kernels in the source tree, and a wheel that finds `edged` there; returns the wheel's file name.

    Not setuptools' own finder, which costs every start of Python 25 ms, and not a path entry, which would make the
    folders `kernels` and `rag` importable by their bare names.
    """
    global _families
    _families = families(config_settings)
    compile_kernels()
    with tempfile.TemporaryDirectory() as metadata, tempfile.TemporaryDirectory() as scratch:
        name = build_meta.prepare_metadata_for_build_editable(metadata, config_settings)
        info = Path(shutil.copytree(Path(metadata, name), Path(scratch, name)))
        Path(info, "WHEEL").write_text(WHEEL)
        Path(scratch, "_edged_editable.pth").write_text("import _edged_editable\n")
        Path(scratch, "_edged_editable.py").write_text(FINDER.format(source=str(Path.cwd())))
        files = sorted(path for path in Path(scratch).rglob("*") if path.is_file())
        record = [f"{path.relative_to(scratch)},{_digest(path)},{path.stat().st_size}" for path in files]
        Path(info, "RECORD").write_text("\n".join([*record, f"{info.name}/RECORD,,", ""]))
        name = f"{info.stem}-py3-none-any.whl"
        with zipfile.ZipFile(Path(wheel_directory, name), "w", zipfile.ZIP_DEFLATED) as wheel:
            for path in [*files, info / "RECORD"]:
                wheel.write(path, path.relative_to(scratch))
    return name


WHEEL = """\
Wheel-Version: 1.0
Generator: edged_build
Root-Is-Purelib: true
Tag: py3-none-any
"""

FINDER = """\
import sys
from importlib.machinery import PathFinder


class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        return PathFinder.find_spec(name, [{source!r}]) if name == "edged" else None


sys.meta_path.append(Finder)
"""


def _digest(path: Path) -> str:
    """The hash of a file as RECORD wants it."""
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(path.read_bytes()).digest()).rstrip(b"=").decode()


def families(config_settings: ConfigSettings) -> tuple[str, ...]:
    """The families that config setting `family` names: one, `all`, or by default this machine's."""
    wanted = (config_settings or {}).get("family") or MACHINES.get(platform.machine().lower())
    if wanted == "all":
        return FAMILIES
    if wanted not in FAMILIES:
        raise SystemExit(f"no kernels for {wanted or platform.machine()}: family is one of {', '.join(FAMILIES)}, all")
    return (str(wanted),)


def has_linker(family: str) -> bool:
    """Whether the machine itself can link for a family: lld links for all, GNU ld for its own."""
    own = MACHINES.get(platform.machine().lower()) == family
    return bool(shutil.which("ld.lld") or (own and shutil.which("ld")))


# -- commands ----------------------------------------------------------------------------------------------------------


class Build(build):
    """Builds in a temporary folder: what an earlier build left cannot get into a wheel."""

    def initialize_options(self) -> None:
        super().initialize_options()
        self._scratch = tempfile.TemporaryDirectory(prefix="edged-build-")
        self.build_base = self._scratch.name


class BuildPy(build_py):
    """Adds the kernels to the modules."""

    def run(self) -> None:
        super().run()
        target = Path(self.build_lib, "edged", "kernels", "_built")
        target.mkdir()
        for library in compile_kernels():
            shutil.copy(library, target)


def compile_kernels() -> list[Path]:
    """Bring the libraries of the chosen families up to date; returns them. A hook is run in the source tree."""
    built = Path("edged", "kernels", "_built").resolve()
    for family in _families or families(None):
        command = [sys.executable, "-m", "edged.kernels.build", "--family", family, "--out", str(built)]
        subprocess.run(command, check=True)
    return [path for family in _families or families(None) for path in sorted(built.glob(f"libedged_{family}_*.so"))]


class PlatformWheel(bdist_wheel):
    """Tags the wheel py3-none-<platform>: any Python, one processor family."""

    def finalize_options(self) -> None:
        self.distribution.has_ext_modules = lambda: True
        super().finalize_options()

    def get_tag(self) -> tuple[str, str, str]:
        (family,) = _families or families(None)
        return "py3", "none", f"{PLATFORM}_{family}"


class Sdist(sdist):
    """Adds what a build from the sdist needs; the links edged/kernels and edged/rag become the folders they lead to."""

    def make_release_tree(self, base_dir: str, files: Sequence[str]) -> None:
        super().make_release_tree(base_dir, sorted({*files, *SDIST_EXTRA}))
