"""`edged chat`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from edged.cli import generate
from edged.cli.options import configured, sampled
from edged.cli.report import report
from edged.errors import EdgedError

if TYPE_CHECKING:
    from edged.config import Config

Answer = Callable[[list[dict[str, str]], Callable[[str], None]], None]


@click.command()
@click.option("--socket", default="", help="Talk to the daemon on this Unix socket instead of loading a model here.")
@click.option("--system", default="", help="System message at the start.")
@click.option("-n", "--tokens", type=int, default=-1, show_default=True,
              help="Most tokens in one answer; -1: to the end of the context.")
@click.option("-v", "--verbose", is_flag=True, help="Token counts and speeds on stderr after each answer.")
@sampled
@configured("model", "engine")
def command(config: Config, socket: str, system: str, tokens: int, verbose: bool, sampling: dict[str, Any]) -> None:
    """Talk with a model, line by line.

    /reset forgets the conversation; /quit, or Ctrl-D, leaves. Ctrl-C stops an answer.
    """
    if socket:
        from edged.cli import client

        options = {key: value for key, value in sampling.items() if value is not None}
        if tokens >= 0:
            options["max_tokens"] = tokens

        def ask(messages: list[dict[str, str]], show: Callable[[str], None]) -> None:
            for piece in client.chat(socket, messages, **options):
                show(piece)

        talk(ask, system)
        return
    model = generate.load(config)

    def answer(messages: list[dict[str, str]], show: Callable[[str], None]) -> None:
        wanted = generate.request(model, model.chat.render(messages), tokens, sampling)
        usage = generate.stream(model, wanted, (), show).usage
        if verbose:
            click.echo(f"\n{generate.figures(usage)}", err=True, nl=False)

    try:
        talk(answer, system)
    finally:
        model.close()


def talk(answer: Answer, system: str) -> None:
    """Read lines, show answers, keep the conversation."""
    if sys.stdin.isatty():
        import readline  # noqa: F401  line editing and history in input()
    start = [{"role": "system", "content": system}] if system else []
    messages = list(start)
    while True:
        try:
            line = input("> " if sys.stdin.isatty() else "").strip()
        except EOFError:
            return
        if line == "/quit":
            return
        if line == "/reset":
            messages = list(start)
        elif line:
            messages.append({"role": "user", "content": line})
            try:
                messages.append({"role": "assistant", "content": _show(answer, messages)})
            except EdgedError as error:
                if not sys.stdin.isatty():
                    raise
                report(error)  # such as a full context: a person can go on, or /reset
                messages.pop()


def _show(answer: Answer, messages: list[dict[str, str]]) -> str:
    """Print the answer as it comes; what was printed. Ctrl-C ends it early."""
    pieces: list[str] = []

    def show(text: str) -> None:
        pieces.append(text)
        generate.write(text)

    try:
        answer(messages, show)
    except KeyboardInterrupt:
        generate.write(" [stopped]")
    generate.write("\n")
    return "".join(pieces)
