from __future__ import annotations

import sys
from dataclasses import FrozenInstanceError, dataclass, fields
from pathlib import Path

import pytest

from edged import config as module
from edged.config import Config, dump, load, option, settings
from edged.errors import BadConfig


def toml(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "edged.toml"
    path.write_text(text)
    return path


def test_defaults_file_environment_flags_in_this_order(tmp_path: Path) -> None:
    path = toml(tmp_path, "[engine]\nthreads = 2\nqueue = 2\nmax_seqs = 2\n")
    env = {"EDGED_ENGINE_QUEUE": "3", "EDGED_ENGINE_MAX_SEQS": "3", "PATH": "/bin", "EDGED_MODELS": "/m"}
    engine = load(path, env, {"engine.max_seqs": 4, "engine.context": None}).engine
    assert (engine.context, engine.threads, engine.queue, engine.max_seqs) == (0, 2, 3, 4)


def test_nothing_given_is_the_default_and_frozen() -> None:
    assert load(None, {}, {}) == Config()
    with pytest.raises(FrozenInstanceError):
        Config().engine.threads = 1  # type: ignore[misc]


def test_process_environment_is_the_default_source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGED_SERVER_SOCKET", "/tmp/x.sock")
    assert load().server.socket == "/tmp/x.sock"


def test_whole_number_in_the_file_is_a_number(tmp_path: Path) -> None:
    assert load(toml(tmp_path, "[server]\nwrite_timeout = 5\n"), {}).server.write_timeout == 5.0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[engine]\nthreads = 'two'", "engine.threads: expected a whole number, got 'two'"),
        ("[engine]\nthreads = true", "engine.threads: expected a whole number, got True"),
        ("[engine]\nthreads = 1.5", "engine.threads: expected a whole number, got 1.5"),
        ("[engine]\nthreads = -1", "engine.threads: expected from 0 to 256, got -1"),
        ("[server]\nbacklog = 0", "server.backlog: expected from 1 to 2147483647, got 0"),
        ("[server]\nwrite_timeout = nan", "server.write_timeout: expected at least 0.001, got nan"),
        ("[server]\nwrite_timeout = inf", "server.write_timeout: expected at least 0.001, got inf"),
        ("[server]\nmode = 0o660", "server.mode: expected text, got 432"),
        ("[model]\nmlock = 'yes'", "model.mlock: expected one of off, hot, all, required, got 'yes'"),
        ("[engine]\nthread = 1", "engine.thread is unknown (did you mean threads?)"),
        ("[engine]\nxyz = 1", "engine.xyz is unknown (known: context, "),
        ("[sever]\n", "unknown section [sever] (did you mean server?)"),
        ("engine = 1", "[engine] must be a table"),
        ("[engine\n", "line 1"),
    ],
)
def test_file_errors_name_file_key_and_value(tmp_path: Path, text: str, message: str) -> None:
    path = toml(tmp_path, text)
    with pytest.raises(BadConfig) as caught:
        load(path, {})
    assert str(path) in str(caught.value)
    assert message in str(caught.value)


def test_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(BadConfig, match=r"nope\.toml: No such file"):
        load(tmp_path / "nope.toml", {})
    (tmp_path / "latin.toml").write_bytes(b"[model]\nname = '\xe9'")
    with pytest.raises(BadConfig, match=r"latin\.toml: .*utf-8"):
        load(tmp_path / "latin.toml", {})


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("EDGED_ENGINE_THREADS", "", "engine.threads: expected a whole number, got ''"),
        ("EDGED_ENGINE_THREADS", "2.0", "engine.threads: expected a whole number, got '2.0'"),
        ("EDGED_SERVER_WRITE_TIMEOUT", "soon", "server.write_timeout: expected a number, got 'soon'"),
        ("EDGED_SERVER_SOKET", "/s", "server.soket is unknown (did you mean socket?)"),
    ],
)
def test_environment_errors(name: str, value: str, message: str) -> None:
    with pytest.raises(BadConfig) as caught:
        load(None, {name: value})
    assert str(caught.value).startswith(f"environment: {message}")


def test_truth_values(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    @dataclass(frozen=True)
    class Section:
        on: bool = option(False, "h")

    @dataclass(frozen=True)
    class Tree:
        model: Section = Section()

    monkeypatch.setattr(module, "Config", Tree)
    for word, value in {"1": True, "Yes": True, "on": True, "0": False, "no": False, "FALSE": False}.items():
        assert load(None, {"EDGED_MODEL_ON": word}).model.on is value  # type: ignore[attr-defined]
    for bad in ("", "2", "maybe"):
        with pytest.raises(BadConfig, match="true or false"):
            load(None, {"EDGED_MODEL_ON": bad})
    with pytest.raises(BadConfig, match="true or false"):
        load(toml(tmp_path, "[model]\non = 1"), {})
    assert dump(load(None, {"EDGED_MODEL_ON": "1"})).endswith("on = true\n")


def test_dump_is_a_file_that_loads_to_the_same(tmp_path: Path) -> None:
    odd = {"model.name": 'quote " back \\ slash \n tab \t \x7f é', "engine.threads": 3, "server.write_timeout": 1.25}
    for config in (Config(), load(None, {}, odd)):
        assert load(toml(tmp_path, dump(config)), {}) == config


def test_every_setting_is_described_and_reachable(tmp_path: Path) -> None:
    """Help for a reader, one flag and one variable for each, and each of the three sources sets it."""
    text = dump(Config())
    listed = list(settings())
    assert len(listed) == sum(len(fields(getattr(Config(), s.name))) for s in fields(Config))
    assert len({s.flag for s in listed}) == len({s.env for s in listed}) == len(listed)
    for s in listed:
        assert s.help.endswith(".") and s.help[0].isupper()
        assert s.help in text
        value = s.choices[-1] if s.choices else {str: "x", int: 20, float: 1.0, bool: not s.default}[type(s.default)]
        assert value != s.default
        written = f'"{value}"' if isinstance(value, str) else str(value).lower()
        for config in (
            load(None, {s.env: str(value)}),
            load(None, {}, {f"{s.section}.{s.name}": value}),
            load(toml(tmp_path, f"[{s.section}]\n{s.name} = {written}\n"), {}),
        ):
            assert getattr(getattr(config, s.section), s.name) == value


def test_python_310_reads_toml_with_tomli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the standard library has no tomllib, tomli is used."""
    import types

    tomllib = pytest.importorskip("tomllib", reason="this Python is such a one: all tests here use tomli")
    monkeypatch.setattr(sys, "version_info", (3, 10, 0))
    calls: list[str] = []
    fake = types.ModuleType("tomli")
    fake.loads = lambda text: (calls.append(text), tomllib.loads(text))[1]  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "tomli", fake)
    assert load(toml(tmp_path, "[engine]\nthreads = 2\n"), {}).engine.threads == 2
    assert calls == ["[engine]\nthreads = 2\n"]
