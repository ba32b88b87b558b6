"""Runs op cases on a kernel library with numpy and ctypes alone, so that it works where numba does not (emulated Arm).

A case is one OP record, one STATE record, the buffers they point to, and what the buffers hold afterwards.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from edged.kernels.table import OP, OP_BY_NAME, STATE


@dataclass
class Case:
    """One call of an op.

    fields: columns of the OP record, `i`/`f` entries as i0.., f0; a pointer column names its buffer.
    state: counts of the STATE record and arrays tokens, pos, seq, logit_rows.
    expected: buffer after the call by name; exact where `tolerance` has no entry for it, otherwise
    |got - expected| <= tolerance * max |expected|. Buffers without an entry must not change,
    except the `unchecked`. scratch: bytes per thread.
    """

    name: str
    op: str
    fields: dict[str, Any]
    state: dict[str, Any]
    buffers: dict[str, np.ndarray]
    expected: dict[str, np.ndarray]
    tolerance: dict[str, float] = field(default_factory=dict)
    scratch: int = 0
    unchecked: list[str] = field(default_factory=list)


def aligned(array: np.ndarray) -> np.ndarray:
    """A copy that starts at a multiple of 64 bytes."""
    raw = np.zeros(array.nbytes + 64, np.uint8)
    skip = -raw.__array_interface__["data"][0] % 64
    copy = raw[skip : skip + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def address(array: np.ndarray) -> int:
    return int(array.__array_interface__["data"][0])


def run(library: Any, case: Case, threads: int = 1) -> dict[str, np.ndarray]:
    """Do the work of every thread in turn; returns the buffers afterwards."""
    buffers = {name: aligned(array) for name, array in case.buffers.items()}
    op = np.zeros(1, OP)
    op["op"] = OP_BY_NAME[case.op].code
    for name, value in case.fields.items():
        if isinstance(value, str):
            op[name] = address(buffers[value])
        elif len(name) == 2:
            op[name[0]][0, int(name[1])] = value
        else:
            op[name] = value
    state, keep = np.zeros(1, STATE), []
    scratch, stop = aligned(np.zeros(threads * max(64, case.scratch), np.uint8)), np.zeros(1, np.int32)
    for name, value in {**case.state, "scratch": scratch, "stop": stop}.items():
        if isinstance(value, np.ndarray):
            keep.append(value)
            value = address(value)
        state[name] = value
    state["scratch_stride"] = max(64, case.scratch)
    phases = [f"op_{case.op}"] + ["op_attention_merge"] * (case.op == "attention")
    for phase in phases:
        for thread in range(threads):
            getattr(library, phase)(address(op), address(state), thread, threads)
    return buffers


def differences(case: Case, got: dict[str, np.ndarray]) -> list[str]:
    """What is wrong with the buffers after the call, one line each."""
    wrong = []
    for name, before in case.buffers.items():
        if name in case.unchecked:
            continue
        want = case.expected.get(name, before)
        limit = case.tolerance.get(name)
        if limit is None:
            if got[name].tobytes() != want.tobytes():
                where = np.flatnonzero(got[name].view(np.uint8) != np.ascontiguousarray(want).view(np.uint8))
                wrong.append(f"{case.name}: {name} differs in {len(where)} bytes, the first at {where[0]}")
            continue
        finite = np.isfinite(want)
        if not np.array_equal(finite, np.isfinite(got[name])):
            wrong.append(f"{case.name}: {name} is finite elsewhere than expected")
            continue
        error = np.abs(got[name][finite].astype(np.float64) - want[finite]).max(initial=0.0)
        size = np.abs(want[finite].astype(np.float64)).max(initial=0.0)
        if not error <= limit * size:
            wrong.append(f"{case.name}: {name} is off by {error:.3g}, allowed {limit:.1g} of {size:.3g}")
    return wrong


def save(path: str, cases: list[Case]) -> None:
    """Write cases to an .npz file."""
    arrays: dict[str, np.ndarray] = {}
    notes = []
    for n, case in enumerate(cases):
        plain = {"name": case.name, "op": case.op, "fields": case.fields, "tolerance": case.tolerance}
        notes.append({**plain, "scratch": case.scratch, "unchecked": case.unchecked, "state": {}})
        for key, value in case.state.items():
            if isinstance(value, np.ndarray):
                arrays[f"{n}/state/{key}"] = value
            else:
                notes[-1]["state"][key] = value
        for part in ("buffers", "expected"):
            arrays.update({f"{n}/{part}/{key}": value for key, value in getattr(case, part).items()})
    np.savez(path, notes=np.array(json.dumps(notes)), **arrays)


def load(path: str) -> list[Case]:
    """Read what `save` wrote."""
    file = np.load(path)
    cases = []
    for n, note in enumerate(json.loads(str(file["notes"]))):
        parts: dict[str, dict[str, Any]] = {"state": note.pop("state"), "buffers": {}, "expected": {}}
        for key in file.files:
            index, _, rest = key.partition("/")
            if index == str(n):
                part, _, name = rest.partition("/")
                parts[part][name] = file[key]
        cases.append(Case(**note, **parts))
    return cases
