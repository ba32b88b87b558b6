"""One frozen tree of settings: defaults < TOML file < environment < flags.

`load(path, env, flags)` is the only way to make one from outside; every field's `help` feeds `--help`, the sample
configuration file and the docs test.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, get_type_hints

from edged.errors import BadConfig


def option(default: Any, help: str) -> Any:
    """A dataclass field with its help text."""
    return field(default=default, metadata={"help": help})


@dataclass(frozen=True)
class ModelConfig:
    """Which model, and how it is held in memory."""

    path: str = option("", "Catalogue name or path of the GGUF model.")
    name: str = option("", "Name reported to clients; empty: the file's own.")
    mlock: str = option("off", "Lock weights in memory: off, hot (all but the embedding rows), all, required.")
    chat_template: str = option("", "File with a Jinja template used instead of the model's own.")


@dataclass(frozen=True)
class EngineConfig:
    """How requests are computed."""

    context: int = option(0, "Context length in tokens; 0: the model's own, at most 8192.")
    threads: int = option(0, "Worker threads; 0: allowed fast processors within the cgroup quota.")
    max_seqs: int = option(8, "Sequences computed in one step.")
    kv_tokens: int = option(0, "Size of the KV pool in tokens, shared by all sequences; 0: two full contexts.")
    prefill_chunk: int = option(0, "Prompt tokens in one step; 0: what this machine does in 250 ms, at most 256.")
    queue: int = option(64, "Requests that may wait; more are refused with 503.")
    kernel_level: str = option("", "Kernel level to load instead of the best this processor has.")


@dataclass(frozen=True)
class ServerConfig:
    """The Unix socket and its limits."""

    socket: str = option("/run/edged/edged.sock", "Path of the Unix socket.")
    mode: str = option("0660", "Octal mode of the socket.")
    group: str = option("", "Group that owns the socket.")
    backlog: int = option(1024, "Connections the kernel may hold before accept.")
    max_body: int = option(8 * 1024 * 1024, "Largest request body in bytes.")
    max_prompt_tokens: int = option(0, "Longest prompt in tokens; 0: the context.")
    max_tokens: int = option(0, "Cap on generated tokens of one request; 0: the context.")
    header_timeout: float = option(10.0, "Seconds a client may take for its request head and body.")
    write_timeout: float = option(30.0, "Seconds a client may leave its answer unread before it is dropped.")
    max_connections: int = option(256, "Open connections; more are answered 503.")


@dataclass(frozen=True)
class Config:
    """All settings."""

    model: ModelConfig = field(default_factory=ModelConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)
    server: ServerConfig = field(default_factory=ServerConfig)


ENV_PREFIX = "EDGED_"


def load(path: str | Path | None = None, env: Mapping[str, str] | None = None,
         flags: Mapping[str, Any] | None = None) -> Config:
    """Build a Config. Environment names are EDGED_<SECTION>_<KEY>; flags are {"section.key": value}, None ignored.

    Raises BadConfig naming the file, variable or key.
    """
    config = Config()
    if path is not None:
        config = _apply(config, _read_toml(Path(path)), str(path))
    environ = os.environ if env is None else env
    found: dict[str, dict[str, Any]] = {}
    for section in fields(Config):
        for key in fields(_section_type(section.name)):
            name = f"{ENV_PREFIX}{section.name}_{key.name}".upper()
            if name in environ:
                found.setdefault(section.name, {})[key.name] = environ[name]
    config = _apply(config, found, "environment", text=True)
    given: dict[str, dict[str, Any]] = {}
    for dotted, value in (flags or {}).items():
        if value is not None:
            section_name, _, key_name = dotted.partition(".")
            given.setdefault(section_name, {})[key_name] = value
    return _apply(config, given, "command line")


def _section_type(name: str) -> type:
    kind = get_type_hints(Config)[name]
    assert is_dataclass(kind)
    return kind  # type: ignore[return-value]


def _read_toml(path: Path) -> dict[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except OSError as e:
        raise BadConfig(f"{path}: {e.strerror or e}") from e
    except ValueError as e:
        raise BadConfig(f"{path}: {e}") from e


def _apply(config: Config, values: Mapping[str, Any], source: str, text: bool = False) -> Config:
    for section_name, section_values in values.items():
        if section_name not in {f.name for f in fields(Config)}:
            raise BadConfig(f"{source}: unknown section [{section_name}]")
        if not isinstance(section_values, Mapping):
            raise BadConfig(f"{source}: [{section_name}] must be a table")
        section = getattr(config, section_name)
        known = {f.name: f for f in fields(section)}
        changes = {}
        for key, value in section_values.items():
            if key not in known:
                raise BadConfig(f"{source}: unknown key {section_name}.{key}")
            changes[key] = _convert(known[key].default, value, f"{source}: {section_name}.{key}", text)
        config = replace(config, **{section_name: replace(section, **changes)})
    return config


def _convert(default: Any, value: Any, where: str, text: bool) -> Any:
    kind = type(default)
    if text and kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            raise BadConfig(f"{where}: {value!r} is not a number") from None
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind:
        raise BadConfig(f"{where}: expected {kind.__name__}, got {value!r}")
    return value
