"""Kept prefixes on disk, so that a restart does not compute them again: written when an engine closes, read when it
opens. Only `tile` blocks (`prefix`) are written: they equal, bit for bit, what would be computed.

    0    8   magic "EDGEDKV1"
    8   32   fingerprint: SHA-256 over the model, the kernels and the shape of the cache
    40   4   n: u32, number of nodes, a parent before its children
    44   4   CRC-32 of all that follows (zlib)
    48       n times: parent i32 (-1: none), tokens i32 (KV_BLOCK,)
             n times: one block of each group, in the order of the groups

A file of another fingerprint, torn or changed, is ignored with one line in the log. Little-endian.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import struct
import zlib
from pathlib import Path

import numpy as np

from edged.engine.kvcache import KVCache
from edged.gguf import Model
from edged.kernels.table import KV_BLOCK

MAGIC = b"EDGEDKV1"
HEAD = struct.Struct("<8s32sII")
NODE = np.dtype([("parent", "<i4"), ("tokens", "<i4", (KV_BLOCK,))])

log = logging.getLogger(__name__)


def check(path: Path) -> None:
    """Say now, not months later at the stop, that the file could not be written."""
    if not os.access(path.parent, os.W_OK | os.X_OK):
        why = "may not be written" if path.parent.is_dir() else "is not there"
        log.warning("prompt cache %s cannot be kept: the folder %s", path, why)


def fingerprint(model: Model, library: str, cache: KVCache) -> bytes:
    """What a block's bits depend on: SHA-256. library: path of the kernels."""
    digest = hashlib.sha256(Path(library).read_bytes())
    digest.update(repr([(pool.group, pool.stride, KV_BLOCK) for pool in cache.pools]).encode())
    digest.update(model.fingerprint())
    return digest.digest()


def write(path: Path, mark: bytes, cache: KVCache) -> None:
    """Write what the cache keeps; nothing if that is nothing. mark: the fingerprint. A failure costs a line in the log.

    The file comes into being by rename: it is there as a whole or not at all.
    """
    nodes = cache.kept_tiles()
    if not nodes:
        return
    places = {id(node): i for i, node in enumerate(nodes)}
    table = np.zeros(len(nodes), NODE)
    table["parent"] = [places.get(id(node.parent), -1) for node in nodes]
    table["tokens"] = [node.key[0] for node in nodes]
    pieces = [table.view(np.uint8)]
    pieces += [pool.bytes_of(block) for node in nodes for pool, block in zip(cache.pools, node.blocks, strict=True)]
    crc = 0
    for piece in pieces:
        crc = zlib.crc32(piece.data, crc)
    new = path.with_name(path.name + ".new")  # one name: what a killed daemon left is written over
    try:
        # others may not read what was asked
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as file:
            file.write(HEAD.pack(MAGIC, mark, len(nodes), crc))
            for piece in pieces:
                file.write(piece.data)
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
    except OSError as error:
        log.warning("prompt cache %s is not written: %s", path, error.strerror or error)
        with contextlib.suppress(OSError):
            new.unlink()


def read(path: Path, mark: bytes, cache: KVCache) -> None:
    """Have the cache keep what the file holds, as far as it may. A file that is not there is nothing to speak of."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return
    except OSError as error:
        log.warning("prompt cache %s is not read: %s", path, error.strerror or error)
        return
    fault = _fault(data, mark, cache)
    if fault:
        log.warning("prompt cache %s is ignored: %s", path, fault)
        return
    n = HEAD.unpack_from(data)[2]
    table = np.frombuffer(data, NODE, n, HEAD.size)
    blocks = np.frombuffer(data, np.uint8, offset=HEAD.size + table.nbytes).reshape(n, -1)
    cache.keep(table["parent"].tolist(), table["tokens"].tolist(), blocks)


def _fault(data: bytes, mark: bytes, cache: KVCache) -> str:
    """Why the file is of no use; empty if it is."""
    if len(data) < HEAD.size:
        return f"it has {len(data)} bytes"
    magic, theirs, n, crc = HEAD.unpack_from(data)
    if magic != MAGIC:
        return "it is no prompt cache of this version"
    if theirs != mark:
        return "it is of another model, build or setting"
    size = HEAD.size + n * (NODE.itemsize + sum(pool.stride for pool in cache.pools))
    if len(data) != size:
        return f"it has {len(data)} bytes instead of {size}"
    return "" if zlib.crc32(memoryview(data)[HEAD.size :]) == crc else "its checksum is wrong"
