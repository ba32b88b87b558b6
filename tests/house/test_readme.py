"""Every command of README.md is run.

A command stands in a block marked `sh`, code for Python in one marked `python`. The heading above a block says which
test runs it; a block under a heading that no test knows fails. The targets of the last section are what is running this
test, or are run by the tests named in TARGETS.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent

Block = tuple[str, str, str]  # heading, language, code


def blocks() -> list[Block]:
    """The fenced blocks of the README with the headings they stand under."""
    heading, language, lines, found = "", "", [], []
    for line in (CHECKOUT / "README.md").read_text("utf-8").splitlines():
        if line.startswith("```") and not language:
            language, lines = line[3:] or "text", []
        elif line == "```":
            found.append((heading, language, "\n".join(lines)))
            language = ""
        elif language:
            lines.append(line)
        elif line.startswith("#"):
            heading = line.strip("# ")
    return found


BLOCKS = blocks()
TARGETS = {
    "test": "this run",
    "soak": "the same tests, with longer loops",
    "bench": "tests/bench, and its own tests",
    "wheels": "tests/house/test_package.py",
    "docs": "tests/house/test_reference.py",
    "clean": "test_clean",
}


def under(heading: str) -> list[tuple[str, str]]:
    """The (language, code) of the blocks under a heading."""
    return [(language, code) for found, language, code in BLOCKS if found == heading]


def bash(script: str, cwd: Path, **variables: str) -> str:
    """Run a script that stops at the first error; returns its output."""
    env = {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", **variables}
    done = subprocess.run(["bash", "-euo", "pipefail", "-c", script], cwd=cwd, env=env, capture_output=True, text=True)
    assert done.returncode == 0, f"{script}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """The checkout as someone else gets it: what git knows, as it is now."""
    target = tmp_path / "edged"
    names = subprocess.run(["git", "ls-files", "-z"], cwd=CHECKOUT, capture_output=True, check=True).stdout
    for name in filter(None, names.decode().split("\0")):
        if (CHECKOUT / name).is_symlink() or (CHECKOUT / name).exists():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(CHECKOUT / name, target / name, follow_symlinks=False)
    return target


@pytest.fixture
def models(smollm2_path: Path, minilm_path: Path) -> dict[str, str]:
    """The environment in which the README's models are already there."""
    assert smollm2_path.parent == minilm_path.parent
    return {"EDGED_MODELS": str(smollm2_path.parent)}


@pytest.fixture
def manual(tmp_path: Path) -> Path:
    """A folder that holds the manual where the checkout has it."""
    shutil.copytree(CHECKOUT / "packaging" / "manual", tmp_path / "packaging" / "manual")
    return tmp_path


def test_every_block_has_a_test() -> None:
    known = {"Quick start", "From the shell", "Questions about manuals", "As a daemon", "Questions from a program",
             "Run it as a service", "Working on it"}  # fmt: skip
    assert {heading for heading, _, _ in BLOCKS} == known
    assert {language for _, language, _ in BLOCKS} == {"sh", "python"}


def test_quick_start(clone: Path, models: dict[str, str]) -> None:
    """`make demo` in a fresh clone, in an environment of its own."""
    ((_, code),) = under("Quick start")
    # as a second clone would have it: libraries whose sources are the same are not compiled again
    shutil.copytree(CHECKOUT / "kernels" / "_built", clone / "kernels" / "_built")
    output = bash(code, clone, **models)
    assert re.search(r"tokens at \d+ tok/s", output)
    assert re.search(r"manual: \d+ pages, \d+ chunks, [\d.]+ pages/s", output)
    assert re.search(r"> What happens after five wrong PINs\?\n.* 15 minutes", output)
    assert re.search(r"\n  \[1\] \".*15 minutes.*\"\n      Quorvane QV-310 .*, page 10, 6\.5 Access levels\n", output)
    assert "> What does the controller cost?\nnot in the manuals\n" in output
    assert bash(code, clone, **models), "a second run does only what changed"


def test_shell(tmp_path: Path, models: dict[str, str]) -> None:
    ((_, code),) = under("From the shell")
    for line in code.splitlines():
        assert bash(line, tmp_path, **models), f"{line} printed nothing"


def test_manuals(manual: Path, models: dict[str, str]) -> None:
    """The technician's commands, with a store of their own and no daemon."""
    (_, code), (_, with_sqlite_utils) = under("Questions about manuals")
    variables = {**models, "EDGED_RAG_STORE": str(manual / "m.db"), "EDGED_SERVER_SOCKET": str(manual / "nobody")}
    for line in code.splitlines():
        output = bash(line, manual, **variables)
        assert output, f"{line} printed nothing"
        if "wrong PINs" in line:
            assert '[1] "After five wrong PINs' in output
    for line in with_sqlite_utils.splitlines():
        assert bash(line, manual, **variables) or ">" in line, f"{line} printed nothing"
    assert "E-0x2A" in (manual / "chunks.csv").read_text("utf-8")


@contextmanager
def started(heading: str, folder: Path, models: dict[str, str]) -> Iterator[None]:
    """The daemon, started in the folder by the README's own command."""
    (_, start), (_, wait), *_ = under(heading)
    if shutil.which("curl") is None:
        pytest.skip("no curl on this machine")
    assert start.endswith(" &")
    running = subprocess.Popen([BIN / "python", "-m", "edged.cli.main", *shlex.split(start)[1:-1]], cwd=folder,
                               env={**os.environ, **models, "PYTHONPATH": str(CHECKOUT)})  # fmt: skip
    try:
        assert '"status"' in bash(wait, folder)
        yield
    finally:
        running.terminate()
        assert running.wait(30) == 0


def request_all(code: str, folder: Path) -> list[str]:
    """Send every request of a block; each is answered."""
    answers = []
    for request in re.split(r"\n(?=curl)", code):
        answers.append(bash(request.replace("curl ", "curl --fail-with-body ", 1), folder))
        assert answers[-1], request
    return answers


def test_daemon(tmp_path: Path, models: dict[str, str]) -> None:
    """Every request of the README is answered."""
    _, _, (language, requests), (python, client) = under("As a daemon")
    assert (language, python) == ("sh", "python")
    with started("As a daemon", tmp_path, models):
        request_all(requests, tmp_path)
        assert bash(f"{sys.executable} - <<'END'\n{client}\nEND", tmp_path).strip()


def test_program(manual: Path, models: dict[str, str]) -> None:
    """Every request about manuals is answered, and the program finds what the last request removes."""
    _, _, (_, requests), (python, client), (_, removal) = under("Questions from a program")
    assert python == "python"
    with started("Questions from a program", manual, models):
        ingested, _, asked, streamed, *_ = request_all(requests, manual)
        assert '"outcome":"added"' in ingested.replace(" ", "") and "15 minutes" in asked and "[DONE]" in streamed
        answer, *quotes, vectors = bash(f"{sys.executable} - <<'END'\n{client}\nEND", manual).splitlines()
        assert "CR2032" in answer and quotes and vectors == "2 384"
        assert '"deleted"' in request_all(removal, manual)[0]


def test_service(tmp_path: Path, models: dict[str, str], request: pytest.FixtureRequest) -> None:
    """The installation, below a folder instead of /, with what needs root or systemd noted instead of done."""
    from tests.house.test_package import build

    ((_, code),) = under("Run it as a service")
    build("wheel", CHECKOUT, tmp_path)
    fakes = tmp_path / "fakes"
    fakes.mkdir()
    for name in ("useradd", "systemctl"):
        (fakes / name).write_text(f'#!/bin/sh\necho {name} "$@" >> {tmp_path}/noted\n')
        (fakes / name).chmod(0o755)
    (fakes / "sudo").write_text('#!/bin/sh\nexec "$@"\n')
    (fakes / "sudo").chmod(0o755)
    script = re.sub(r"(?<=\s)/(?=opt|etc|var)", f"{tmp_path}/", code)
    bash(script, tmp_path, PATH=f"{fakes}{os.pathsep}{os.environ['PATH']}", **models)
    unit = tmp_path / "etc/systemd/system/edged.service"
    assert unit.read_text() == (CHECKOUT / "systemd" / "edged.service").read_text()
    assert "[engine]" in (tmp_path / "etc/edged/edged.toml").read_text()
    noted = (tmp_path / "noted").read_text().splitlines()
    assert [line.split()[0] for line in noted] == ["useradd", "systemctl", "systemctl"]
    done = subprocess.run([tmp_path / "opt/edged/bin/edged", "--version"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_targets() -> None:
    """The targets exist; what they run is run as TARGETS says."""
    ((_, code),) = under("Working on it")
    assert [line.removeprefix("make ") for line in code.splitlines()] == list(TARGETS)
    for line in code.splitlines():
        assert "--dry-run" in (command := line.replace("make", "make --dry-run")) and bash(command, CHECKOUT)


def test_clean(clone: Path) -> None:
    """`make clean` removes what was built and nothing that git knows."""
    for folder in ("build", "dist", "kernels/_built"):
        (clone / folder).mkdir()
    before = {path for path in clone.rglob("*") if path.is_file()}
    bash("make clean", clone)
    assert {path for path in clone.rglob("*") if path.is_file()} == before
    assert not (clone / "kernels" / "_built").exists()
