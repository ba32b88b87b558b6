"""Manuals that `edged ingest` fills in a test, without a model; the fixtures are in conftest.py."""

from __future__ import annotations

import json
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from edged.cli import main, manuals
from edged.errors import DiskFull, EdgedError

Row = dict[str, Any]


class Fake:
    """Manuals that keep what they are sent; a document that begins with `bad` is refused, `full`
    fills the disk, at `gone` the daemon is killed and at `stop` Ctrl-C pressed."""

    where = "the fake"

    def __init__(self) -> None:
        self.rows: dict[tuple[str, str], Row] = {}
        self.sent: list[str] = []
        self.removed: list[int] = []

    def documents(self, only: dict[str, str]) -> list[Row]:
        return [row for row in self.rows.values() if only.items() <= row.items()]

    def ingest(self, path: str, data: bytes, about: dict[str, str], progress: Callable[[int, int], None]) -> Row:
        self.sent.append(Path(path).name)
        if data.startswith(b"bad"):
            return manuals.failed(path, "protected by a password")
        if data.startswith(b"full"):
            raise DiskFull("no room on the disk")
        if data.startswith(b"gone"):
            raise EdgedError("the daemon closed the connection in the middle of the answer")
        if data.startswith(b"stop"):
            raise KeyboardInterrupt
        progress(0, 4)
        progress(4, 4)
        of = {"chunks": 4, "pages": 2, "pages_without_text": [2] if b"scan" in data else []}
        digest = sha256(data).hexdigest()
        self.rows[about["collection"], path] = {**about, "path": path, "id": len(self.rows), "sha256": digest, **of}
        return {**of, "path": path, "outcome": "added", "embedded": 3, "error": ""}

    def remove(self, document: int) -> None:
        self.removed.append(document)
        self.rows = {key: row for key, row in self.rows.items() if row["id"] != document}

    def close(self) -> None:
        pass


def ingest(*args: str | Path) -> int:
    return main.run(["ingest", *map(str, args)])


def told(capsys: pytest.CaptureFixture[str]) -> tuple[list[Row], Row]:
    *rows, report = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    return rows, report["report"]
