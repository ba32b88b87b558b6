"""`edged ask`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from edged.cli import manuals
from edged.cli.manuals import NOTHING, Row, place, printable
from edged.cli.options import configured, filtered, given, questioned
from edged.cli.report import counted

if TYPE_CHECKING:
    from edged.config import Config


@click.command(epilog="Exit status: 0 answered; 4 the answer is not in the manuals; 1 error.")
@questioned
@filtered
@click.option("--json", "as_json", is_flag=True, help="The answer as one JSON object.")
@configured("rag.store", "rag.passages", "rag.least", "rag.answer", "embedding", "model.path", "server.socket",
            "engine.threads", "engine.kernel_level", "engine.memory_check")
def command(config: Config, question: str, as_json: bool, only: dict[str, str]) -> int:
    """Answer QUESTION from the manuals: with their words and where these stand, or "not in the manuals".

    Without QUESTION, or for "-", what comes on stdin is answered.

    The daemon is asked if one answers on the socket, else this process answers; with --store this process, from that
    file. Without the daemon `--answer auto` means extract. The daemon has its own models: flags for models, such as
    --model or --threads, are refused then.
    """
    options = {**only, **given("rag.passages", "rag.least", "rag.answer")}
    shown = Shown(not as_json)
    with manuals.opened(config) as target:
        answer = target.ask(question, options, shown.piece)
    if as_json:
        click.echo(json.dumps(answer))
    else:
        shown.finish(answer)
        if answer["refused"]:
            click.echo(nearest(answer, options.get("least", target.least)), err=True)
    return NOTHING if answer["refused"] else 0


class Shown:
    """The answer on stdout, in pieces as it comes, then its quotes."""

    def __init__(self, visible: bool) -> None:
        self._visible = visible
        self._text = ""

    def piece(self, text: str) -> None:
        """Some more of it."""
        self._text += text
        if self._visible:
            click.echo(printable(text), nl=False)

    def finish(self, answer: Row) -> None:
        """The rest. An answer that is other than its pieces, since some were not borne out, is shown whole."""
        if self._text.strip() != answer["answer"].strip():
            click.echo(("\n\n" if self._text else "") + printable(answer["answer"]), nl=False)
        click.echo()
        for quote in answer["quotes"]:
            click.echo(f"[{quote['n']}] \"{printable(' '.join(quote['text'].split()))}\" - {place(quote)}")
        if dropped := answer.get("dropped_sentences"):
            click.echo(f"left out, since no passage bears it out: {counted(dropped, 'sentence')}", err=True)


def nearest(answer: Row, least: float | None) -> str:
    """What a refused question came nearest to. least: the confidence that is asked for, if that is known."""
    if not answer["passages"]:
        return "no passage has to do with it (edged store list)"
    limit = "" if least is None else f", {least:.2f} is asked for (--least)"
    return f"nearest: {place(answer['passages'][0])}; confidence {answer['confidence']:.2f}{limit}; see edged search"
