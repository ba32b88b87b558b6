"""pymodbus as the master, pyserial under it, a pty as the line."""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from pymodbus.client import ModbusSerialClient

from edged.protocol.modbus import ILLEGAL_ADDRESS, ModbusSlave, Read, Request, Write

SILENCE = 0.02


@dataclass
class Line:
    """A slave with 200 registers at the far end of a pty; `garbage` comes ahead of each request."""

    registers: list[int] = field(default_factory=lambda: [0] * 200)
    garbage: bytes = b""
    port: str = ""

    def serve(self, end: int, stop: threading.Event) -> None:
        slave = ModbusSlave(9)
        while not stop.is_set():
            if select.select([end], [], [], SILENCE)[0]:
                requests = slave.feed(self.garbage + os.read(end, 512))
            else:
                requests = slave.silence()
            for request in requests:
                os.write(end, self.answer(slave, request))

    def answer(self, slave: ModbusSlave, request: Request) -> bytes:
        if isinstance(request, Read) and request.address + request.count <= len(self.registers):
            return slave.values(request, self.registers[request.address : request.address + request.count])
        if isinstance(request, Write) and request.address + len(request.values) <= len(self.registers):
            self.registers[request.address : request.address + len(request.values)] = request.values
            return slave.written(request)
        return slave.exception(request, ILLEGAL_ADDRESS)


@pytest.fixture
def line() -> Iterator[Line]:
    ours, theirs = os.openpty()
    made, stop = Line(port=os.ttyname(theirs)), threading.Event()
    thread = threading.Thread(target=made.serve, args=(ours, stop))
    thread.start()
    yield made
    stop.set()
    thread.join()
    os.close(ours)
    os.close(theirs)


@pytest.mark.parametrize(
    "garbage",
    [b"", b"\xff\xfe\x80\x00", bytes.fromhex("09 10 00 00 00 10 20 00"), bytes.fromhex("02 03 00 00 00 02 c4 38")],
    ids=["none", "noise", "torn write", "other unit"],
)
def test_a_master_reads_and_writes(line: Line, garbage: bytes) -> None:
    line.garbage = garbage
    with ModbusSerialClient(line.port, baudrate=115200, timeout=2, retries=0) as master:
        assert not master.write_registers(10, [1, 2, 0xFFFF], device_id=9).isError()
        assert not master.write_register(20, 7, device_id=9).isError()
        assert master.read_holding_registers(10, count=3, device_id=9).registers == [1, 2, 0xFFFF]
        assert master.read_input_registers(20, count=1, device_id=9).registers == [7]
        assert master.read_holding_registers(199, count=2, device_id=9).exception_code == ILLEGAL_ADDRESS
