"""What `edged doctor` looks at: one small function per question, each with its finding and the remedy.

    for finding in examine(config): ...

A check is a row of CHECKS; it yields findings and never raises EdgedError: what is wrong is a finding.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import resource
import shutil
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Literal, NamedTuple

from edged import gguf, models
from edged.config import Config
from edged.engine import room
from edged.engine.threads import worker_count
from edged.errors import EdgedError, NotFound
from edged.kernels import load
from edged.kernels.table import LEVELS
from edged.service.board import Board
from edged.store import folder
from edged.store.catalogue import CATALOGUE
from edged.store.download import sha256_of

SAMPLE = 64 << 20  # bytes of the model file read to measure the disk
SLOW = 20e6  # bytes per second from which on a disk is slow: a class 4 card has 10 to 20
NEEDED_FILES = 64  # descriptors beside the connections
UNITS = ("etc/systemd/system", "run/systemd/system", "usr/local/lib/systemd/system", "usr/lib/systemd/system",
         "lib/systemd/system")  # fmt: skip


class Finding(NamedTuple):
    """`remedy` is empty where nothing is to be done."""

    check: str
    status: Literal["ok", "warning", "error"]
    text: str
    remedy: str = ""


def examine(config: Config, root: str = "/") -> Iterator[Finding]:
    """Every finding, one check after the other. root: prefix of /proc, /sys and the unit folders, for tests."""
    for check in CHECKS:
        try:
            yield from check(config, Path(root))
        except EdgedError as error:
            yield Finding(check.__name__, "error", error.message, error.hint)


def processor(config: Config, root: Path) -> Iterator[Finding]:
    """The kernel level in force, and why none that is better."""
    chosen = load.open(config.engine.kernel_level or None)
    features = load.cpu_features()
    lacking = [f"{level.name} needs {', '.join(sorted(set(level.features) - features))}"
               for level in LEVELS if level.family == chosen.level.family and not features.issuperset(level.features)]
    why = "; ".join(lacking) or "the best level there is"
    if config.engine.kernel_level:
        why = "engine.kernel_level asks for it"
    threads = config.engine.threads or worker_count(str(root).rstrip("/"))
    yield Finding("processor", "ok", f"{platform.machine()}, kernels {chosen.level.name} ({why}), {threads} threads of "
                                     f"{os.cpu_count()} processors")  # fmt: skip
    if threads > len(os.sched_getaffinity(0)):
        yield Finding("processor", "warning", f"engine.threads is {threads}, {len(os.sched_getaffinity(0))} processors "
                      "are allowed", "set engine.threads to 0")  # fmt: skip


def board(config: Config, root: Path) -> Iterator[Finding]:
    """Heat and voltage."""
    state = Board(root).state()
    heat = "no temperature sensor" if state.temperature is None else f"{state.temperature:.0f} degrees Celsius"
    words = state.words()
    if words:
        yield Finding("board", "warning", f"{', '.join(words)}; {heat}",
                      "use the board's own power supply and a heat sink")  # fmt: skip
    else:
        yield Finding("board", "ok", f"{heat}, page size {os.sysconf('SC_PAGE_SIZE') // 1024} KiB")


def model(config: Config, root: Path) -> Iterator[Finding]:
    """The model files: there, readable, whole, and of the kind that is asked for."""
    for name, file in _models(config):
        try:
            path = folder.find(file)
            with gguf.open(path) as opened:
                text = f"{path}: {opened.size / 1e6:.0f} MB, {len(opened.tensors)} tensors"
                encoder = models.graph(opened.meta, opened.tensors).pooling is not None
        except EdgedError as error:
            yield Finding("model", "error", f"{name}: {error.message}", error.hint)
            continue
        if encoder and name == "model.path":
            yield Finding("model", "error", f"{path} makes embeddings, no text", "name it in embedding.model")
            continue
        entry = next((e for e in CATALOGUE if e.file == path.name), None)
        if entry is None:
            yield Finding("model", "ok", f"{text}; not of the catalogue, so there is no checksum to compare")
        elif sha256_of(path) == entry.sha256:
            yield Finding("model", "ok", f"{text}, SHA-256 as in the catalogue")
        else:
            yield Finding("model", "error", f"{path}: its SHA-256 is not that of the catalogue",
                          f"remove it and run: edged pull {entry.name}")  # fmt: skip


def _models(config: Config) -> Iterator[tuple[str, str]]:
    """The settings that name a model the daemon would load, and what they name."""
    if config.model.path or not config.embedding.model:
        yield "model.path", config.model.path
    if config.embedding.model:
        yield "embedding.model", config.embedding.model


def manuals(config: Config, root: Path) -> Iterator[Finding]:
    """The store of manuals: whole, filled by the embedding model that is configured; a reader for PDF."""
    path = folder.manuals_file(config.rag.store)
    if not config.embedding.model:
        if path.exists():
            yield Finding("manuals", "warning", f"{path} is there, but nobody answers from it", "set embedding.model")
        return
    if importlib.util.find_spec("pypdfium2") is None:
        yield Finding("manuals", "warning", "manuals in PDF cannot be read", "pip install 'pypdfium2>=5'")

    from edged.rag.store import Store

    try:
        store = Store(path)
    except NotFound as error:
        yield Finding("manuals", "ok", f"{error.message}; {error.hint}")
        return
    try:
        store.check()
        counts, known = store.stats(), store.binding()
    finally:
        store.close()
    with gguf.open(folder.find(config.embedding.model)) as opened:
        same = known is None or known.fingerprint == opened.fingerprint().hex()
    if same:
        text = f"{path}: {counts['documents']} documents, {counts['chunks']} chunks, whole"
        yield Finding("manuals", "ok", text)
    else:
        yield Finding("manuals", "error", f"{path} was filled by another embedding model, {known}",
                      "set embedding.model to it, or ingest the manuals into a new store")  # fmt: skip


def memory(config: Config, root: Path) -> Iterator[Finding]:
    """Free memory against the weights, and the limit of locked memory where it matters."""
    size = 0
    for _, file in _models(config):
        with suppress(EdgedError), gguf.open(folder.find(file)) as opened:  # `model` tells
            size += opened.size
    if not size:
        return
    need = size + room.PROGRAM
    for free, what in room.limits(str(root).rstrip("/")):
        text = f"{free / 1e6:.0f} MB free by {what}, {need / 1e6:.0f} MB are needed beside the KV cache"
        if free >= need:
            yield Finding("memory", "ok", text)
        else:
            yield Finding("memory", "error", text, "take a smaller model, or free some memory")
    soft = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    if config.model.mlock != "off" and soft != resource.RLIM_INFINITY and soft < size:
        yield Finding("memory", "error" if config.model.mlock == "required" else "warning",
                      f"model.mlock is {config.model.mlock}, but {soft} bytes may be locked",
                      f"put LimitMEMLOCK={-(-size >> 20)}M under [Service] in the unit file")  # fmt: skip


def storage(config: Config, root: Path) -> Iterator[Finding]:
    """How fast the model comes from its disk, and whether there is room on it."""
    path = None
    for _, name in _models(config):
        with suppress(NotFound):  # `model` tells
            path = path or folder.find(name)
    if path is None:
        return
    with path.open("rb", buffering=0) as file:
        size = min(SAMPLE, os.fstat(file.fileno()).st_size)
        os.posix_fadvise(file.fileno(), 0, size, os.POSIX_FADV_DONTNEED)
        buffer, done, began = bytearray(1 << 20), 0, time.perf_counter()
        while done < size:
            n = file.readinto(buffer)
            if not n:
                break
            done += n
        speed = done / max(time.perf_counter() - began, 1e-9)
    whole = path.stat().st_size
    text = f"{speed / 1e6:.0f} MB/s from {path.parent}: the model takes {whole / speed:.1f} s after a cold start"
    if speed < SLOW:
        yield Finding("storage", "warning", text, "use a faster card, or an SSD")
    else:
        yield Finding("storage", "ok", text)
    free = shutil.disk_usage(path.parent).free
    if free < 100e6:
        yield Finding("storage", "warning", f"{free / 1e6:.0f} MB are free in {path.parent}", "free some space")


def socket(config: Config, root: Path) -> Iterator[Finding]:
    """The Unix socket: its folder, who may connect, who listens."""
    path = Path(config.server.socket)
    if not path.parent.is_dir():
        yield Finding("socket", "warning", f"{path.parent} is not there",
                      "the unit makes it (RuntimeDirectory=edged); without systemd set server.socket")  # fmt: skip
    elif not path.exists():
        text = f"{path}: no daemon has made it"
        if os.access(path.parent, os.W_OK):
            yield Finding("socket", "ok", text)
        else:
            yield Finding("socket", "warning", f"{text}, and this user may not write {path.parent}",
                          "start the unit, or set server.socket")  # fmt: skip
    elif not stat.S_ISSOCK(path.stat().st_mode):
        yield Finding("socket", "error", f"{path} is no socket", "remove it, or set server.socket")
    elif not os.access(path, os.W_OK):
        yield Finding("socket", "error", f"this user may not connect to {path}",
                      "add the user to the socket's group (server.group), or set server.mode")  # fmt: skip
    else:
        yield Finding("socket", "ok", f"{path} may be connected to")
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    wanted = config.server.max_connections + NEEDED_FILES
    if hard != resource.RLIM_INFINITY and hard < wanted:
        yield Finding("socket", "warning", f"server.max_connections needs {wanted} open files, {hard} are allowed",
                      "raise LimitNOFILE (ulimit -Hn)")  # fmt: skip


def serial_ports(config: Config, root: Path) -> Iterator[Finding]:
    """Serial adapters that are plugged in, and whether this user may open them."""
    for link in sorted((root / "dev/serial/by-id").glob("*")):
        if os.access(link, os.R_OK | os.W_OK):
            yield Finding("serial", "ok", f"{link} may be opened")
        else:
            yield Finding("serial", "warning", f"this user may not open {link}",
                          "add the user to the group dialout; in the unit: SupplementaryGroups=dialout")  # fmt: skip


def unit(config: Config, root: Path) -> Iterator[Finding]:
    """The systemd unit: there, and hardened."""
    if not (root / "run/systemd/system").is_dir():
        yield Finding("unit", "ok", "systemd does not run here")
        return
    found = next((p for p in (root / name / "edged.service" for name in UNITS) if p.is_file()), None)
    if found is None:
        yield Finding("unit", "warning", "edged.service is not installed", "README.md, Run it as a service")
        return
    lines = {line.strip() for line in found.read_text("utf-8", "replace").splitlines()}
    wanted = ("Type=notify", "NoNewPrivileges=yes", "ProtectSystem=strict", "MemoryDenyWriteExecute=yes")
    missing = [line for line in wanted if line not in lines]
    if missing:
        yield Finding("unit", "warning", f"{found} lacks {', '.join(missing)}", "take the unit file of this release")
    else:
        yield Finding("unit", "ok", f"{found} is hardened")


CHECKS: tuple[Callable[[Config, Path], Iterator[Finding]], ...] = (
    processor, board, model, manuals, memory, storage, socket, serial_ports, unit,
)  # fmt: skip
