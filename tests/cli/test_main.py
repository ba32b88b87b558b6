from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import click
import pytest

import edged
from edged.cli import main
from edged.errors import BadModel, NotFound

CHECKOUT = Path(__file__).resolve().parents[2]

USAGE = "Usage: edged models [OPTIONS]\nTry 'edged models --help' for help.\n\nError: odd\n"


def raising(error: BaseException) -> click.Command:
    @click.command("models")
    def command() -> None:
        """Fail."""
        raise error

    return command


@pytest.mark.parametrize(
    ("error", "status", "stderr"),
    [
        (NotFound("no x", hint="try y"), 1, "error: no x\nhint: try y\n"),
        (BadModel("bad"), 1, "error: bad\n"),
        (KeyboardInterrupt(), 130, "\n"),
        (click.UsageError("odd"), 2, USAGE),
    ],
    ids=["hint", "no hint", "ctrl-c", "usage"],
)
def test_errors_and_exit_status(error: BaseException, status: int, stderr: str, monkeypatch: pytest.MonkeyPatch,
                                capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("edged.cli.models.command", raising(error))
    assert main.run(["models"]) == status
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == stderr


def test_an_error_of_edged_itself_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edged.cli.models.command", raising(ZeroDivisionError()))
    with pytest.raises(ZeroDivisionError):
        main.run(["models"])


@pytest.mark.parametrize("args", [["nonsense"], ["models", "--nonsense"], ["serve", "--threads", "two"], ["inspect"],
                                  ["serve", "--mlock", "maybe"]])  # fmt: skip
def test_wrong_usage_is_2(args: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(args) == 2
    assert "Error:" in capsys.readouterr().err


def test_bad_setting_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["serve", "--threads", "-1"]) == 1
    assert capsys.readouterr().err == "error: command line: engine.threads: expected from 0 to 256, got -1\n"


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["--version"]) == 0
    assert capsys.readouterr().out == f"edged {edged.__version__}\n"


def test_flags_environment_and_file_in_this_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                  capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "edged.toml").write_text("[engine]\nthreads = 2\nqueue = 2\nmax_seqs = 2\n")
    monkeypatch.setenv("EDGED_ENGINE_QUEUE", "3")
    monkeypatch.setenv("EDGED_ENGINE_MAX_SEQS", "3")
    args = ["serve", "--show-config", "--config", str(tmp_path / "edged.toml"), "--max-seqs", "4"]
    assert main.run(args) == 0
    shown = capsys.readouterr().out
    assert all(line in shown.splitlines() for line in ("threads = 2", "queue = 3", "max_seqs = 4"))
    (tmp_path / "again.toml").write_text(shown)
    monkeypatch.setenv("EDGED_CONFIG", str(tmp_path / "again.toml"))
    monkeypatch.delenv("EDGED_ENGINE_MAX_SEQS")
    assert main.run(["serve", "--show-config"]) == 0
    assert capsys.readouterr().out == shown


def test_reader_that_goes_away_ends_the_command_quietly() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "edged.cli.main", "models"]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, cwd=CHECKOUT, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")


def test_a_command_imports_only_itself() -> None:
    code = "import sys; from edged.cli import main; main.run(['models']); print(*sorted(sys.modules), sep='\\n')"
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, cwd=CHECKOUT, text=True, check=True)
    loaded = set(done.stdout.splitlines())
    assert {m.removeprefix("edged.cli.") for m in loaded if m.startswith("edged.cli.")} == {"main", "models", "report"}
    assert not loaded & {"numpy", "asyncio", "jinja2", "h11", "urllib.request", "zipfile"}


def test_a_socket_without_a_folder_has_a_remedy(tmp_path: Path, minilm_path: Path, capsys: pytest.CaptureFixture[str]
                                                ) -> None:
    socket = tmp_path / "run" / "edged.sock"
    assert main.run(["serve", "--embedding-model", str(minilm_path), "--socket", str(socket)]) == 1
    assert capsys.readouterr().err == (
        f"error: {socket}: No such file or directory\n"
        f"hint: the unit makes {tmp_path}/run (RuntimeDirectory=edged); without it name another with --socket\n"
    )
