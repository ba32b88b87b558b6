"""`edged embed`."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest

from edged.cli import main


def rows(text: str) -> list[dict]:
    return [json.loads(line) for line in text.splitlines()]


def test_arguments_and_lines_have_the_same_vectors(minilm_path: Path, capsys: pytest.CaptureFixture[str],
                                                   monkeypatch: pytest.MonkeyPatch) -> None:
    texts = ["the pump leaks", "water runs out of the pump", "set the clock"]
    assert main.run(["embed", "-m", str(minilm_path), *texts]) == 0
    given = rows(capsys.readouterr().out)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO("\n".join(texts).encode())))
    assert main.run(["embed", "-m", str(minilm_path)]) == 0
    assert rows(capsys.readouterr().out) == given
    assert [row["tokens"] for row in given] == [5, 8, 5]
    a, b, c = (np.array(row["embedding"]) for row in given)
    assert abs(a @ a - 1) < 1e-6
    assert a @ b > a @ c


def test_a_model_that_generates_makes_vectors_too(smollm2_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """How its tokens become one vector is said, since its file does not say it."""
    assert main.run(["embed", "-m", str(smollm2_path), "--pooling", "last", "the pump leaks"]) == 0
    (last,) = rows(capsys.readouterr().out)
    assert len(last["embedding"]) == 576
    assert main.run(["embed", "-m", str(smollm2_path), "the pump leaks"]) == 0
    (mean,) = rows(capsys.readouterr().out)
    assert mean["embedding"] != last["embedding"]


def test_m10_what_is_no_text_is_refused_by_its_line(minilm_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                    capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"tea\ncaf\xe9\n")))
    assert main.run(["embed", "-m", str(minilm_path)]) == 1
    assert "line 2 of stdin is not UTF-8: byte 0xe9" in capsys.readouterr().err


def test_f04_a_long_text_is_refused_and_an_encoder_generates_nothing(minilm_path: Path,
                                                                     capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["embed", "-m", str(minilm_path), "word " * 600]) == 1
    assert "602 tokens, the model takes 512" in capsys.readouterr().err
    assert main.run(["run", "-m", str(minilm_path), "word"]) == 1
    captured = capsys.readouterr()
    assert not captured.out
    assert "makes embeddings, no text" in captured.err


def test_an_error_names_the_line_or_the_text(minilm_path: Path, monkeypatch: pytest.MonkeyPatch,
                                             capsys: pytest.CaptureFixture[str]) -> None:
    """Lines are computed some at a time, but counted from the first."""
    monkeypatch.setattr("edged.cli.embed.LINES", 2)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"tea\n" * 3 + b"word " * 600 + b"\n")))
    assert main.run(["embed", "-m", str(minilm_path)]) == 1
    captured = capsys.readouterr()
    assert "line 4 has 602 tokens" in captured.err and len(rows(captured.out)) == 2
    assert main.run(["embed", "-m", str(minilm_path), "tea", "word " * 600]) == 1
    assert "text 2 has 602 tokens" in capsys.readouterr().err


def test_ends_of_lines_are_no_text(smollm2_path: Path, monkeypatch: pytest.MonkeyPatch,
                                   capsys: pytest.CaptureFixture[str]) -> None:
    """The tokenizer of this model keeps blanks."""
    for lines in (b"tea\nfor two\n", b"tea\r\nfor two"):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(lines)))
        assert main.run(["embed", "-m", str(smollm2_path)]) == 0
    one, two, *same = rows(capsys.readouterr().out)
    assert same == [one, two]
