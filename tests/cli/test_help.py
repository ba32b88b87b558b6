"""A command or option without help fails here, and so does one that no reader of `--help` would find."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from edged.cli import main
from edged.cli.options import KNOBS
from edged.config import settings
from edged.engine.request import Sampling

COMMANDS = {name: main.cli.get_command(click.Context(main.cli), name) for name in main.COMMANDS}
# command -> the sections of the configuration that it takes as flags
SECTIONS = dict.fromkeys(("serve", "doctor"), ("model", "engine", "embedding", "rag", "server")) | dict.fromkeys(
    ("run", "chat", "bench"), ("model", "engine")
) | {
    "ingest": ("rag.store", "rag.chunk", "embedding", "server.socket"),
    "search": ("rag.store", "rag.passages", "embedding", "server.socket"),
    "ask": ("rag.store", "rag.passages", "rag.least", "rag.answer", "embedding", "model.path", "server.socket"),
}


def options(command: click.Command) -> Iterator[click.Option]:
    yield from (p for p in command.params if isinstance(p, click.Option))


def test_every_module_with_a_command_is_listed() -> None:
    modules = Path(main.__file__).parent.glob("*.py")
    exporting = {path.stem for path in modules if "def command(" in path.read_text()}
    assert exporting == set(main.COMMANDS)


@pytest.mark.parametrize("name", main.COMMANDS)
def test_command_and_all_its_options_have_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = COMMANDS[name]
    assert command is not None
    assert command.help and command.help.splitlines()[0].endswith(".")
    for option in options(command):
        assert option.help, f"{name} {option.opts}"
        assert option.help.split("  [")[0].rstrip().endswith("."), f"{name} {option.opts}: {option.help}"
    assert main.run([name, "--help"]) == 0
    shown = capsys.readouterr().out
    for option in options(command):
        assert all(flag in shown for flag in option.opts)


@pytest.mark.parametrize("name", main.COMMANDS)
def test_command_is_described_in_the_overview_and_the_readme(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["--help"]) == 0
    assert f"\n  {name} " in capsys.readouterr().out
    readme = Path(main.__file__).parents[2] / "README.md"
    assert f"edged {name}" in readme.read_text("utf-8")


def test_embed_takes_only_what_it_honours() -> None:
    command = COMMANDS["embed"]
    assert command is not None
    flags = {flag for option in options(command) for flag in option.opts}
    assert flags == {"--config", "-m", "--model", "--pooling", "--embedding-context", "--threads", "--kernel-level",
                     "--memory-check"}  # fmt: skip


@pytest.mark.parametrize("name", sorted(SECTIONS))
def test_every_setting_is_a_flag_with_its_variable_and_default(name: str) -> None:
    command = COMMANDS[name]
    assert command is not None
    by_flag = {flag: option for option in options(command) for flag in option.opts}
    for setting in settings(*SECTIONS[name]):
        help = by_flag[setting.flag].help or ""
        assert setting.help in help
        assert f"env: {setting.env}" in help
        assert setting.default == "" or f"default: {setting.default}" in help


def test_sampling_options_are_the_sampler_with_its_defaults() -> None:
    fields = set(Sampling._fields) - {"logit_bias"}
    assert {knob.field for knob in KNOBS} == fields
    assert {knob.field: knob.default for knob in KNOBS} == {name: getattr(Sampling(), name) for name in fields}
