"""The unit file: what it runs exists, and it is as strict as it says."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from edged.cli.main import cli
from edged.config import ServerConfig

CHECKOUT = Path(__file__).resolve().parents[2]
UNIT = CHECKOUT / "systemd" / "edged.service"


def settings() -> dict[str, list[str]]:
    """Every key of the unit with its values in order. (configparser refuses repeated keys.)"""
    found: dict[str, list[str]] = {}
    for line in UNIT.read_text("utf-8").splitlines():
        if line and line[0] not in "#[":
            key, _, value = line.partition("=")
            found.setdefault(key, []).append(value)
    return found


def test_command_exists() -> None:
    """ExecStart names a command and options that edged has."""
    program, command, *options = shlex.split(settings()["ExecStart"][0])
    assert Path(program).name == "edged"
    help_text = CliRunner().invoke(cli, [command, "--help"]).output
    for option in options:
        assert not option.startswith("-") or option in help_text


def test_socket_is_in_the_runtime_directory() -> None:
    (folder,) = settings()["RuntimeDirectory"]
    assert Path(ServerConfig().socket).parent == Path("/run", folder)


def test_restarts_and_watchdog() -> None:
    unit = settings()
    assert unit["Type"] == ["notify"]
    assert unit["Restart"] == ["on-failure"]
    assert int(unit["WatchdogSec"][0]) >= 30  # one step of the slowest board, with room


def test_verify(tmp_path: Path) -> None:
    """systemd itself finds no fault, where there is a systemd to ask."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("no systemd-analyze on this machine")
    # the program and its user are made by the installation, which is not what is tested here
    text = UNIT.read_text("utf-8").replace("/opt/edged/bin/edged", "/bin/true")
    unit = tmp_path / "edged.service"
    unit.write_text(text.replace("User=edged\nGroup=edged", "User=root\nGroup=root"))
    done = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True)
    assert done.returncode == 0 and not done.stderr, done.stderr
