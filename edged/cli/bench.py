"""`edged bench`."""

from __future__ import annotations

import json
import random
import statistics
from typing import TYPE_CHECKING, Any

import click

from edged.cli import generate
from edged.cli.options import configured

if TYPE_CHECKING:
    from edged.config import Config
    from edged.service.loader import LoadedModel

GREEDY = {"temperature": 0.0}


@click.command()
@click.option("-p", "--prompt", "prompts", type=click.IntRange(1), multiple=True, default=(512,), show_default=True,
              help="Prompt length in tokens (test ppN); may be given several times.")
@click.option("-n", "--gen", "gens", type=click.IntRange(1), multiple=True, default=(128,), show_default=True,
              help="Tokens to generate (test tgN); may be given several times.")
@click.option("-r", "--repetitions", type=click.IntRange(1), default=5, show_default=True,
              help="Measured runs of each test, after one that is not.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per test and line.")
@configured("model", "engine")
def command(config: Config, prompts: tuple[int, ...], gens: tuple[int, ...], repetitions: int, as_json: bool) -> None:
    """Measure prompt and generation speed, one sequence at a time, as llama-bench does."""
    model = generate.load(config)
    try:
        if not as_json:
            click.echo(f"{'model':<32} {'level':<16} {'threads':>7} {'test':>8} {'tokens/s':>18}")
        for n in prompts:
            _report(_measure(model, n, 1, repetitions), as_json)
        for n in gens:
            _report(_measure(model, 1, n, repetitions), as_json)
    finally:
        model.close()


def _measure(model: LoadedModel, n_prompt: int, n_gen: int, repetitions: int) -> dict[str, Any]:
    """Speed of the prompt if n_gen is 1, else of the n_gen tokens after the first."""
    decode = n_gen > 1 or n_prompt == 1
    chance = random.Random(1)
    rates, drafted, accepted = [], 0, 0
    for run in range(repetitions + 1):
        prompt = [chance.randrange(model.tokenizer.n_vocab) for _ in range(n_prompt)]
        wanted = generate.request(model, prompt, n_gen + decode, GREEDY, ignore_eos=True)
        usage = generate.stream(model, wanted, (), lambda text: None).usage
        if run:  # the first warms up
            drafted, accepted = drafted + usage.drafted_tokens, accepted + usage.accepted_tokens
            rates.append(n_gen / usage.decode_s if decode else n_prompt / usage.prefill_s)
    info = model.engine.info
    return {
        "model": info.model,
        "level": info.kernel_level,
        "threads": info.threads,
        "test": f"tg{n_gen}" if decode else f"pp{n_prompt}",
        "tokens_per_s": round(statistics.mean(rates), 2),
        "stddev": round(statistics.stdev(rates) if len(rates) > 1 else 0.0, 2),
        "runs": [round(rate, 2) for rate in rates],
        "drafted": drafted,
        "accepted": accepted,
    }


def _report(row: dict[str, Any], as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(row))
    else:
        speed = f"{row['tokens_per_s']:.2f} ± {row['stddev']:.2f}"
        right = f"  {row['accepted']} of {row['drafted']} guesses right" if row["drafted"] else ""
        click.echo(f"{row['model']:<32} {row['level']:<16} {row['threads']:>7} {row['test']:>8} {speed:>18}{right}")
