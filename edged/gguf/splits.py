"""Models in several files, as llama.cpp's gguf-split writes them: name-00001-of-00003.gguf and so on.

Part 1 holds the metadata, every part its own tensors. File names count from 1, the key split.no counts from 0.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from edged.errors import BadModel
from edged.gguf.reader import Header

MAX_PARTS = 1024  # 64 GB models in files of 1 GB have a tenth of that; a process may open about as many files
_NAME = r"(?P<prefix>.*)-(?P<no>\d{5})-of-(?P<count>\d{5})\.gguf"


def part_paths(path: str, header: Header) -> list[str] | None:
    """The paths of all parts of the model whose file `path` has this header; None if it is one file.

    Raises BadModel if the set cannot be named or a part is missing.
    """
    count = _number(path, header, "split.count", 1)
    if count <= 1:
        return None
    no = _number(path, header, "split.no", 0)
    if count > MAX_PARTS or no >= count:
        raise BadModel(f"{path}: claims to be part {no + 1} of {count}; at most {MAX_PARTS} parts are accepted")
    folder, name = os.path.split(path)
    match = re.fullmatch(_NAME, name)
    if not match or (int(match["no"]), int(match["count"])) != (no + 1, count):
        prefix = match["prefix"] if match else name.removesuffix(".gguf")
        raise BadModel(
            f"{path}: this is part {no + 1} of {count}, but its name says otherwise",
            hint=f"rename it to {_part_name(prefix, no, count)}, with the other parts beside it",
        )
    paths = [os.path.join(folder, _part_name(match["prefix"], i, count)) for i in range(count)]
    missing = [os.path.basename(p) for p in paths if not os.path.exists(p)]
    if missing:
        shown = ", ".join(missing[:4]) + (f" and {len(missing) - 4} more" if len(missing) > 4 else "")
        raise BadModel(f"{path}: part {no + 1} of {count}; missing beside it: {shown}", hint="fetch the missing parts")
    return paths


def check_set(paths: Sequence[str], headers: Sequence[Header]) -> None:
    """Whether the parts belong together and are complete. Raises BadModel naming the file or the tensor."""
    count = len(paths)
    seen: dict[str, str] = {}
    for i, (path, header) in enumerate(zip(paths, headers, strict=True)):
        no, says = _number(path, header, "split.no", 0), _number(path, header, "split.count", 1)
        if (no, says) != (i, count):
            raise BadModel(f"{path}: is part {no + 1} of {says}, expected part {i + 1} of {count}")
        for name in header.tensors:
            if name in seen:
                raise BadModel(f"{path}: tensor {name!a} is also in {os.path.basename(seen[name])}")
            seen[name] = path
    total = _number(paths[0], headers[0], "split.tensors.count", len(seen))
    if total != len(seen):
        raise BadModel(f"{paths[0]}: the {count} parts hold {len(seen)} tensors, split.tensors.count says {total}")


def _part_name(prefix: str, no: int, count: int) -> str:
    return f"{prefix}-{no + 1:05}-of-{count:05}.gguf"


def _number(path: str, header: Header, key: str, default: int) -> int:
    value = header.meta.get(key, default)
    if type(value) is not int or value < 0:
        raise BadModel(f"{path}: key {key!r} must be a number >= 0")
    return value
