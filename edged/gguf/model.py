"""An open model: its metadata and tensors over the mapped file or files. `open` is the way in."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from types import TracebackType
from typing import Any

import numpy as np

from edged.errors import LimitTooLow
from edged.gguf import memory
from edged.gguf.reader import Header, TensorInfo, parse
from edged.gguf.splits import check_set, part_paths
from edged.gguf.types import GGML_TYPES
from edged.gguf.values import KINDS, Scalar, StringArray, Value

_EMBEDDING, _OUTPUT = "token_embd.weight", "output.weight"  # gguf.md: standardized tensor names

SAMPLES = 256  # pieces of the weights that stand for them in a fingerprint
SAMPLE = 64  # bytes


class Model:
    """A model mapped read-only.

    Attributes: `path`; `meta`, values by key (numbers, bool, str; numeric arrays as numpy arrays and string arrays as
    StringArray, both over the map); `tensors` by name; `parts`, the mapped files (one unless the model is split);
    `headers`, one per part; `locked`, bytes that `lock` holds in memory.

    The addresses of `tensors` are good until `close`: whoever computes with them stops first. Arrays taken from `meta`
    or `tensor_bytes` stay good for as long as they live.
    """

    def __init__(self, path: str, parts: tuple[memory.FileMap, ...], headers: tuple[Header, ...]) -> None:
        self.path = path
        self.parts = parts
        self.headers = headers
        self.meta: Mapping[str, Value] = headers[0].meta
        self.tensors: dict[str, TensorInfo] = {}
        self.locked = 0
        for header in headers:
            self.tensors.update(header.tensors)

    @property
    def name(self) -> str:
        """general.name, "" where the file has none."""
        name = self.meta.get("general.name")
        return name if isinstance(name, str) else ""

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(part.size for part in self.parts)

    @property
    def n_params(self) -> int:
        """Weights of all tensors."""
        return sum(math.prod(tensor.shape) for tensor in self.tensors.values())

    def fingerprint(self) -> bytes:
        """SHA-256 of headers, sizes and SAMPLES pieces of the weights: tells files apart without reading them whole."""
        import hashlib  # only now: not needed for a first token

        digest = hashlib.sha256()
        for part, file in enumerate(self.parts):
            # a part may hold no tensors
            first = min((t.offset for t in self.tensors.values() if t.part == part), default=file.size)
            digest.update(f"{file.size}".encode())
            digest.update(file.data[:first].data)
            for at in range(first, file.size, max(SAMPLE, (file.size - first) // SAMPLES)):
                digest.update(file.data[at : at + SAMPLE].data)
        return digest.digest()

    def tensor_bytes(self, name: str) -> np.ndarray:
        """The bytes of one tensor: u8 (nbytes,), read-only, over the map. Raises KeyError."""
        tensor = self.tensors[name]
        return self.parts[tensor.part].data[tensor.offset : tensor.offset + tensor.nbytes]

    def check_unchanged(self) -> None:
        """Raise ModelChanged if a mapped file was changed or truncated in place. Cheap enough for every request."""
        for part in self.parts:
            part.check_unchanged()

    def replaced(self) -> bool:
        """Whether another model was installed under the same name; this one stays intact."""
        return any(part.replaced() for part in self.parts)

    def prefault(self) -> None:
        """Read all files ahead and map their pages; blocks without the GIL, for a thread of its own."""
        for part in self.parts:
            part.prefault()

    def lock(self, mode: str) -> int:
        """Lock weights in memory and return the bytes locked. Modes as in the configuration key model.mlock:

        off; hot: all tensors but the embedding rows, which are looked up one at a time (they count as hot where they
        are also the output layer); all: whole files; required: whole files, or fail.

        Reads what is not in memory yet. If the system's limit is too low nothing is locked: LimitTooLow for `required`,
        else one warning in the log.
        """
        if mode == "off":
            return 0
        if mode == "hot":
            cold = _EMBEDDING if _OUTPUT in self.tensors else None
            ranges = [(t.address, t.address + t.nbytes) for t in self.tensors.values() if t.name != cold]
        else:
            ranges = [(part.address, part.address + part.size) for part in self.parts]
        try:
            locked = memory.lock(ranges)  # whole pages
        except LimitTooLow as e:
            if mode == "required":
                raise
            import logging  # only now: not needed for a first token

            logging.getLogger(__name__).warning("%s: %s; the model runs unlocked", self.path, e)
            return 0
        self.locked = min(locked, self.size)
        return locked

    def close(self) -> None:
        """Let the files go. Idempotent."""
        for part in self.parts:
            part.close()

    def __enter__(self) -> Model:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def open(path: str | os.PathLike[str]) -> Model:
    """Map a GGUF model and read its header; any part of a split set opens the whole set.

    Nothing of the weights is read. Raises NotFound, BadModel (naming the file and the key or tensor) or LimitTooLow.
    """
    path = os.fspath(path)
    maps = [memory.FileMap(path)]
    try:
        headers = [parse(maps[0].data, path, maps[0].address)]
        paths = part_paths(path, headers[0])
        if paths is not None:
            given = paths.index(path)
            maps = [maps[0] if i == given else memory.FileMap(p) for i, p in enumerate(paths)]
            headers = [parse(m.data, p, m.address, part) for part, (m, p) in enumerate(zip(maps, paths, strict=True))]
            check_set(paths, headers)
        return Model(path, tuple(maps), tuple(headers))
    except BaseException:
        for opened in maps:
            opened.close()
        raise


def describe(model: Model) -> dict[str, Any]:
    """What a model consists of, as plain values ready for JSON: for `edged inspect`.

    Arrays are given by their element type, length and first values.
    """
    kinds = model.headers[0].kinds
    by_type: dict[str, list[int]] = {}
    for tensor in model.tensors.values():
        row = by_type.setdefault(GGML_TYPES[tensor.type_id].name, [0, 0])
        row[0] += 1
        row[1] += tensor.nbytes
    return {
        "path": model.path,
        "size": model.size,
        "files": [{"path": part.path, "size": part.size} for part in model.parts],
        "version": model.headers[0].version,
        "alignment": model.headers[0].alignment,
        "weights": model.n_params,
        "metadata": [_describe_value(key, KINDS[kinds[key]][0], value) for key, value in model.meta.items()],
        "tensors": [
            {
                "name": tensor.name,
                "type": GGML_TYPES[tensor.type_id].name,
                "shape": list(tensor.shape),
                "bytes": tensor.nbytes,
                "offset": tensor.offset,
                "file": tensor.part,
            }
            for tensor in model.tensors.values()
        ],
        "types": [
            {"type": name, "tensors": count, "bytes": nbytes}
            for name, (count, nbytes) in sorted(by_type.items(), key=lambda item: -item[1][1])
        ],
    }


def _describe_value(key: str, kind: str, value: Value) -> dict[str, Any]:
    if isinstance(value, np.ndarray):
        return {"key": key, "type": kind, "length": len(value), "first": [_plain(v) for v in value[:8].tolist()]}
    if isinstance(value, StringArray):
        return {"key": key, "type": kind, "length": len(value), "first": value[:8]}
    return {"key": key, "type": kind, "value": _plain(value)}


def _plain(value: Scalar) -> Scalar:
    """JSON has no NaN and no infinities: they become words."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
