"""`edged run`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from edged.cli import generate
from edged.cli.options import configured, sampled

if TYPE_CHECKING:
    from edged.config import Config


@click.command()
@click.argument("prompt", required=False)
@click.option("-n", "--tokens", type=int, default=-1, show_default=True,
              help="Most tokens to generate; -1: to the end of the context.")
@click.option("--system", default="", help="System message before the prompt.")
@click.option("--raw", is_flag=True, help="Complete the prompt as it is, without the model's chat template.")
@click.option("--stop", multiple=True, help="Text that ends the answer; may be given several times.")
@click.option("--ignore-eos", is_flag=True, help="Go on after the model's end token.")
@click.option("-v", "--verbose", is_flag=True, help="Token counts and speeds on stderr at the end.")
@sampled
@configured("model", "engine")
def command(config: Config, prompt: str | None, tokens: int, system: str, raw: bool, stop: tuple[str, ...],
            ignore_eos: bool, verbose: bool, sampling: dict[str, Any]) -> None:
    """Answer PROMPT, or what comes on stdin, and print the answer as it is made.

    Without --model: the only model there is, or smollm2-135m-instruct.
    """
    text = sys.stdin.read() if prompt is None else prompt
    model = generate.load(config)
    try:
        if raw:
            ids = model.tokenizer.encode(text, add_special=True)
        else:
            messages = [{"role": "system", "content": system}] if system else []
            ids = model.chat.render([*messages, {"role": "user", "content": text}])
        wanted = generate.request(model, ids, tokens, sampling, ignore_eos)
        usage = generate.stream(model, wanted, stop, generate.write).usage
        generate.write("\n")
        if verbose:
            info = model.engine.info
            click.echo(f"{generate.figures(usage)}; {info.threads} threads, {info.kernel_level}", err=True)
    finally:
        model.close()
