"""The commands that look at models without running them: pull, models, inspect, tokenize."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from edged.cli import main
from edged.gguf import Writer
from edged.store.catalogue import CATALOGUE
from tests.convert.test_convert import checkpoint


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty models folder."""
    monkeypatch.setenv("EDGED_MODELS", str(tmp_path / "models"))
    monkeypatch.setattr("edged.store.folder.SYSTEM_FOLDER", tmp_path / "system")
    return tmp_path / "models"


def tiny(path: Path) -> Path:
    """A model file with metadata of every shape and one tensor."""
    import numpy as np

    writer = Writer()
    writer.add("general.architecture", "llama")
    writer.add("general.name", "Tiny \x1b[31m model")
    writer.add("x.floats", np.array([0.5, 1.5], np.float32))
    writer.add("x.nan", float("nan"))
    writer.add("x.strings", ["a", "b"])
    writer.add_tensor("token_embd.weight", np.zeros((4, 32), np.float32))
    writer.write(path)
    return path


def test_pull_models_inspect_by_name(models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["pull", str(tiny(tmp_path / "Tiny.gguf"))]) == 0
    assert capsys.readouterr().out == f"{models / 'Tiny.gguf'}\n"
    assert main.run(["models"]) == 0
    listed = capsys.readouterr().out
    assert f"{models / 'Tiny.gguf'}\n" in listed
    assert all(f"edged pull {entry.name}\n" in listed for entry in CATALOGUE)
    assert main.run(["inspect", "Tiny"]) == 0
    assert "token_embd.weight" in capsys.readouterr().out


def test_pull_says_what_is_there_already_and_under_which_licence(models: Path, smollm2_path: Path,
                                                                capsys: pytest.CaptureFixture[str]) -> None:
    models.mkdir()
    (models / smollm2_path.name).symlink_to(smollm2_path)
    assert main.run(["pull", "smollm2-135m-instruct", "--verify"]) == 0
    captured = capsys.readouterr()
    assert captured.out == f"{models / smollm2_path.name}\n"
    assert "licence: Apache-2.0" in captured.err
    assert "already there, SHA-256 right" in captured.err
    assert main.run(["pull", "smollm2-135m-instruct", "-q"]) == 0
    assert capsys.readouterr().err == ""


def test_convert_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, data in checkpoint().items():
        (tmp_path / "model" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "model" / name).write_bytes(data)
    target = str(tmp_path / "out.gguf")
    assert main.run(["convert", str(tmp_path / "model"), target, "--type", "f16"]) == 0
    assert main.run(["tokenize", "--model", target, "ab"]) == 0
    assert capsys.readouterr().out == "       5  ' a'\n       6  'b'\n"
    assert main.run(["convert", str(tmp_path), target]) == 1
    assert "config.json: no such file" in capsys.readouterr().err


def test_models_as_json(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    models.mkdir()
    tiny(models / "Tiny.gguf")
    assert main.run(["models", "--json"]) == 0
    rows = {row["name"]: row for row in map(json.loads, capsys.readouterr().out.splitlines())}
    assert rows["Tiny"]["path"] == str(models / "Tiny.gguf")
    assert rows["Tiny"]["size"] == (models / "Tiny.gguf").stat().st_size
    assert rows["gemma3-270m"]["path"] == ""


def test_inspect(models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tiny(tmp_path / "Tiny.gguf")
    assert main.run(["inspect", str(path)]) == 0
    text = capsys.readouterr().out
    assert "\x1b" not in text  # metadata cannot steer the terminal
    assert "32 x 4" in text
    assert "512 bytes" in text
    assert "2 values: 0.5, 1.5" in text
    assert main.run(["inspect", str(path), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert facts["tensors"][0]["shape"] == [32, 4]
    assert {row["key"]: row.get("value") for row in facts["metadata"]}["general.name"] == "Tiny \x1b[31m model"


def test_a11_truncated_model_is_refused_by_name(models: Path, tmp_path: Path,
                                                capsys: pytest.CaptureFixture[str]) -> None:
    path = tiny(tmp_path / "Tiny.gguf")
    path.write_bytes(path.read_bytes()[:-1])
    assert main.run(["inspect", str(path)]) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert "token_embd.weight" in error


def test_a01_oversized_tensor_is_an_error_not_a_traceback(models: Path, tmp_path: Path,
                                                          capsys: pytest.CaptureFixture[str]) -> None:
    path = tiny(tmp_path / "Tiny.gguf")
    data = path.read_bytes()
    at = data.index(b"token_embd.weight") + len("token_embd.weight") + 4
    path.write_bytes(data[:at] + ((1 << 42) + 1).to_bytes(8, "little") + data[at + 8 :])
    assert main.run(["inspect", str(path)]) == 1
    assert "token_embd.weight" in capsys.readouterr().err


def test_missing_model_says_how_to_get_it(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["inspect", "gemma3-270m"]) == 1
    assert "hint: edged pull gemma3-270m\n" in capsys.readouterr().err


def test_tokenize(models: Path, smollm2_path: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    models.mkdir()
    shutil.copy(smollm2_path, models)
    args = ["tokenize", "-m", "smollm2-135m-instruct"]
    assert main.run([*args, "Hello <|im_end|>", "--ids"]) == 0
    literal = capsysbinary.readouterr().out.split()
    assert main.run([*args, "Hello <|im_end|>", "--ids", "--special"]) == 0
    special = capsysbinary.readouterr().out.split()
    assert special[-1] == b"2"
    assert len(literal) > len(special)
    assert main.run([*args, "Hello <|im_end|>", "--json"]) == 0
    rows = [json.loads(line) for line in capsysbinary.readouterr().out.splitlines()]
    assert b"".join(bytes.fromhex(row["bytes"]) for row in rows) == b"Hello <|im_end|>"
    assert [str(row["id"]).encode() for row in rows] == literal
    assert main.run([*args, "Hello"]) == 0
    assert capsysbinary.readouterr().out.endswith(b"'Hello'\n")


def test_the_help_of_pull_tells_both_sizes(capsys: pytest.CaptureFixture[str]) -> None:
    """What is fetched, where that is converted, and what lies on the disk then."""
    assert main.run(["pull", "--help"]) == 0
    text = "".join(capsys.readouterr().out.split())  # lines may break at a hyphen
    assert "all-minilm-l6-v2(84MBtofetch,25MBonthedisk," in text
    assert "smollm2-135m-instruct(98MBonthedisk," in text
