"""Numba's front end: kernel bodies, specialised for one CPU level, become LLVM IR; build time only.

Each kernel is a module of its own, kept in a folder under the hash of all it is made of. A build compiles those that
have changed, as many at a time as there are processors; levels share the kernels that come out the same for both.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import os
from pathlib import Path
from typing import Any

# Numba emits plain IR; all optimisation is done for the target, in build.py.
os.environ.update(NUMBA_OPT="0", NUMBA_LOOP_VECTORIZE="0", NUMBA_SLP_VECTORIZE="0")

import llvmlite
import llvmlite.binding as llvm
import numba
from numba.core import compiler
from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import cpu_target

from edged.kernels.export import Kernel
from edged.kernels.simd import of_arity
from edged.kernels.unroll import Expanded, expand

BODY = "body."  # prefix of a body's IR name


def compile_bodies(kernels: list[Kernel], values: dict[str, Any], folder: Path) -> list[str]:
    """LLVM IR of each kernel: `i32 @"body.<name>"(ptr result, ptr error, arguments...)`, all else internal.

    values: the parameters of the level.
    """
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{key(kernel, values)}.ll" for kernel in kernels]
    missing = [(kernel, values, path) for kernel, path in zip(kernels, paths, strict=True) if not path.exists()]
    if missing:
        # forked, so that the kernels need not be pickled
        global _missing
        _missing = missing
        with multiprocessing.get_context("fork").Pool(len(os.sched_getaffinity(0))) as pool:
            pool.map(_compile_missing, range(len(missing)), chunksize=1)
    return [path.read_text() for path in paths]


_missing: list[tuple[Kernel, dict[str, Any], Path]] = []


def _compile_missing(i: int) -> None:
    kernel, values, path = _missing[i]
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    temporary.write_text(compile_body(kernel, values))
    temporary.replace(path)


def key(kernel: Kernel, values: dict[str, Any]) -> str:
    """Hash of all that a kernel's IR depends on."""
    body = expand(kernel.function, {**values, **kernel.values}, lambda helper: helper)
    parts = [kernel.name, str(kernel.arguments), str(kernel.result), body.key, numba.__version__, llvmlite.__version__]
    sources = [(Path(__file__).parent / f"{name}.py").read_text() for name in ("vectors", "simd", "unroll", "front")]
    return hashlib.sha256("\n".join(parts + sources).encode()).hexdigest()


@global_compiler_lock
def compile_body(kernel: Kernel, values: dict[str, Any]) -> str:
    """Run Numba's front end on one kernel."""
    typing_context = cpu_target.typing_context
    typing_context.refresh()
    context = cpu_target.target_context
    context.refresh()
    context = context.with_aot_codegen("edged")
    library = context.codegen().create_library(kernel.name)
    flags = compiler.Flags()
    flags.no_compile = flags.no_cpython_wrapper = flags.no_cfunc_wrapper = True
    flags.no_rewrites = True  # LLVM optimises, and makes the SSA form
    flags.nrt = flags.enable_ssa = False
    flags.error_model = "numpy"  # division by zero raises nothing

    def compiled(function: Any, arguments: tuple[Any, ...], result: Any) -> Any:
        return compiler.compile_extra(typing_context, context, function, arguments, result, flags, {}, library=library)

    def call(helper: Expanded) -> Any:
        """An intrinsic that calls a helper, compiled for the types of its arguments; LLVM inlines it."""

        def typed(*arguments: Any) -> Any:
            done = compiled(helper.function, arguments, None)

            def emit(context: Any, builder: Any, signature: Any, values: Any) -> Any:
                return context.call_internal(builder, done.fndesc, signature, values)

            return done.signature, emit

        return of_arity(helper.function.__code__.co_argcount, typed, helper.key)

    body = expand(kernel.function, {**values, **kernel.values}, call)
    name = compiled(body.function, kernel.arguments, kernel.result).fndesc.llvm_func_name
    library.finalize()
    module = llvm.parse_assembly(str(library._final_module))
    for value in [*module.functions, *module.global_variables]:
        if value.name == name:
            value.name = BODY + kernel.name
        elif not value.is_declaration:
            value.linkage = "internal"
    return str(module)
