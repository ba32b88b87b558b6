from __future__ import annotations

from pathlib import Path

import pytest

from edged.cli import manuals
from tests.cli.keeping import Fake


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Fake:
    made = Fake()
    monkeypatch.setattr(manuals, "Here", lambda config: made)
    monkeypatch.setenv("EDGED_SERVER_SOCKET", "/nowhere")
    return made


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two manuals, one of them below, beside what is passed over."""
    below = tmp_path / "manuals"
    (below / "pumps").mkdir(parents=True)
    (below / "b.md").write_text("# B")
    (below / "pumps" / "a.txt").write_text("scan")
    (below / ".git").mkdir()
    (below / ".git" / "x.md").write_text("x")
    (below / ".hidden.md").write_text("x")
    return below
