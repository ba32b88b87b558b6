"""As much of ELF64 as it takes to look into a kernel library: symbols, load segments, machine code.

Source: System V ABI, chapters 4 and 5, and its AMD64 and AArch64 supplements (both little-endian).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

_PT_LOAD, _SHT_DYNSYM, _SHF_EXECINSTR = 1, 11, 4
_MACHINES = {62: "x86_64", 183: "aarch64"}


@dataclass(frozen=True)
class Elf:
    """One shared library. defined, undefined: dynamic symbols; alignments: of the load segments; text: its code."""

    machine: str
    defined: frozenset[str]
    undefined: frozenset[str]
    alignments: tuple[int, ...]
    text: bytes


def read(path: Path) -> Elf:
    """Parse a little-endian ELF64 file."""
    data = path.read_bytes()
    if data[:6] != b"\x7fELF\x02\x01":
        raise ValueError(f"{path} is not a little-endian ELF64 file")
    (machine,) = struct.unpack_from("<H", data, 18)
    program, sections = struct.unpack_from("<QQ", data, 32)
    program_size, program_count, section_size, section_count = struct.unpack_from("<4H", data, 54)
    alignments = []
    for i in range(program_count):
        kind, *_, alignment = struct.unpack_from("<IIQQQQQQ", data, program + i * program_size)
        if kind == _PT_LOAD:
            alignments.append(alignment)
    headers = [struct.unpack_from("<IIQQQQIIQQ", data, sections + i * section_size) for i in range(section_count)]
    text = b""
    names: dict[bool, set[str]] = {True: set(), False: set()}
    for _, kind, flags, _, offset, size, link, *_ in headers:
        if flags & _SHF_EXECINSTR:
            text += data[offset : offset + size]
        if kind == _SHT_DYNSYM:
            strings = headers[link][4]
            for at in range(offset + 24, offset + size, 24):  # the first symbol is null
                name, _, _, section, _, _ = struct.unpack_from("<IBBHQQ", data, at)
                start = strings + name
                names[section != 0].add(data[start : data.index(0, start)].decode())
    return Elf(_MACHINES[machine], frozenset(names[True]), frozenset(names[False]), tuple(alignments), text)
