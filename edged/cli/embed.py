"""`edged embed`."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import click

from edged.cli.options import configured
from edged.errors import BadRequest, EdgedError

if TYPE_CHECKING:
    from edged.config import Config

LINES = 256  # of stdin that are computed together


@click.command()
@click.argument("texts", nargs=-1)
@configured("embedding.model", "embedding.pooling", "embedding.context", "engine.threads", "engine.kernel_level",
            "engine.memory_check", flags={"embedding.model": "--model"})
def command(config: Config, texts: tuple[str, ...]) -> None:
    """Print the vector of each TEXT, or of each line on stdin.

    One JSON object per text and line: its number of tokens and its embedding, of length 1. A text that is longer than
    the model takes is an error.
    """
    import json
    from itertools import islice

    from edged.service import loader

    embedder = loader.load_embedder(config)
    try:
        lines = iter(texts) if texts else _lines(sys.stdin.buffer)
        before = 0
        while some := list(islice(lines, LINES)):
            ids = [embedder.encode(text) for text in some]
            try:
                vectors = embedder.engine.embed(ids)
            except EdgedError as error:
                error.message = _placed(error.message, "text" if texts else "line", before)
                raise
            before += len(some)
            for tokens, vector in zip(ids, vectors, strict=True):
                floats = [float(f"{x:.9g}") for x in vector]
                click.echo(json.dumps({"tokens": len(tokens), "embedding": floats}, separators=(",", ":")))
    finally:
        embedder.close()


def _lines(stream: Iterable[bytes]) -> Iterator[str]:
    """The lines of a stream without their ends. Raises BadRequest for one that is not UTF-8."""
    for number, line in enumerate(stream, 1):
        try:
            yield line.decode("utf-8").removesuffix("\n").removesuffix("\r")
        except UnicodeDecodeError as error:
            raise BadRequest(f"line {number} of stdin is not UTF-8: byte {line[error.start]:#04x}") from None


def _placed(message: str, what: str, before: int) -> str:
    """A message about text i, from 0, of those that were computed together, with its number among all, from 1."""
    return re.sub(r"\btext (\d+)", lambda found: f"{what} {before + int(found[1]) + 1}", message, count=1)
