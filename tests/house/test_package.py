"""What the build makes: wheels, the source distribution, editable installs, and a run on the oldest Python."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from edged import __version__
from edged.kernels.table import LEVELS

CHECKOUT = Path(__file__).resolve().parents[2]
HOST = {"arm64": "aarch64"}.get(platform.machine(), platform.machine())

# loads the kernels of an installed edged and says where they are; fails if a folder of the house is a module of its own
PROBE = """
import importlib.util, sys
assert not {name for name in ("kernels", "rag", "packaging.edged_build") if importlib.util.find_spec(name)}
import edged, edged.rag
from edged.kernels import load
print(edged.__file__, load.open().level.family)
assert "numba" not in sys.modules
"""


def do(argv: list[str], **options: object) -> str:
    """Run a command and return what it printed; its output is the assertion message."""
    done = subprocess.run(argv, capture_output=True, text=True, **options)  # type: ignore[call-overload]
    assert done.returncode == 0, f"{argv}\n{done.stdout}\n{done.stderr}"
    return str(done.stdout)


def build(kind: str, source: Path, out: Path, *options: str) -> Path:
    """Build `source` with the tools of this environment; returns the one file made."""
    do([sys.executable, "-m", "build", f"--{kind}", "--no-isolation", "--skip-dependency-check", *options,
        "--outdir", str(out), str(source)])  # fmt: skip
    (made,) = out.iterdir()
    return made


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this machine's family."""
    return build("wheel", CHECKOUT, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source distribution."""
    return build("sdist", CHECKOUT, tmp_path_factory.mktemp("sdist"))


def check_wheel(path: Path, family: str) -> None:
    """One package of real files, every module, exactly the libraries of the family, the sample files."""
    assert path.name == f"edged-{__version__}-py3-none-manylinux_2_17_{family}.whl"
    with zipfile.ZipFile(path) as archive:
        names = set(archive.namelist())
        assert b"Root-Is-Purelib: false" in archive.read(f"edged-{__version__}.dist-info/WHEEL")
    tops = {name.partition("/")[0] for name in names}
    assert tops == {"edged", f"edged-{__version__}.dist-info", f"edged-{__version__}.data"}
    sources = [p.relative_to(CHECKOUT) for top in ("edged", "kernels", "rag") for p in (CHECKOUT / top).rglob("*.py")]
    modules = {str(p if p.parts[0] == "edged" else Path("edged", p)) for p in sources}
    assert {name for name in names if name.endswith(".py")} == modules
    libraries = {Path(name).name for name in names if name.endswith(".so")}
    assert libraries == {f"libedged_{level.name}.so" for level in LEVELS if level.family == family}
    assert f"edged-{__version__}.data/data/share/edged/edged.service" in names
    assert not {name for name in names if "__pycache__" in name or name.endswith((".s", ".o", ".stamp"))}


def test_wheel(wheel: Path) -> None:
    check_wheel(wheel, HOST)


def test_wheel_of_the_other_family(tmp_path: Path) -> None:
    (family,) = {level.family for level in LEVELS} - {HOST}
    check_wheel(build("wheel", CHECKOUT, tmp_path, f"--config-setting=family={family}"), family)


def test_a_wheel_is_for_one_family(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="one family"):
        build("wheel", CHECKOUT, tmp_path, "--config-setting=family=all")


def test_unknown_family(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="no kernels for riscv64"):
        build("wheel", CHECKOUT, tmp_path, "--config-setting=family=riscv64")


def test_wheel_runs(wheel: Path, tmp_path: Path) -> None:
    do([sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(tmp_path), str(wheel)])
    where, family = do([sys.executable, "-c", PROBE], cwd=tmp_path, env={**os.environ, "PYTHONPATH": ""}).split()
    assert Path(where).is_relative_to(tmp_path)
    assert family == HOST


def test_sdist_builds_the_same_wheel(sdist: Path, tmp_path: Path) -> None:
    """The source distribution is enough to build from, and has no links and nothing built."""
    with tarfile.open(sdist) as archive:
        assert not [member.name for member in archive if member.issym() or member.name.endswith(".so")]
        archive.extractall(tmp_path, filter="data") if sys.version_info >= (3, 12) else archive.extractall(tmp_path)
    source = tmp_path / f"edged-{__version__}"
    # libraries are kept while the hash of all kernel sources is the same: a source that is missing is noticed
    shutil.copytree(CHECKOUT / "kernels" / "_built", source / "edged" / "kernels" / "_built")
    check_wheel(build("wheel", source, tmp_path / "out"), HOST)


def test_editable(tmp_path: Path) -> None:
    """An editable install finds edged in the checkout, and neither `kernels` nor `rag` beside it."""
    hook = "import sys; sys.path.insert(0, 'packaging'); import edged_build; edged_build.build_editable(sys.argv[1])"
    do([sys.executable, "-c", hook, str(tmp_path)], cwd=CHECKOUT)
    (made,) = tmp_path.iterdir()
    with zipfile.ZipFile(made) as archive:
        archive.extractall(tmp_path / "site")
    probe = f"import site; site.addsitedir({str(tmp_path / 'site')!r})\n{PROBE}"
    where, _ = do([sys.executable, "-c", probe], cwd=tmp_path, env={**os.environ, "PYTHONPATH": ""}).split()
    assert Path(where) == CHECKOUT / "edged" / "__init__.py"


def test_linker_requirement(monkeypatch: pytest.MonkeyPatch) -> None:
    """ziglang is asked for exactly where no linker of the machine can do the work."""
    monkeypatch.syspath_prepend(str(CHECKOUT / "packaging"))
    import edged_build

    (other,) = {level.family for level in LEVELS} - {HOST}
    found = {"ld.lld": "/usr/bin/ld.lld", "ld": "/usr/bin/ld"}
    for present, family, needed in (
        (["ld.lld"], other, False),
        (["ld"], HOST, False),
        (["ld"], other, True),
        (["ld"], "all", True),
        ([], HOST, True),
    ):
        monkeypatch.setattr(shutil, "which", lambda name, present=present: found[name] if name in present else None)
        requires = edged_build.get_requires_for_build_wheel({"family": family})
        assert any(r.startswith("ziglang") for r in requires) == needed, (present, family)


def python_3_10() -> str | None:
    """A Python 3.10 that can make environments: on the path, or one that pyenv keeps."""
    kept = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv", "versions").glob("3.10.*/bin/python3.10")
    for python in filter(None, (shutil.which("python3.10"), *map(str, sorted(kept)))):
        if subprocess.run([python, "-c", "import venv, ensurepip"], capture_output=True).returncode == 0:
            return python
    return None


def test_python_3_10(wheel: Path, tmp_path: Path, smollm2_path: Path) -> None:
    """The wheel runs on the oldest Python it allows."""
    python = python_3_10()
    if python is None:
        pytest.skip("no Python 3.10 on this machine")
    do([python, "-m", "venv", str(tmp_path / "venv")])
    do([str(tmp_path / "venv/bin/pip"), "install", "--quiet", "--disable-pip-version-check", str(wheel)])
    answer = do([str(tmp_path / "venv/bin/edged"), "run", "--model", str(smollm2_path), "-n", "4", "Hello"])
    assert answer.strip()
