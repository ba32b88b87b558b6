"""Fuzzes tokenizers and chat templates, each case made from its number alone.

Any metadata: a tokenizer opens that takes every text, or BadModel; never anything else. Any template: it renders, or
BadTemplate; and whatever it does, no control token comes from a message.

    python -m tests.fuzz.words --count 1000000 [--first N]
"""

from __future__ import annotations

import argparse
import logging
import random
from typing import Any

import numpy as np

import edged.chat
import edged.tokenizers
from edged.errors import BadModel, BadTemplate
from edged.tokenizers.bpe import _CHARACTERS
from edged.tokenizers.pretokenizers import PRETOKENIZERS

CONTROL = ("<|im_start|>", "<|im_end|>", "</s>")
PIECES = [
    *CONTROL,
    "",
    "a",
    "b",
    "ab",
    "a b",
    "▁",
    "▁a",
    "a▁",
    "<0x0A>",
    "<0xZZ>",
    "\n",
    "\n\n",
    "é",
    "Ġ",
    "Ġa",
    "😸",
    "a" * 90,
]
TEXT = [*CONTROL, *PIECES, " ", "  ", "1", "'s", "\0", "\ue000", "\ud800", "\U000f0000", "中"]
NUMBERS = [0, 1, 2, 3, 5, 6, 7, -1, 2**31, 2**32 - 1, 2**63, 0.5, float("nan"), True, None, "1", [1]]
SOURCE = [
    *("{{ ", " }}", "{% ", " %}", "{%- for m in messages %}", "{% endfor %}", "{% if ", "{% else %}", "{% endif %}"),
    *("m", "messages", "messages[0]", ".content", ".role", "['content']", "[1:]", "|trim", "|tojson", "|join", "|list"),
    *(" + ", " ~ ", " * ", " ** ", " == ", " in ", "9", "'<|im_'", "'end|>'", "<|im_start|>", "(", ")", "[", "]", ", "),
    *("{% set x = ", "x", "range(9)", "namespace(a=x)", ".split('a')", ".replace('a', '')", "loop.index", "|reverse"),
]
SEED = "{%- for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content|trim + '<|im_end|>' }}{%- endfor %}"


def text(rng: random.Random, parts: list[str], most: int) -> str:
    return "".join(rng.choices(parts, k=rng.randrange(most)))


def vocabulary(number: int) -> bool:
    """Check one vocabulary; whether it opened."""
    rng = random.Random(number)
    size = rng.randrange(1, 20)
    fields: dict[str, Any] = {
        "tokens": rng.choices(PIECES, k=size),
        "token_type": np.array(rng.choices((1, 1, 1, 2, 3, 4, 5, 6, 0, -7, 99), k=size), np.int32),
        "scores": np.array(rng.choices((0.0, -1.0, 1.0, -2.5, float("nan"), float("inf")), k=size), np.float32),
        "merges": [text(rng, [*PIECES, " "], 4) for _ in range(rng.randrange(9))],
        "pre": rng.choice([*PRETOKENIZERS, None]),
        "add_space_prefix": rng.random() < 0.5,
    }
    for name in ("bos_token_id", "eos_token_id", "unknown_token_id"):
        fields[name] = rng.choice(NUMBERS)
    for name in ("add_bos_token", "add_eos_token"):
        fields[name] = rng.choice([True, False, None])
    if rng.random() < 0.3:
        fields[rng.choice(list(fields))] = rng.choice([*NUMBERS, "x", [], ["a"], np.zeros(2), {}])
    meta = {f"tokenizer.ggml.{name}": value for name, value in fields.items() if value is not None}
    try:
        tokenizer = edged.tokenizers.open({"tokenizer.ggml.model": rng.choice(["gpt2", "llama"]), **meta})
    except BadModel as e:
        assert str(e).isprintable()
        return False
    sample = text(rng, TEXT, 12)
    for content in (sample, sample.encode("utf-8", "surrogatepass"), rng.randbytes(20)):
        plain = tokenizer.encode(content)
        assert not any(tokenizer.is_control(id) for id in plain if id != tokenizer.vocab.unk_id)
        ids = tokenizer.encode(content, special=True, add_special=True)
        assert all(0 <= id < tokenizer.n_vocab for id in ids)
        stream = tokenizer.stream(("ab",), special=True)
        streamed = "".join(map(stream.push, ids)) + stream.finish()
        whole = tokenizer.decode(ids, special=True)
        assert "ab" not in streamed and stream.stopped == (
            "ab" in b"".join(map(tokenizer.token_bytes, ids)).decode("utf-8", "replace")
        )
        assert stream.stopped or whole in (streamed, streamed.removeprefix(" "))
    return True


def template(number: int) -> bool:
    """Check one template; whether it rendered."""
    rng = random.Random(number)
    source = SEED if rng.random() < 0.5 else text(rng, SOURCE, 12)
    for _ in range(rng.randrange(4)):
        at = rng.randrange(len(source) + 1)
        source = source[:at] + text(rng, SOURCE, 3) + source[at + rng.randrange(4) :]
    types = [3] * len(CONTROL) + [1] * 256
    tokens = [*CONTROL, *_CHARACTERS]
    meta = {"tokens": tokens, "token_type": types, "merges": [], "pre": "gpt-2"}
    tokenizer = edged.tokenizers.open(
        {"tokenizer.ggml.model": "gpt2", **{f"tokenizer.ggml.{name}": value for name, value in meta.items()}}
    )
    chat = edged.chat.open({"tokenizer.chat_template": source or "x"}, tokenizer)
    spoken = text(rng, [*CONTROL, "a", "<", "|im_", "end|>", " "], 8)
    try:
        ids = chat.render([{"role": "user", "content": spoken}])
    except BadTemplate:
        return False
    allowed = len(chat.render([{"role": "user", "content": spoken.translate(str.maketrans("<", "("))}]))
    assert sum(map(tokenizer.is_control, ids)) <= allowed
    return True


def run(first: int, count: int) -> tuple[int, int]:
    """Check cases first ... first + count - 1; how many vocabularies opened, and how many templates rendered."""
    opened = rendered = 0
    for number in range(first, first + count):
        try:
            opened += vocabulary(number)
            rendered += template(number)
        except Exception as e:
            raise AssertionError(f"case {number}: {type(e).__name__}: {e}") from e
    return opened, rendered


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1_000_000, help="cases to run")
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    args = parser.parse_args()
    logging.disable()
    opened, rendered = run(args.first, args.count)
    print(f"words: {args.count} cases, {opened} vocabularies opened, {rendered} templates rendered")


if __name__ == "__main__":
    main()
