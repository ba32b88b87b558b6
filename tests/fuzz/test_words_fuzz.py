"""A small sample of the tokenizer and template fuzzer; `make soak` runs more."""

from __future__ import annotations

import pytest

from tests.fuzz import words

pytestmark = pytest.mark.filterwarnings("ignore::SyntaxWarning")  # of expressions such as 9[1:]


def test_opens_and_renders_or_raises_a_named_error() -> None:
    opened, rendered = words.run(0, 600)
    assert 0.2 * 600 < opened < 0.95 * 600  # mutations that always or never break a case test nothing
    assert 0.2 * 600 < rendered < 0.95 * 600


@pytest.mark.soak
def test_opens_and_renders_or_raises_a_named_error_many_times() -> None:
    words.run(600, 200_000)
