"""SIMD vector types and a raw pointer type for Numba, with their operators; build time only.

Operators carry no fast-math flags: each rounds as written.
"""

from __future__ import annotations

import operator

from llvmlite import ir
from numba.core import types
from numba.core.datamodel import models
from numba.core.imputils import lower_builtin
from numba.core.typing.templates import ConcreteTemplate, infer_global, signature
from numba.extending import register_model

from edged.kernels.unroll import Param

# -- types -------------------------------------------------------------------------------------------------------------

i8, u8, i16, u16, i32, u32, i64, u64 = (
    types.int8, types.uint8, types.int16, types.uint16, types.int32, types.uint32, types.int64, types.uint64,
)  # fmt: skip
f32 = types.float32

LL_I8, LL_I32, LL_I64, LL_F16, LL_F32 = (
    ir.IntType(8), ir.IntType(32), ir.IntType(64), ir.HalfType(), ir.FloatType(),
)  # fmt: skip
LL_PTR = LL_I8.as_pointer()
ELEMENTS = {
    "i8": LL_I8, "i16": ir.IntType(16), "i32": LL_I32, "i64": LL_I64, "f16": LL_F16, "f32": LL_F32,
}  # fmt: skip
SCALARS = {"i8": i8, "i16": i16, "i32": i32, "i64": i64, "f32": f32}


class Vec(types.Type):
    """A vector of n elements; integer elements carry no sign, operations do (sext, zext, ashr, lshr)."""

    def __init__(self, element: str, n: int) -> None:
        self.element, self.n = element, n
        super().__init__(name=f"{element}x{n}")

    @property
    def llvm(self) -> ir.Type:
        return ir.VectorType(ELEMENTS[self.element], self.n)

    @property
    def is_float(self) -> bool:
        return self.element[0] == "f"


class Pointer(types.Type):
    """An untyped address; `p + n` advances by n bytes."""

    def __init__(self) -> None:
        super().__init__(name="ptr")


ptr = Pointer()


@register_model(Vec)
class _VecModel(models.PrimitiveModel):
    def __init__(self, manager, fe_type):
        super().__init__(manager, fe_type, fe_type.llvm)


@register_model(Pointer)
class _PointerModel(models.PrimitiveModel):
    def __init__(self, manager, fe_type):
        super().__init__(manager, fe_type, LL_PTR)


VECTORS = {
    f"{element}x{n}": Vec(element, n)
    for element, counts in {
        "i8": (8, 16, 32, 64), "i16": (8, 16, 32), "i32": (4, 8, 16, 32), "i64": (2, 4, 8),
        "f16": (4, 8, 16), "f32": (4, 8, 16, 32, 64),
    }.items()
    for n in counts
}  # fmt: skip
i8x8, i8x16, i8x32, i8x64 = (VECTORS[f"i8x{n}"] for n in (8, 16, 32, 64))
i16x8, i16x16, i16x32 = (VECTORS[f"i16x{n}"] for n in (8, 16, 32))
i32x4, i32x8, i32x16 = (VECTORS[f"i32x{n}"] for n in (4, 8, 16))
f16x4, f16x8, f16x16 = (VECTORS[f"f16x{n}"] for n in (4, 8, 16))
f32x4, f32x8, f32x16 = (VECTORS[f"f32x{n}"] for n in (4, 8, 16))

# Level-dependent constants and types (levels.py gives the values): NT prompt tokens in a panel; BIAS of panel bytes;
# A lanes of a row-dot accumulator (one native register).
NT, BIAS, NR_FUTEX = Param("NT"), Param("BIAS"), Param("NR_FUTEX")
i32xNT, f32xNT, i8xNT4 = Param("i32xNT"), Param("f32xNT"), Param("i8xNT4")
i32xA, f32xA = Param("i32xA"), Param("f32xA")


def llvm_type(t: types.Type) -> ir.Type:
    """The LLVM type of a kernel argument or element."""
    if isinstance(t, Vec):
        return t.llvm
    if isinstance(t, Pointer):
        return LL_PTR
    if t is types.none:
        return ir.VoidType()
    return LL_F32 if t is f32 else ir.IntType(t.bitwidth)


# -- operators ---------------------------------------------------------------------------------------------------------


def _operators(name: str, on_int: str | None, on_float: str | None) -> None:
    vectors = [v for v in VECTORS.values() if (on_float if v.is_float else on_int)]
    cases = [signature(v, v, v) for v in vectors]
    if name == "add":
        cases.append(signature(ptr, ptr, i64))

    def lower(context, builder, sig, args):
        return getattr(builder, on_float if sig.return_type.is_float else on_int)(*args)

    for op in (getattr(operator, name), getattr(operator, "i" + name.rstrip("_"))):
        infer_global(op)(type(f"_{name}", (ConcreteTemplate,), {"cases": cases}))
        lower_builtin(op, Vec, Vec)(lower)


for _name, _on_int, _on_float in (
    ("add", "add", "fadd"), ("sub", "sub", "fsub"), ("mul", "mul", "fmul"), ("truediv", None, "fdiv"),
    ("and_", "and_", None), ("or_", "or_", None), ("xor", "xor", None),
):  # fmt: skip
    _operators(_name, _on_int, _on_float)


@lower_builtin(operator.add, Pointer, types.Integer)
@lower_builtin(operator.iadd, Pointer, types.Integer)
def _advance(context, builder, sig, args):
    return builder.gep(args[0], [args[1]], inbounds=True, source_etype=LL_I8)
