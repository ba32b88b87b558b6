"""One frozen tree of settings: defaults < TOML file < environment < flags.

`load(path, env, flags)` is the only way to make one from outside. Each field carries its help text, its flag and its
limits, and these feed the checks, `--help`, the sample configuration file (`dump(Config())`) and the docs test: a new
setting is one line here.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import Field, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

from edged.errors import BadConfig


def option(default: Any, help: str, *, flag: str = "", choices: tuple[str, ...] = (), low: float = 0,
           high: float = math.inf) -> Any:
    """A dataclass field with its help text; `flag` where it is not the field's name, limits of what it may hold."""
    return field(default=default, metadata={"help": help, "flag": flag, "choices": choices, "low": low, "high": high})


@dataclass(frozen=True)
class ModelConfig:
    """Which model, and how it is held in memory."""

    path: str = option("", "Catalogue name or path of the GGUF model.", flag="--model")
    name: str = option("", "Name reported to clients; empty: the file's own.")
    mlock: str = option(
        "off",
        "Lock weights in memory: off, hot (all but the embedding rows), all, required.",
        choices=("off", "hot", "all", "required"),
    )
    chat_template: str = option("", "File with a Jinja template used instead of the model's own.")


@dataclass(frozen=True)
class EngineConfig:
    """How requests are computed."""

    context: int = option(0, "Context length in tokens; 0: the model's own, at most 8192.", high=2**22)
    threads: int = option(0, "Worker threads; 0: allowed fast processors within the cgroup quota.", high=256)
    max_seqs: int = option(8, "Sequences computed in one step.", low=1, high=256)
    kv_tokens: int = option(0, "Size of the KV pool in tokens, shared by all sequences; 0: two full contexts.",
                            high=2**24)
    memory_check: str = option(
        "refuse", "What to do with a model that does not fit the free memory: refuse, warn, off.",
        choices=("refuse", "warn", "off"),
    )  # fmt: skip
    prefix_cache: int = option(
        2048, "Tokens kept, at most, of requests that are over, for prompts that begin like them; 0: none.", high=2**24
    )
    prompt_cache: str = option("", "File in which the prefix cache outlives a restart; empty: none.")
    speculate: bool = option(
        False, "Guess tokens from prompt and answer, check several in a step: the same answer, sooner where it quotes."
    )
    prefill_chunk: int = option(
        0, "Prompt tokens in one step; 0: what this machine does in 250 ms, at most 256.", high=4096
    )
    queue: int = option(64, "Requests that may wait; more are refused with 503.")
    kernel_level: str = option("", "Kernel level to load instead of the best this processor has.")


@dataclass(frozen=True)
class EmbeddingConfig:
    """The model that turns texts into vectors, beside the other or alone."""

    model: str = option(
        "", "Catalogue name or path of the embedding model. Named alone, without model.path: nothing else is loaded.",
        flag="--embedding-model",
    )  # fmt: skip
    name: str = option("", "Name reported to clients; empty: the file's own.", flag="--embedding-name")
    pooling: str = option(
        "", "How the vectors of a text's tokens become one; empty: as the file says.",
        choices=("", "mean", "cls", "last"),
    )  # fmt: skip
    context: int = option(
        0, "Most tokens of a text; 0: the model's own, at most 2048.", flag="--embedding-context", high=2**20
    )


@dataclass(frozen=True)
class RagConfig:
    """Questions about manuals."""

    store: str = option("", "File that holds the manuals; empty: manuals.db in the data folder.")
    answer: str = option(
        "auto",
        "Extract: quote the manuals; generate: let the model word the answer; auto: generate from 1e9 parameters on.",
        choices=("auto", "extract", "generate"),
    )
    least: float = option(0.45, "Confidence below which a question is answered with \"not in the manuals\".", high=1)
    passages: int = option(5, "Chunks that an answer is made of.", low=1, high=50)
    read: int = option(3, "Chunks that a model words an answer from, unless a request says how many.", low=1, high=50)
    chunk: int = option(200, "Most tokens of a chunk of a document that is ingested.", low=16, high=4096)
    max_document: int = option(64 * 1024 * 1024, "Largest document in bytes that the daemon is sent.", low=1)


@dataclass(frozen=True)
class ServerConfig:
    """The Unix socket and its limits."""

    socket: str = option("/run/edged/edged.sock", "Path of the Unix socket.")
    mode: str = option("0660", "Octal mode of the socket.", flag="--socket-mode")
    group: str = option("", "Group that owns the socket.", flag="--socket-group")
    backlog: int = option(1024, "Connections the kernel may hold before accept.", low=1, high=2**31 - 1)
    max_body: int = option(8 * 1024 * 1024, "Largest request body in bytes.", low=1)
    max_prompt_tokens: int = option(0, "Longest prompt in tokens; 0: the context.")
    max_tokens: int = option(0, "Cap on generated tokens of one request; 0: the context.")
    header_timeout: float = option(10.0, "Seconds a client may take for its request, or each 64 KiB of it.", low=0.001)
    idle_timeout: float = option(120.0, "Seconds a connection may stay open between requests.", low=0.001)
    write_timeout: float = option(30.0, "Seconds a client may leave its answer unread before it is dropped.", low=0.001)
    max_connections: int = option(256, "Open connections; more are answered 503.", low=1)


@dataclass(frozen=True)
class Config:
    """All settings."""

    model: ModelConfig = field(default_factory=ModelConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)
    embedding: EmbeddingConfig = field(default_factory=EmbeddingConfig)
    rag: RagConfig = field(default_factory=RagConfig)
    server: ServerConfig = field(default_factory=ServerConfig)


ENV_PREFIX = "EDGED_"


class Setting(NamedTuple):
    """One leaf of the tree, as the command line and the docs see it."""

    section: str
    name: str
    default: Any
    help: str
    choices: tuple[str, ...]
    flag: str
    env: str


def settings(*sections: str) -> Iterator[Setting]:
    """The settings of the sections given, or all, in order. A section may be one setting of it: "engine.threads"."""
    tree = Config()
    for wanted in sections or [f.name for f in fields(tree)]:
        section, _, name = wanted.partition(".")
        for f in fields(getattr(tree, section)):
            if name and f.name != name:
                continue
            meta = f.metadata
            flag = meta["flag"] or "--" + f.name.replace("_", "-")
            env = f"{ENV_PREFIX}{section}_{f.name}".upper()
            yield Setting(section, f.name, f.default, meta["help"], meta["choices"], flag, env)


def load(path: str | Path | None = None, env: Mapping[str, str] | None = None,
         flags: Mapping[str, Any] | None = None) -> Config:
    """Build a Config. Environment names are EDGED_<SECTION>_<KEY>; flags are {"section.key": value}, None ignored.

    Raises BadConfig naming the file, variable or key.
    """
    config = Config()
    if path is not None:
        config = _apply(config, _read_toml(Path(path)), str(path))
    config = _apply(config, _from_env(os.environ if env is None else env), "environment", text=True)
    given: dict[str, dict[str, Any]] = {}
    for dotted, value in (flags or {}).items():
        if value is not None:
            section, _, key = dotted.partition(".")
            given.setdefault(section, {})[key] = value
    return _apply(config, given, "command line")


def dump(config: Config) -> str:
    """The settings as a TOML file, each with its help text: `load` of it gives the same Config."""
    lines = []
    for section in fields(config):
        values = getattr(config, section.name)
        lines += [f"# {type(values).__doc__}", f"[{section.name}]"]
        for f in fields(values):
            lines += [f"# {f.metadata['help']}", f"{f.name} = {_toml(getattr(values, f.name))}"]
        lines.append("")
    return "\n".join(lines)


def _toml(value: Any) -> str:
    if isinstance(value, str):
        import json

        return json.dumps(value).replace("\x7f", "\\u007f")  # a JSON string is a TOML basic string, but for DEL
    return str(value).lower() if isinstance(value, bool) else str(value)


def _from_env(env: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """The EDGED_<SECTION>_<KEY> variables; unknown keys are kept for `_apply` to refuse."""
    found: dict[str, dict[str, str]] = {}
    for section in fields(Config):
        prefix = f"{ENV_PREFIX}{section.name}_".upper()
        for name, value in env.items():
            if name.startswith(prefix):
                found.setdefault(section.name, {})[name[len(prefix) :].lower()] = value
    return found


def _read_toml(path: Path) -> dict[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except OSError as e:
        raise BadConfig(f"{path}: {e.strerror or e}") from e
    except ValueError as e:  # of the decoder or of the parser
        raise BadConfig(f"{path}: {e}") from e


def _apply(config: Config, values: Mapping[str, Any], source: str, text: bool = False) -> Config:
    sections = [f.name for f in fields(Config)]
    for section_name, section_values in values.items():
        if section_name not in sections:
            raise BadConfig(f"{source}: unknown section [{section_name}]", hint=_nearest(section_name, sections))
        if not isinstance(section_values, Mapping):
            raise BadConfig(f"{source}: [{section_name}] must be a table")
        section = getattr(config, section_name)
        known = {f.name: f for f in fields(section)}
        changes = {}
        for key, value in section_values.items():
            where = f"{source}: {section_name}.{key}"
            if key not in known:
                raise BadConfig(f"{where} is unknown", hint=_nearest(key, list(known)))
            changes[key] = _checked(known[key], value, where, text)
        config = replace(config, **{section_name: replace(section, **changes)})
    return config


def _nearest(name: str, known: list[str]) -> str:
    import difflib

    near = difflib.get_close_matches(name, known, 1)
    return f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}"


WORDS = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
KINDS = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}


def _checked(f: Field[Any], value: Any, where: str, text: bool) -> Any:
    """The value in the field's type and within its limits; from `text` where the source has nothing but text."""
    kind: type = type(f.default)
    if text and kind is bool:
        value = WORDS.get(value.lower(), value)
    elif text and kind in (int, float):
        try:
            value = kind(value)
        except ValueError:
            raise BadConfig(f"{where}: expected {KINDS[kind]}, got {value!r}") from None
    if kind is float and type(value) is int:
        value = float(value)
    if type(value) is not kind:
        raise BadConfig(f"{where}: expected {KINDS[kind]}, got {value!r}")
    low, high, choices = f.metadata["low"], f.metadata["high"], f.metadata["choices"]
    if choices and value not in choices:
        raise BadConfig(f"{where}: expected one of {', '.join(choices)}, got {value!r}")
    if isinstance(value, (int, float)) and not low <= value <= min(high, sys.float_info.max):
        limits = f"at least {low}" if high == math.inf else f"from {low} to {high}"
        raise BadConfig(f"{where}: expected {limits}, got {value!r}")
    return value
