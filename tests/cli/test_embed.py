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
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(texts)))
    assert main.run(["embed", "-m", str(minilm_path)]) == 0
    assert rows(capsys.readouterr().out) == given
    assert [row["tokens"] for row in given] == [5, 8, 5]
    a, b, c = (np.array(row["embedding"]) for row in given)
    assert abs(a @ a - 1) < 1e-6
    assert a @ b > a @ c


def test_a_long_text_and_a_model_that_generates_are_refused(minilm_path: Path, smollm2_path: Path,
                                                            capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["embed", "-m", str(minilm_path), "word " * 600]) == 1
    assert "602 tokens, the model takes 512" in capsys.readouterr().err
    assert main.run(["embed", "-m", str(smollm2_path), "word"]) == 1
    assert "no embedding model" in capsys.readouterr().err
    assert main.run(["run", "-m", str(minilm_path), "word"]) == 1
    captured = capsys.readouterr()
    assert not captured.out
    assert "makes embeddings, no text" in captured.err
