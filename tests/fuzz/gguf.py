"""Fuzzes the GGUF reader: it opens, or raises BadModel; never anything else. And what opens can be read to the end.

    python -m tests.fuzz.gguf --count 1000000 [--first N]

Each case is made from its number alone, so that a failing one can be repeated: --first N --count 1.
"""

from __future__ import annotations

import argparse
import random
import struct
import sys
import time
from collections.abc import Callable

import numpy as np

from edged.errors import BadModel
from edged.gguf.reader import parse
from edged.gguf.types import GGML_TYPES, WITHDRAWN
from edged.gguf.values import StringArray

Fields = list[bytes]

NUMBERS = sorted(
    {(1 << bits) + d for bits in (0, 3, 5, 6, 8, 16, 31, 32, 62, 63, 64) for d in (-1, 0, 1)}
    | set(GGML_TYPES)
    | set(WITHDRAWN)
)


def string(text: bytes) -> Fields:
    return [struct.pack("<Q", len(text)), text]


def key(name: bytes, kind: int, *value: bytes) -> Fields:
    return [*string(name), struct.pack("<I", kind), *value]


def strings(name: bytes, *items: bytes) -> Fields:
    head = key(name, 9, struct.pack("<I", 8), struct.pack("<Q", len(items)))
    return head + [field for item in items for field in string(item)]


def tensor(name: bytes, type_id: int, offset: int, *shape: int) -> Fields:
    dims = [struct.pack("<Q", n) for n in shape]
    return [*string(name), struct.pack("<I", len(shape)), *dims, struct.pack("<I", type_id), struct.pack("<Q", offset)]


def model(version: int, keys: list[Fields], tensors: list[Fields], alignment: int, size: int) -> Fields:
    """A valid file as the list of its fields: each number and each string is one element."""
    fields = [b"GGUF", struct.pack("<I", version), struct.pack("<Q", len(tensors)), struct.pack("<Q", len(keys))]
    for part in keys + tensors:
        fields += part
    return [*fields, bytes(-sum(map(len, fields)) % alignment), bytes(size)]


SEEDS: list[Fields] = [
    model(3, [], [], 32, 0),
    model(
        3,
        [
            key(b"general.architecture", 8, *string(b"llama")),
            key(b"llama.block_count", 4, struct.pack("<I", 2)),
            strings(b"tokenizer.ggml.tokens", b"<s>", b"", b"\xe2\x96\x81the", b"\0", b"x" * 300, b"end"),
            key(b"tokenizer.ggml.scores", 9, struct.pack("<I", 6), struct.pack("<Q", 3), struct.pack("<3f", 0, -1, 1)),
        ],
        [tensor(b"token_embd.weight", 12, 0, 256, 2), tensor(b"output_norm.weight", 0, 288, 4)],
        32,
        288 + 16,
    ),
    model(
        2,
        [
            key(b"general.alignment", 4, struct.pack("<I", 8)),
            key(b"flag", 7, b"\1"),
            key(b"flags", 9, struct.pack("<I", 7), struct.pack("<Q", 2), b"\0\1"),
            key(b"big", 10, struct.pack("<Q", 1 << 60)),
            key(b"real", 12, struct.pack("<d", 0.5)),
            strings(b"none"),
        ],
        [tensor(b"a", 2, 0, 32, 1, 2), tensor(b"b", 8, 40, 64), tensor(b"c", 30, 112, 3, 1, 1, 1)],
        8,
        118,
    ),
]


def flip(rng: random.Random, content: bytearray) -> None:
    for _ in range(rng.choice((1, 1, 2, 8))):
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)


def cut(rng: random.Random, content: bytearray) -> None:
    del content[rng.randrange(len(content)) :]


def splice(rng: random.Random, content: bytearray) -> None:
    """Move, double or drop a run of bytes."""
    start, length, to = (rng.randrange(len(content)) for _ in range(3))
    run = content[start : start + length % 64]
    if rng.random() < 0.5:
        del content[start : start + length % 64]
    content[to:to] = run if rng.random() < 0.7 else b""


def overwrite(rng: random.Random, content: bytearray) -> None:
    """Put a number where any number may be."""
    at = rng.randrange(len(content))
    raw = (rng.choice(NUMBERS) & 0xFFFF_FFFF_FFFF_FFFF).to_bytes(8, "little")[: rng.choice((1, 4, 8))]
    content[at : at + len(raw)] = raw


BYTES: tuple[Callable[[random.Random, bytearray], None], ...] = (flip, cut, splice, overwrite)


def mutate_fields(rng: random.Random, fields: Fields) -> None:
    """Change one field so that the ones around it stay what they were."""
    at = rng.randrange(1, len(fields))
    field = fields[at]
    choice = rng.randrange(6)
    if choice < 3 and len(field) in (4, 8):
        number = rng.choice(NUMBERS) if choice else int.from_bytes(field, "little") + rng.choice((-1, 1))
        fields[at] = (number % (1 << 8 * len(field))).to_bytes(len(field), "little")
    elif choice == 3:
        fields.insert(at, rng.choice(fields))
    elif choice == 4:
        del fields[at]
    else:
        fields[at] = rng.randbytes(rng.choice((0, 1, 4, 8, 70)))


def case(number: int) -> bytes:
    """The mutated file of this number."""
    rng = random.Random(number)
    fields = list(rng.choice(SEEDS))
    for _ in range(rng.choice((0, 1, 1, 2))):
        mutate_fields(rng, fields)
    content = bytearray(b"".join(fields))
    for _ in range(rng.choice((0, 1, 1, 2))):
        if content:
            rng.choice(BYTES)(rng, content)
    return bytes(content)


def check(content: bytes) -> bool:
    """Whether it opens. Anything but BadModel, or a part that cannot be read, comes out as an exception."""
    data = np.frombuffer(content, np.uint8)
    try:
        header = parse(data, "fuzz")
    except BadModel as e:
        assert str(e).isprintable(), "a message with raw bytes of the file"
        return False
    end = 0
    for tensor in sorted(header.tensors.values(), key=lambda t: t.offset):
        assert end <= tensor.offset and 0 < tensor.nbytes <= len(content) - tensor.offset
        assert tensor.offset % header.alignment == 0
        end = tensor.offset + tensor.nbytes
    for value in header.meta.values():
        if isinstance(value, StringArray):
            assert all(isinstance(text, str) for text in value)
            assert all(n >= 0 for n in value.lengths) and sum(value.lengths) + 8 * len(value) == len(value.buffer)
        elif isinstance(value, np.ndarray):
            assert len(value.tolist()) == len(value)
    return True


def run(first: int, count: int) -> int:
    """Check cases first ... first + count - 1 and return how many opened. An exception carries the case's number."""
    opened = 0
    for number in range(first, first + count):
        try:
            opened += check(case(number))
        except Exception as e:
            raise AssertionError(f"case {number}: {type(e).__name__}: {e}") from e
    return opened


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1_000_000, help="cases to run")
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    args = parser.parse_args()
    start = time.monotonic()
    opened = run(args.first, args.count)
    seconds = time.monotonic() - start
    print(f"gguf: {args.count} cases, {opened} opened, the rest refused; {seconds:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
