"""Options shared by commands: settings of the configuration tree, sampling, questions, which documents are meant."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import click

from edged.config import Setting, load, settings

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]
SHORT = {"--model": "-m", "--context": "-c"}


def configured(*sections: str, flags: Mapping[str, str] = MappingProxyType({})) -> Decorator:
    """Give a command a flag for every setting of the sections, and `config: Config` as its first argument.

    A section may be one setting of it, "engine.threads". `flags`: other names of flags in this command, by setting.
    """
    listed = [s._replace(flag=flags.get(f"{s.section}.{s.name}", s.flag)) for s in settings(*sections)]

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapper(config_file: Path | None, **given: Any) -> Any:
            values = {f"{s.section}.{s.name}": given.pop(_parameter(s)) for s in listed}
            return function(load(config_file, flags=values), **given)

        for s in reversed(listed):
            kind = click.Choice(s.choices) if s.choices else type(s.default)
            shown = f"  [env: {s.env}; default: {s.default}]" if s.default != "" else f"  [env: {s.env}]"
            flag = f"{s.flag}/--no-{s.flag[2:]}" if kind is bool else s.flag
            names = [SHORT[s.flag], flag] if s.flag in SHORT else [flag]
            wrapper = click.option(*names, _parameter(s), type=kind, default=None, help=s.help + shown)(wrapper)
        return click.option("--config", "config_file", type=click.Path(path_type=Path), envvar="EDGED_CONFIG",
                            help="TOML file with settings; flags and environment go before it.  [env: EDGED_CONFIG]",
                            )(wrapper)  # fmt: skip

    return decorate


def _parameter(setting: Setting) -> str:
    return f"{setting.section}_{setting.name}"


def given(*names: str) -> dict[str, Any]:
    """Those of the settings (`section.key`) that the running command was given as flags, by their keys."""
    params = click.get_current_context().params
    values = {name.partition(".")[2]: params.get(name.replace(".", "_")) for name in names}
    return {key: value for key, value in values.items() if value is not None}


def flags_given(*but: str) -> list[str]:
    """The flags of settings (`section.key`) that the running command was given, other than these."""
    context = click.get_current_context()
    wanted = {_parameter(s) for s in settings() if f"{s.section}.{s.name}" not in but}
    return [p.opts[-1] for p in context.command.params
            if p.name in wanted and context.params.get(p.name) is not None]  # fmt: skip


class Knob(NamedTuple):
    """One field of engine.request.Sampling as an option."""

    field: str
    short: str
    default: Any
    help: str


KNOBS = (
    Knob("temperature", "-t", 0.8, "Randomness; 0 takes the likeliest token each time."),
    Knob("top_k", "", 40, "Draw from the k likeliest tokens; 0: all."),
    Knob("top_p", "", 0.95, "Draw from the likeliest tokens that hold this share of probability; 1: all."),
    Knob("min_p", "", 0.05, "Drop tokens less likely than this share of the likeliest; 0: none."),
    Knob("repeat_penalty", "", 1.0, "Divide the logits of repeated tokens by this; 1: off."),
    Knob("presence_penalty", "", 0.0, "Subtract this from the logits of tokens that occurred."),
    Knob("frequency_penalty", "", 0.0, "Subtract this from a token's logit for each time it occurred."),
    Knob("repeat_last_n", "", 64, "Tokens that the penalties look back on; -1: all, 0: none."),
    Knob("seed", "-s", None, "Seed of the draw; without it each run differs."),
)


def sampled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the sampling options, and `sampling: dict[str, Any]` (fields of Sampling) for them."""

    @functools.wraps(function)
    def wrapper(*args: Any, **given: Any) -> Any:
        return function(*args, sampling={knob.field: given.pop(knob.field) for knob in KNOBS}, **given)

    for knob in reversed(KNOBS):
        names = [name for name in (knob.short, "--" + knob.field.replace("_", "-")) if name]
        kind = int if knob.default is None else type(knob.default)
        wrapper = click.option(*names, knob.field, type=kind, default=knob.default, help=knob.help,
                               show_default=knob.default is not None)(wrapper)  # fmt: skip
    return wrapper


FILTERS = {
    "collection": "Only documents of this collection.",
    "product": "Only documents of this product.",
    "version": "Only documents of this version of the product.",
    "document": "Only the document of this path or file name.",
}


def questioned(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the words of a question as `question: str`; it is read from stdin for `-` and without words."""

    @functools.wraps(function)
    def wrapper(*args: Any, question: tuple[str, ...], **given: Any) -> Any:
        text = " ".join(question)
        if text == "-" or not (question or sys.stdin.isatty()):
            text = sys.stdin.buffer.read().decode("utf-8", "replace")
        if not text.strip():
            raise click.UsageError("the question is empty; name one, or give it on stdin")
        return function(*args, question=text.strip(), **given)

    return click.argument("question", nargs=-1, metavar="[QUESTION]...")(wrapper)


def named(context: click.Context, option: click.Parameter, value: str | None) -> str | None:
    """Refuse an empty name, as a variable of a script that is not set gives it: it would mean all there are."""
    if value is not None and not value.strip():
        raise click.BadParameter("it is empty; leave the option out, or name one", context, option)
    return value


def filtered(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command an option for each of FILTERS, and `only: dict[str, str]` for those that are given."""

    @functools.wraps(function)
    def wrapper(*args: Any, **given: Any) -> Any:
        values = {name: given.pop(name) for name in FILTERS}
        return function(*args, only={name: value for name, value in values.items() if value is not None}, **given)

    for name, help in reversed(FILTERS.items()):
        wrapper = click.option(f"--{name}", metavar="TEXT", default=None, callback=named, help=help)(wrapper)
    return wrapper
