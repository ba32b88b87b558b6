"""Compile the kernels ahead of time: one shared library per CPU level.

    python -m edged.kernels.build [--family x86_64|aarch64|all] [--level L] [--out DIR] [--force]

Numba's front end turns the kernel bodies, specialised for one level, into LLVM IR; the level's primitives are linked
in; LLVM optimises and emits an object; `link.py` makes `libedged_<level>.so` of it. A library whose sources have not
changed is kept (its `.stamp` file holds their hash).
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import os
import platform
import re
import subprocess
import sys
from pathlib import Path

import llvmlite
import llvmlite.binding as llvm
import numba

from edged.kernels import elf, front, link
from edged.kernels.export import KERNELS, Kernel
from edged.kernels.levels import TARGETS, Target
from edged.kernels.simd import llvm_type
from edged.kernels.table import ABI, LEVELS, TYPES
from edged.kernels.types import codebooks

ROOT = Path(__file__).resolve().parent
OUT = ROOT / "_built"

DESCRIPTION = ("edged_abi", "edged_signatures")  # data symbols, read by load.py
LIBC = {"memcpy", "memset", "sched_yield", "syscall"}  # all that a library may need from outside
PAGE = 16384  # boards run kernels with pages up to this size: segments must be aligned to it


def load_kernels() -> None:
    """Import every module that registers kernels: one per tensor type, one per op, the interpreter."""
    names = [f"types.{t.name}" for t in TYPES]
    names += sorted(f"ops.{path.stem}" for path in (ROOT / "ops").glob("*.py") if path.stem != "__init__")
    names += ["program_native"] if (ROOT / "program_native.py").exists() else []
    for name in names:
        importlib.import_module(f"edged.kernels.{name}")


def wrapper(kernel: Kernel) -> str:
    """IR of the C function `kernel.name`, which calls its body (result and error slots by pointer)."""
    name = front.BODY + kernel.name
    result = str(llvm_type(kernel.result)).replace("i8*", "ptr")
    types = [str(llvm_type(t)).replace("i8*", "ptr") for t in kernel.arguments]
    arguments = ", ".join(f"{t} %a{i}" for i, t in enumerate(types))
    slot = "ptr" if result == "void" else result
    back = "ret void" if result == "void" else f"%v = load {result}, ptr %r\n  ret {result} %v"
    return (
        f'declare i32 @"{name}"({", ".join(["ptr", "ptr", *types])})\n'
        f"define {result} @{kernel.name}({arguments}) nounwind {{\n"
        f"  %r = alloca {slot}\n  %e = alloca ptr\n"
        f'  %s = call i32 @"{name}"({", ".join(["ptr %r", "ptr %e"] + ([arguments] if types else []))})\n'
        f"  {back}\n}}\n"
    )


def description(kernels: list[Kernel]) -> str:
    """IR of the data by which a library tells what it is: its ABI and the signatures of its functions."""
    code = {"ptr": "p", "int64": "i", "int32": "w", "float32": "f", "none": ""}
    shown = [k for k in kernels if not k.internal]
    lines = [f"{k.name} {''.join(code[t.name] for t in k.arguments)}>{code[k.result.name]}" for k in shown]
    text = "\\0A".join(lines) + "\\00"
    size = len(text) - 2 * text.count("\\")
    return f'@edged_abi = constant i32 {ABI}\n@edged_signatures = constant [{size} x i8] c"{text}"\n'


def optimise(target: Target, bodies: list[str], kernels: list[Kernel]) -> tuple[bytes, str]:
    """Link the bodies and the level's primitives, and compile. Returns the object and the assembly text."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    module = llvm.parse_assembly(description(kernels))
    for kernel, body in zip(kernels, bodies, strict=True):
        module.link_in(llvm.parse_assembly(body))
        module.link_in(llvm.parse_assembly(wrapper(kernel)))
    module.link_in(llvm.parse_assembly(target.primitives))
    module.link_in(llvm.parse_assembly(codebooks.primitives()))
    machine = llvm.Target.from_triple(target.triple).create_target_machine(
        cpu=target.cpu, features=target.features, opt=3, reloc="pic", codemodel="small"
    )
    module.triple = target.triple
    module.data_layout = str(machine.target_data)
    symbols = {k.name for k in kernels if not k.internal}
    for function in module.functions:
        if function.is_declaration:
            continue
        if function.name not in symbols:
            function.linkage = "internal"
        if function.name not in {k.name for k in kernels}:
            function.add_function_attribute("alwaysinline")
    for variable in module.global_variables:
        if not variable.is_declaration and variable.name not in DESCRIPTION:
            variable.linkage = "internal"
    module.verify()
    # The kernels are vector code already; LLVM's own vectorisers would only change rounding order or code size.
    options = llvm.create_pipeline_tuning_options(speed_level=3)
    options.loop_vectorization = options.slp_vectorization = options.loop_interleaving = False
    passes = llvm.create_pass_builder(machine, options)
    passes.getModulePassManager().run(module, passes)
    return machine.emit_object(module), machine.emit_assembly(module)


def check(library: elf.Elf, target: Target, assembly: str) -> None:
    """Refuse a library that would not load or run on every processor of its level."""
    strangers = library.undefined - LIBC
    if strangers:
        raise RuntimeError(f"{target.level.name}: undefined symbols {', '.join(sorted(strangers))}")
    if min(library.alignments) < PAGE:
        raise RuntimeError(f"{target.level.name}: a segment is aligned to {min(library.alignments)} bytes")
    if target.level.name == "aarch64_neon" and re.search(r"\t[su]dot\t", assembly):
        raise RuntimeError("aarch64_neon: a dot-product instruction, which Cortex-A72 does not have")


def source_hash() -> str:
    """Hash of everything a library is made of."""
    digest = hashlib.sha256(f"{numba.__version__} {llvmlite.__version__}".encode())
    for path in sorted(ROOT.rglob("*.py")):
        digest.update(path.relative_to(ROOT).as_posix().encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def library_path(level: str, out: Path = OUT) -> Path:
    return out / f"libedged_{level}.so"


def is_current(path: Path, digest: str) -> bool:
    """Whether the library at `path` was made of the sources with this hash."""
    stamp = path.with_suffix(".stamp")
    return path.exists() and stamp.exists() and stamp.read_text() == digest


def build(target: Target, path: Path, *, force: bool = False, only: str = "") -> bool:
    """Make the library of one level at `path`. Returns False when it is up to date.

    only: a package of kernels, `edged.kernels.types` say, to build a library without the rest.
    """
    digest = source_hash()
    if not force and is_current(path, digest):
        return False
    load_kernels()
    kernels = [k for k in KERNELS.values() if k.function.__module__.startswith(only)]
    bodies = front.compile_bodies(kernels, target.values(), OUT / "ir")
    code, assembly = optimise(target, bodies, kernels)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_suffix(".s").write_text(assembly)
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    link.link(code, temporary, target.triple.partition("-")[0], soname=path.name)
    check(elf.read(temporary), target, assembly)
    temporary.replace(path)
    path.with_suffix(".stamp").write_text(digest)
    return True


def main(arguments: list[str] | None = None) -> int:
    host = "aarch64" if platform.machine() in ("aarch64", "arm64") else "x86_64"
    parser = argparse.ArgumentParser(prog="python -m edged.kernels.build", description="Build the kernel libraries.")
    parser.add_argument("--family", choices=["x86_64", "aarch64", "all"], default=host, help="default: this machine's")
    parser.add_argument("--level", choices=[level.name for level in LEVELS], help="only this level, of any family")
    parser.add_argument("--out", type=Path, default=OUT, help="folder of the libraries (default: %(default)s)")
    parser.add_argument("--force", action="store_true", help="build even if nothing has changed")
    args = parser.parse_args(arguments)
    if args.level:
        path = library_path(args.level, args.out)
        built = build(TARGETS[args.level], path, force=args.force)
        print(f"{path}: {path.stat().st_size} bytes" if built else f"{path}: up to date")
        return 0
    levels = [level.name for level in LEVELS if args.family in (level.family, "all")]
    digest = source_hash()
    stale = [name for name in levels if args.force or not is_current(library_path(name, args.out), digest)]
    if stale:
        load_kernels()
    for name in stale:  # every body once, though levels share many
        front.compile_bodies(list(KERNELS.values()), TARGETS[name].values(), OUT / "ir")
    command = [sys.executable, "-m", "edged.kernels.build", "--out", str(args.out), *["--force"] * args.force]
    processes = [subprocess.Popen([*command, "--level", name]) for name in levels]  # LLVM has one thread
    return max(process.wait() for process in processes)


if __name__ == "__main__":
    sys.exit(main())
