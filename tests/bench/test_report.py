"""The arithmetic of the benchmarks; the benchmarks themselves run with `make bench`."""

from __future__ import annotations

import json
import mmap
import os
from pathlib import Path

import pytest

from tests.bench.memory import private_bytes
from tests.bench.report import Report
from tests.bench.startup import first_byte


def test_medians_and_the_ratio_to_the_peer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = Report(tmp_path / "out.jsonl")
    report.compare("decode", "m", "tok/s", {"edged": [1.0, 90.0, 30.0], "xllamacpp": [10.0, 20.0]}, "2.2x")
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [(row["engine"], row["median"], row["ratio"]) for row in rows] == [
        ("xllamacpp", 15.0, None),
        ("edged", 30.0, 2.0),
    ]
    assert "2.00x (target 2.2x)" in capsys.readouterr().out


def test_private_bytes_leave_out_the_model(tmp_path: Path) -> None:
    size = 32 << 20
    path = tmp_path / "model"
    path.write_bytes(bytes(size))
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        assert not any(mapped[:: mmap.PAGESIZE])  # every page is in
        with_model = private_bytes(os.getpid(), tmp_path / "other")
        assert with_model - private_bytes(os.getpid(), path) > size * 0.9
        own = bytearray(b"x") * size
        assert private_bytes(os.getpid(), path) - (with_model - size) > size * 0.9
        del own


def test_first_byte() -> None:
    assert first_byte(["/bin/sh", "-c", "echo x"]) > 0
    with pytest.raises(SystemExit, match="printed nothing"):
        first_byte(["/bin/sh", "-c", "exit 3"])
