"""The commands as a user runs them, in processes of their own, with a real model."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]
GOLDEN = CHECKOUT / "tests" / "golden"
EDGED = [sys.executable, "-m", "edged.cli.main"]


def edged(*args: str, text: str = "") -> subprocess.CompletedProcess[str]:
    """Run to the end."""
    return subprocess.run([*EDGED, *args], input=text, capture_output=True, cwd=CHECKOUT, text=True, check=False)


def decided(case: dict) -> int:
    """Steps up to the first at which the reference hesitates."""
    margins = [step["top"][0][1] - step["top"][1][1] for step in case["steps"][:16]]
    return next((i for i, margin in enumerate(margins) if margin < 0.2), len(margins))


@pytest.mark.parametrize("name", ["smollm2", "gemma3"])
def test_run_continues_as_the_reference_does(name: str, request: pytest.FixtureRequest) -> None:
    path = request.getfixturevalue(f"{name}_path")
    case = max(json.loads((GOLDEN / f"{name}_dev.json").read_text()), key=decided)
    n = decided(case)
    assert n >= 8
    done = edged("run", "-m", str(path), "--raw", "-t", "0", "-n", str(n), case["prompt"])
    assert (done.returncode, done.stderr) == (0, "")
    answer = done.stdout.removesuffix("\n")
    assert answer
    assert case["text"].startswith(answer)


def test_run_and_chat_give_the_same_answer_for_a_seed(smollm2_path: Path) -> None:
    flags = ["-m", str(smollm2_path), "-n", "12", "--seed", "5"]
    run = edged("run", *flags, "What is a relay?")
    chat = edged("chat", *flags, text="What is a relay?\n")
    assert run.returncode == chat.returncode == 0
    assert len(run.stdout) > 12
    assert run.stdout == chat.stdout


def heed_interrupts() -> None:
    """A shell that runs the tests in the background makes them, and their children, ignore the signal."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def test_run_interrupted_from_the_keyboard(smollm2_path: Path) -> None:
    command = [*EDGED, "run", "-m", str(smollm2_path), "--ignore-eos", "Count."]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=CHECKOUT,
                          preexec_fn=heed_interrupts) as child:  # fmt: skip
        assert child.stdout is not None
        assert os.read(child.stdout.fileno(), 1)
        child.send_signal(signal.SIGINT)
        _, stderr = child.communicate(timeout=60)
    assert child.returncode == 130
    assert stderr.strip() == b""


def test_run_into_a_reader_that_goes_away(smollm2_path: Path) -> None:
    command = [*EDGED, "run", "-m", str(smollm2_path), "--ignore-eos", "Count."]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=CHECKOUT) as child:
        assert child.stdout is not None and child.stderr is not None
        assert os.read(child.stdout.fileno(), 1)
        child.stdout.close()
        stderr = child.stderr.read()
        assert child.wait(60) == 141
    assert stderr == b""


def test_run_a11_model_of_an_interrupted_download(smollm2_path: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(smollm2_path.read_bytes()[:-1])
    done = edged("run", "-m", str(cut), "Hello")
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr


def test_bench_measures(smollm2_path: Path) -> None:
    done = edged("bench", "-m", str(smollm2_path), "-p", "32", "-n", "4", "-r", "2", "--threads", "1", "--json")
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(row["test"], row["threads"], len(row["runs"])) for row in rows] == [("pp32", 1, 2), ("tg4", 1, 2)]
    assert all(rate > 0 for row in rows for rate in row["runs"])
