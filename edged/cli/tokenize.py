"""`edged tokenize`."""

from __future__ import annotations

import sys

import click


@click.command()
@click.argument("text", required=False)
@click.option("-m", "--model", default="", metavar="NAME|PATH", help="The model whose tokenizer is used.")
@click.option("--special/--no-special", default=False, show_default=True,
              help="Whether names of control tokens in the text mean these tokens.")
@click.option("--add-special/--no-add-special", default=False, show_default=True,
              help="Whether to add begin and end tokens as the model asks.")
@click.option("--ids", is_flag=True, help="Only the ids, on one line.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per token and line.")
def command(text: str | None, model: str, special: bool, add_special: bool, ids: bool, as_json: bool) -> None:
    """Show the tokens of TEXT, or of stdin."""
    from edged import gguf, tokenizers
    from edged.store.folder import find

    data = sys.stdin.buffer.read() if text is None else text
    with gguf.open(find(model)) as opened:
        tokenizer = tokenizers.open(opened.meta)
        found = tokenizer.encode(data, special=special, add_special=add_special)
        if ids:
            click.echo(" ".join(map(str, found)))
            return
        for id in found:
            piece = tokenizer.token_bytes(id)
            if as_json:
                import json

                click.echo(json.dumps({"id": id, "bytes": piece.hex(), "text": piece.decode("utf-8", "replace")}))
            else:
                click.echo(f"{id:>8}  {piece.decode('utf-8', 'backslashreplace')!r}")
