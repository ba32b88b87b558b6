from __future__ import annotations

import os
from pathlib import Path

import pytest

from edged.errors import NotFound
from edged.store import folder
from edged.store.catalogue import BY_NAME
from edged.store.folder import default_model, find, installed, manuals_file, models_folder

SMOLLM2 = BY_NAME["smollm2-135m-instruct"]


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "system"
    path.mkdir()
    monkeypatch.setattr(folder, "SYSTEM_FOLDER", path)
    return path


def test_models_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert models_folder({"HOME": "/h"}) == Path("/h/.local/share/edged/models")
    assert models_folder({"HOME": "/h", "XDG_DATA_HOME": "/d"}) == Path("/d/edged/models")
    assert models_folder({"HOME": "/h", "STATE_DIRECTORY": "/var/lib/x:/y"}) == Path("/var/lib/x/models")
    assert models_folder({"STATE_DIRECTORY": "/var/lib/x", "EDGED_MODELS": "/m"}) == Path("/m")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert models_folder({"HOME": "/root"}) == Path("/var/lib/edged/models")


def test_manuals_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert manuals_file("", {"HOME": "/h"}) == Path("/h/.local/share/edged/manuals.db")
    assert manuals_file("", {"HOME": "/h", "STATE_DIRECTORY": "/var/lib/x"}) == Path("/var/lib/x/manuals.db")
    assert manuals_file("", {"XDG_DATA_HOME": "/d", "EDGED_MODELS": "/m"}) == Path("/d/edged/manuals.db")
    assert manuals_file("m.db", {"HOME": "/h"}) == Path.cwd() / "m.db"
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert manuals_file("", {"HOME": "/root"}) == Path("/var/lib/edged/manuals.db")


def test_own_folder_comes_before_the_systems(tmp_path: Path, system: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    env = {"EDGED_MODELS": str(own)}
    (system / SMOLLM2.file).touch()
    (system / "b.gguf").touch()
    assert find(SMOLLM2.name, env) == system / SMOLLM2.file
    (own / SMOLLM2.file).touch()
    assert find(SMOLLM2.name, env) == own / SMOLLM2.file
    assert find("b", env) == find("b.gguf", env) == system / "b.gguf"
    assert installed(env) == [own / SMOLLM2.file, system / "b.gguf"]


def test_paths(tmp_path: Path, system: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "m.gguf").touch()
    assert find(str(tmp_path / "m.gguf"), {}) == tmp_path / "m.gguf"
    monkeypatch.chdir(tmp_path)
    assert find("m.gguf", {}) == Path("m.gguf")
    with pytest.raises(NotFound, match=r"no model file \./x\.gguf"):
        find("./x.gguf", {})


def test_missing_models_say_what_to_do(system: Path) -> None:
    with pytest.raises(NotFound) as caught:
        find(SMOLLM2.name, {"EDGED_MODELS": "/nowhere"})
    assert caught.value.hint == f"edged pull {SMOLLM2.name}"
    with pytest.raises(NotFound) as caught:
        find("mistral", {"EDGED_MODELS": "/nowhere"})
    assert "/nowhere" in caught.value.message
    assert SMOLLM2.name in caught.value.hint


def test_default_is_the_only_model_else_the_first_of_the_catalogue(tmp_path: Path, system: Path) -> None:
    env = {"EDGED_MODELS": str(tmp_path / "own")}
    with pytest.raises(NotFound, match="no model is here"):
        default_model(env)
    (system / "a.gguf").touch()
    assert default_model(env) == system / "a.gguf"
    (system / "b.gguf").touch()
    with pytest.raises(NotFound, match="none of 2 models is the default"):
        default_model(env)
    (system / SMOLLM2.file).touch()
    assert default_model(env) == system / SMOLLM2.file
