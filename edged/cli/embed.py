"""`edged embed`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from edged.cli.options import configured

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

    from edged import gguf, tokenizers
    from edged.engine import embedder
    from edged.store.folder import find

    with gguf.open(find(config.embedding.model)) as model:
        made = embedder.open(config.engine, model)
        try:
            tokenizer = tokenizers.open(model.meta)
            lines = iter(texts) if texts else (line.removesuffix("\n") for line in sys.stdin)
            while some := list(islice(lines, LINES)):
                ids = [tokenizer.encode(text, add_special=True) for text in some]
                for tokens, vector in zip(ids, made.embed(ids), strict=True):
                    floats = [float(f"{x:.9g}") for x in vector]
                    click.echo(json.dumps({"tokens": len(tokens), "embedding": floats}, separators=(",", ":")))
        finally:
            made.close()
