"""`edged doctor`: each finding from a fake machine, and the whole of it on this one."""

from __future__ import annotations

import json
import os
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from edged import gguf
from edged.cli import main
from edged.config import Config, EmbeddingConfig, EngineConfig, ModelConfig, RagConfig, ServerConfig
from edged.kernels import load
from edged.rag.store import Binding, Store
from edged.service import doctor
from edged.service.board import THROTTLED
from edged.service.doctor import Finding, examine
from edged.store.catalogue import CATALOGUE
from tests import tiny
from tests.engine.test_threads import put, v2

CHECKOUT = Path(__file__).resolve().parents[2]


@pytest.fixture
def config(tmp_path: Path) -> Config:
    model = tiny.write(tmp_path / "model.gguf")
    return Config(ModelConfig(path=str(model)), server=ServerConfig(socket=str(tmp_path / "edged.sock")))


def found(check: str, config: Config, root: Path) -> list[Finding]:
    return [finding for finding in examine(config, str(root)) if finding.check == check]


def one(check: str, config: Config, root: Path) -> Finding:
    (finding,) = found(check, config, root)
    assert bool(finding.remedy) == (finding.status != "ok"), finding
    return finding


def test_a_good_machine_has_no_findings(config: Config, tmp_path: Path) -> None:
    assert {finding.status for finding in examine(config, str(tmp_path / "nothing"))} == {"ok"}


def test_i06_the_kernel_level_and_why(config: Config, tmp_path: Path) -> None:
    finding = one("processor", config, tmp_path)
    assert f"kernels {load.open().level.name} (" in finding.text
    named = replace(config, engine=EngineConfig(kernel_level=load.open().level.name))
    assert "engine.kernel_level asks for it" in one("processor", named, tmp_path).text
    wrong = one("processor", replace(config, engine=EngineConfig(kernel_level="x87")), tmp_path)
    assert wrong.status == "error" and "x87" in wrong.text


def test_i06_what_a_better_level_lacks(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a processor without the features of the better levels, they are named."""
    fitting = [level for level in load.LEVELS if level.family == load.open().level.family]
    lowest = fitting[-1]
    monkeypatch.setattr(load, "cpu_features", lambda: frozenset(lowest.features))
    text = one("processor", config, tmp_path).text
    assert f"kernels {lowest.name} (" in text
    for level in fitting[:-1]:
        assert f"{level.name} needs " in text


def test_threads_beyond_the_processors(config: Config, tmp_path: Path) -> None:
    many = replace(config, engine=EngineConfig(threads=255))
    assert [finding.status for finding in found("processor", many, tmp_path)] == ["ok", "warning"]


def test_i14_the_board(config: Config, tmp_path: Path) -> None:
    put(tmp_path, {THROTTLED: "0x50005\n", "sys/class/thermal/thermal_zone0/temp": "84000\n"})
    finding = one("board", config, tmp_path)
    assert finding.status == "warning"
    assert "under-voltage, throttled" in finding.text and "84 degrees" in finding.text


def test_a_model_that_is_not_there_is_told_once(config: Config, tmp_path: Path) -> None:
    missing = replace(config, model=ModelConfig(path=str(tmp_path / "none.gguf")))
    findings = list(examine(missing, str(tmp_path / "nothing")))
    assert [finding.check for finding in findings if finding.status != "ok"] == ["model"]


def test_a_model_of_the_catalogue_that_was_changed(config: Config, tmp_path: Path) -> None:
    path = tiny.write(tmp_path / CATALOGUE[0].file)
    finding = one("model", replace(config, model=ModelConfig(path=str(path))), tmp_path)
    assert finding.status == "error"
    assert finding.remedy == f"remove it and run: edged pull {CATALOGUE[0].name}"


def test_a_model_that_is_cut_off(config: Config, tmp_path: Path) -> None:
    path = Path(config.model.path)
    path.write_bytes(path.read_bytes()[:-100])
    assert one("model", config, tmp_path).status == "error"


def test_i11_memory(config: Config, tmp_path: Path) -> None:
    put(tmp_path, {"/proc/meminfo": "MemFree: 10 kB\nMemAvailable: 2000000 kB\n"})
    v2(tmp_path, "/edged.service", **{"edged.service": "max 100000"})
    group = "/sys/fs/cgroup/edged.service"
    put(tmp_path, {f"{group}/memory.max": "20000000\n", f"{group}/memory.current": "1000\n"})
    machine, limit = found("memory", config, tmp_path)
    assert machine.status == "ok" and "2048 MB free by MemAvailable" in machine.text
    assert limit.status == "error" and "20 MB free by memory.max of edged.service" in limit.text


def test_a_limit_of_locked_memory(config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda which: (65536, 65536))
    locked = replace(config, model=replace(config.model, mlock="required"))
    finding = one("memory", locked, tmp_path)
    assert finding.status == "error" and "LimitMEMLOCK=1M" in finding.remedy


def test_a_slow_disk(config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "SLOW", float("inf"))
    finding = one("storage", config, tmp_path)
    assert finding.status == "warning" and "MB/s" in finding.text


def test_the_socket(config: Config, tmp_path: Path) -> None:
    path = Path(config.server.socket)
    assert "no daemon has made it" in one("socket", config, tmp_path).text
    path.write_text("")
    assert one("socket", config, tmp_path).status == "error"
    path.unlink()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        assert one("socket", config, tmp_path).status == "ok"
    gone = replace(config, server=ServerConfig(socket=str(tmp_path / "gone" / "edged.sock")))
    assert one("socket", gone, tmp_path).status == "warning"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may open everything")
def test_the_socket_of_others(config: Config, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(config.server.socket)
        os.chmod(config.server.socket, 0)
        assert one("socket", config, tmp_path).status == "error"


def test_serial_adapters(config: Config, tmp_path: Path) -> None:
    put(tmp_path, {"/dev/serial/by-id/usb-A": "", "/dev/serial/by-id/usb-B": ""})
    assert [finding.text.split("/")[-1] for finding in found("serial", config, tmp_path)] == [
        "usb-A may be opened", "usb-B may be opened"
    ]  # fmt: skip


def test_the_unit(config: Config, tmp_path: Path) -> None:
    """The one of this release is hardened; one that lost a line is told of."""
    assert "systemd does not run here" in one("unit", config, tmp_path).text
    (tmp_path / "run/systemd/system").mkdir(parents=True)
    assert one("unit", config, tmp_path).status == "warning"
    text = (CHECKOUT / "systemd" / "edged.service").read_text()
    put(tmp_path, {"/etc/systemd/system/edged.service": text})
    assert one("unit", config, tmp_path).status == "ok"
    put(tmp_path, {"/etc/systemd/system/edged.service": text.replace("MemoryDenyWriteExecute=yes\n", "")})
    assert "lacks MemoryDenyWriteExecute=yes" in one("unit", config, tmp_path).text


def test_the_command(config: Config, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["doctor", "--model", config.model.path, "--socket", config.server.socket]
    assert main.run([*arguments, "--json"]) == 0
    findings = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {"processor", "board", "model", "storage", "socket", "unit"} <= {f["check"] for f in findings}
    Path(config.model.path).write_bytes(b"GGUF")
    assert main.run(arguments) == 1
    out = capsys.readouterr().out
    assert "error    model: " in out


def test_both_models_and_the_store(config: Config, tmp_path: Path) -> None:
    """Each is looked at; together they are weighed."""
    bert = tiny.write(tmp_path / "bert.gguf", "bert")
    both = replace(config, embedding=EmbeddingConfig(model=str(bert)), rag=RagConfig(store=str(tmp_path / "m.db")))
    assert [finding.status for finding in found("model", both, tmp_path)] == ["ok", "ok"]
    assert "edged ingest FOLDER makes one" in found("manuals", both, tmp_path)[-1].text
    with gguf.open(bert) as model:
        fingerprint = model.fingerprint().hex()
    store = Store(tmp_path / "m.db", create=True)
    store.bind(Binding("tiny", fingerprint, 64, "mean"))
    assert "0 documents, 0 chunks, whole" in found("manuals", both, tmp_path)[-1].text
    other = tiny.write(tmp_path / "other.gguf", "bert", seed=1)
    wrong = found("manuals", replace(both, embedding=EmbeddingConfig(model=str(other))), tmp_path)[-1]
    assert wrong.status == "error" and "another embedding model" in wrong.text
    (unasked,) = found("manuals", replace(both, embedding=EmbeddingConfig()), tmp_path)
    assert unasked.status == "warning" and "embedding.model" in unasked.remedy
    store.close()
    (tmp_path / "m.db").write_bytes(b"no store at all" * 100)
    assert found("manuals", both, tmp_path)[-1].status == "error"


def test_one_model_that_is_missing_hides_nothing_of_the_other(config: Config, tmp_path: Path) -> None:
    bert = tiny.write(tmp_path / "bert.gguf", "bert")
    config = replace(config, model=ModelConfig(path="/nowhere.gguf"), embedding=EmbeddingConfig(model=str(bert)))
    missing, there = found("model", config, tmp_path)
    assert missing.status == "error" and missing.text.startswith("model.path: ") and there.status == "ok"
    assert found("memory", config, Path("/")) and found("storage", config, tmp_path)


def test_an_embedding_model_where_one_that_generates_should_be(config: Config, tmp_path: Path) -> None:
    bert = tiny.write(tmp_path / "bert.gguf", "bert")
    wrong = one("model", replace(config, model=ModelConfig(path=str(bert))), tmp_path)
    assert wrong.status == "error" and "embedding.model" in wrong.remedy
    alone = replace(config, model=ModelConfig(), embedding=EmbeddingConfig(model=str(bert)))
    assert one("model", alone, tmp_path).status == "ok"
