"""A small sample of the GGUF fuzzer; `make soak` runs 10^6 cases."""

from __future__ import annotations

from pathlib import Path

import pytest

from edged.errors import BadModel
from edged.gguf import open as open_model
from tests.fuzz import gguf


def test_every_seed_opens() -> None:
    assert all(gguf.check(b"".join(seed)) for seed in gguf.SEEDS)


def test_opens_or_raises_bad_model() -> None:
    count = 5000
    opened = gguf.run(0, count)
    assert 0.05 * count < opened < 0.95 * count  # mutations that always or never break a file test nothing


@pytest.mark.soak
def test_opens_or_raises_bad_model_a_million_times() -> None:
    gguf.run(5000, 1_000_000)


def test_opens_files_or_raises_bad_model(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    for number in range(300):
        content = gguf.case(number)
        path.write_bytes(content)
        if gguf.check(content):
            open_model(path).close()
        else:
            with pytest.raises(BadModel):
                open_model(path)
