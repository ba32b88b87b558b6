"""Checksums of the serial line.

`crc16` is the one that Modbus RTU uses and that most PLC libraries bring along: polynomial 0x8005 reflected, start
0xFFFF, no final xor; check value 0x4B37 for b"123456789". Source: Modbus over Serial Line V1.02, 6.2.2.
"""

from __future__ import annotations

from collections.abc import Iterator


def _table() -> tuple[int, ...]:
    rows = []
    for row in range(256):
        for _ in range(8):
            row = row >> 1 ^ (0xA001 if row & 1 else 0)
        rows.append(row)
    return tuple(rows)


_TABLE = _table()
_BACK = {row >> 8: at for at, row in enumerate(_TABLE)}
"""High byte of a row -> the row's number: no two rows share one, so a step can be undone."""


def crc16(data: bytes | bytearray | memoryview) -> int:
    """The CRC of `data`, 0 to 0xFFFF. It misses one in 65 536 of the damages that it is not sure to find."""
    crc, table = 0xFFFF, _TABLE
    for byte in data:
        crc = crc >> 8 ^ table[(crc ^ byte) & 0xFF]
    return crc


def crc16_starts(data: bytes | bytearray | memoryview) -> Iterator[int]:
    """The starts, first to last, from which `data` ends with the CRC (low byte first) of what lies between.

    One pass from the end: the only value that the rest of `data` takes to 0 is known at each byte.
    """
    starts = []
    crc = 0
    for at in range(len(data) - 1, -1, -1):
        row = _BACK[crc >> 8]
        crc = ((crc ^ _TABLE[row]) & 0xFF) << 8 | row ^ data[at]
        if crc == 0xFFFF and at + 2 <= len(data):
            starts.append(at)
    return reversed(starts)


def xor8(data: bytes | bytearray | memoryview) -> int:
    """All bytes xored, as NMEA 0183 has it. Two flips of the same bit pass unseen: unfit for a noisy line."""
    value = 0
    for byte in data:
        value ^= byte
    return value
