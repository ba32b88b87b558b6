"""The vocabulary of kernel bodies: SIMD types and what is done with them; build time only.

A kernel body is ordinary Numba code over these types: `load(f32x8, p)`, `fma(a, b, c)`, `a + b`. Types are arguments,
so a body that names a level-dependent type (`f32xNT`, `i32xA`) serves every CPU level. All operations emit portable
LLVM vector IR except those made by `primitive`, which call a function that `primitives_*.py` define for each level.

Nothing here carries fast-math flags: an operation rounds as written, `fma` is the only fused one and `hsum` adds as
a fixed tree. That is what makes results independent of how rows are grouped.
"""

from __future__ import annotations

import functools

from llvmlite import ir
from numba.core import types
from numba.core.typing.templates import signature
from numba.extending import intrinsic

from edged.kernels.unroll import Param
from edged.kernels.vectors import (  # noqa: F401  (bodies import the types from here)
    BIAS,
    ELEMENTS,
    LL_F16,
    LL_F32,
    LL_I32,
    LL_I64,
    LL_PTR,
    NR_FUTEX,
    NT,
    SCALARS,
    VECTORS,
    Pointer,
    Vec,
    f16x4,
    f16x8,
    f16x16,
    f32,
    f32x4,
    f32x8,
    f32x16,
    f32xA,
    f32xNT,
    i8,
    i8x8,
    i8x16,
    i8x32,
    i8x64,
    i8xNT4,
    i16,
    i16x8,
    i16x16,
    i16x32,
    i32,
    i32x4,
    i32x8,
    i32x16,
    i32xA,
    i32xNT,
    i64,
    llvm_type,
    ptr,
    u8,
    u16,
    u32,
    u64,
)

# -- building intrinsics -----------------------------------------------------------------------------------------------
# `result` maps the argument types to the result type, `emit(builder, sig, args)` returns the LLVM value.


def _unary(result, emit):
    @intrinsic
    def op(typing_context, a):
        return signature(result(a), a), lambda context, builder, sig, args: emit(builder, sig, args)

    return op


def _binary(result, emit):
    @intrinsic
    def op(typing_context, a, b):
        return signature(result(a, b), a, b), lambda context, builder, sig, args: emit(builder, sig, args)

    return op


def _converting(emit):
    """op(T, v) -> T"""
    return _binary(lambda t, v: t.instance_type, lambda b, sig, args: emit(b, args[1], llvm_type(sig.return_type)))


def _call(builder, name, result, args):
    function = builder.module.globals.get(name)
    if function is None:
        function = ir.Function(builder.module, ir.FunctionType(result, [a.type for a in args]), name)
    return builder.call(function, args)


def _splat(builder, x, n):
    vector = ir.VectorType(x.type, n)
    first = builder.insert_element(ir.Constant(vector, ir.Undefined), x, ir.Constant(LL_I32, 0))
    return _shuffle(builder, first, first, [0] * n)


def _shuffle(builder, a, b, mask):
    return builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(LL_I32, len(mask)), list(mask)))


@functools.cache
def primitive(name: str, result: types.Type, *arguments: types.Type):
    """An intrinsic that calls the function `name`; its definition is linked in later. At most 8 arguments."""

    def typed(*given):
        def emit(context, builder, sig, args):
            value = _call(builder, name, llvm_type(result), args)
            return context.get_dummy_value() if result is types.none else value

        return signature(result, *arguments), emit

    return of_arity(len(arguments), typed, f"{name}({', '.join(map(str, arguments))}) -> {result}")


def of_arity(n, typed, key):
    """An intrinsic of n arguments; Numba reads their number from the function's own signature. key: see unroll.py."""
    names = ", ".join(f"a{i}" for i in range(n))
    scope = {"typed": typed}
    exec(f"def op(typing_context{', ' + names if n else ''}): return typed({names})", scope)
    op = intrinsic(scope["op"])
    op.key = key
    return op


# -- memory ------------------------------------------------------------------------------------------------------------


@intrinsic
def load(typing_context, t, p):
    """Unaligned load of a T."""

    def emit(context, builder, sig, args):
        return _load(builder, args[1], llvm_type(sig.return_type))

    return signature(t.instance_type, t, ptr), emit


@intrinsic
def store(typing_context, t, p, v):
    """Unaligned store of v as T."""

    def emit(context, builder, sig, args):
        _store(builder, args[1], args[2])
        return context.get_dummy_value()

    return signature(types.none, t, ptr, t.instance_type), emit


def _load(builder, p, llvm):
    instruction = builder.load(builder.bitcast(p, llvm.as_pointer()))
    instruction.align = 1
    return instruction


def _store(builder, p, v):
    builder.store(v, builder.bitcast(p, v.type.as_pointer())).align = 1


@intrinsic
def store_f16(typing_context, p, v):
    """Round an f32 to f16 and store it."""

    def emit(context, builder, sig, args):
        _store(builder, args[0], builder.fptrunc(args[1], LL_F16))
        return context.get_dummy_value()

    return signature(types.none, ptr, f32), emit


@intrinsic
def prefetch(typing_context, p):
    """Ask for the cache line at p; any address is allowed."""

    def emit(context, builder, sig, args):
        flags = [ir.Constant(LL_I32, n) for n in (0, 3, 1)]  # read, keep in all levels, data
        _call(builder, "llvm.prefetch.p0", ir.VoidType(), [args[0], *flags])
        return context.get_dummy_value()

    return signature(types.none, ptr), emit


address = _unary(lambda p: i64, lambda b, sig, args: b.ptrtoint(args[0], LL_I64))


@intrinsic
def pointer(typing_context, n):
    """The pointer with the given address."""
    return signature(ptr, i64), lambda context, builder, sig, args: builder.inttoptr(args[0], LL_PTR)


# Atomics are sequentially consistent: the sleeper check of the worker threads is a store-then-load handshake, and an
# acquire load becomes ldapr on Armv8.3, which may pass the earlier store and lose a wake-up.


@intrinsic
def atomic_load(typing_context, t, p):
    def emit(context, builder, sig, args):
        llvm = llvm_type(sig.return_type)
        return builder.load_atomic(builder.bitcast(args[1], llvm.as_pointer()), "seq_cst", llvm.width // 8)

    return signature(t.instance_type, t, ptr), emit


@intrinsic
def atomic_store(typing_context, t, p, v):
    def emit(context, builder, sig, args):
        target = builder.bitcast(args[1], args[2].type.as_pointer())
        builder.store_atomic(args[2], target, "seq_cst", args[2].type.width // 8)
        return context.get_dummy_value()

    return signature(types.none, t, ptr, t.instance_type), emit


@intrinsic
def atomic_add(typing_context, t, p, v):
    """Add v and return the value before."""

    def emit(context, builder, sig, args):
        return builder.atomic_rmw("add", builder.bitcast(args[1], args[2].type.as_pointer()), args[2], "seq_cst")

    return signature(t.instance_type, t, ptr, t.instance_type), emit


# -- values ------------------------------------------------------------------------------------------------------------


@intrinsic
def zero(typing_context, t):
    v = t.instance_type
    constant = ir.Constant(v.llvm, [0.0] * v.n if v.is_float else None)
    return signature(v, t), lambda context, builder, sig, args: constant


@intrinsic
def splat(typing_context, t, x):
    """Every lane x, converted to the element type."""
    v = t.instance_type
    return signature(v, t, SCALARS[v.element]), lambda context, builder, sig, args: _splat(builder, args[1], v.n)


def constant(t: Vec, values: tuple[int, ...]):
    """An intrinsic without arguments whose value is the vector of these integers."""
    literal = ir.Constant(t.llvm, list(values))
    return of_arity(0, lambda: (signature(t), lambda context, builder, sig, args: literal), f"constant {t} {values}")


bitcast = _converting(lambda b, v, llvm: b.bitcast(v, llvm))
sext = _converting(lambda b, v, llvm: b.sext(v, llvm))
zext = _converting(lambda b, v, llvm: b.zext(v, llvm))
trunc = _converting(lambda b, v, llvm: b.trunc(v, llvm))
cvt_f32 = _unary(
    lambda v: VECTORS[f"f32x{v.n}"],
    lambda b, sig, args: (b.fpext if sig.args[0].is_float else b.sitofp)(args[0], sig.return_type.llvm),
)
cvt_f16 = _unary(lambda v: VECTORS[f"f16x{v.n}"], lambda b, sig, args: b.fptrunc(args[0], sig.return_type.llvm))
cvt_i32 = _unary(lambda v: VECTORS[f"i32x{v.n}"], lambda b, sig, args: b.fptosi(args[0], sig.return_type.llvm))


def _float_function(name):
    """emit for an LLVM function over f32 or a vector of it"""

    def emit(builder, sig, args):
        suffix = f"v{sig.return_type.n}f32" if isinstance(sig.return_type, Vec) else "f32"
        return _call(builder, f"llvm.{name}.{suffix}", args[0].type, args)

    return emit


vabs = _unary(lambda a: a, _float_function("fabs"))
vsqrt = _unary(lambda a: a, _float_function("sqrt"))
vround = _unary(lambda a: a, _float_function("rint"))  # halves to even
vmax = _binary(lambda a, b: a, _float_function("maxnum"))
vmin = _binary(lambda a, b: a, _float_function("minnum"))


@intrinsic
def fma(typing_context, a, b, c):
    """a * b + c, rounded once."""
    emit = _float_function("fma")
    return signature(c, c, c, c), lambda context, builder, sig, args: emit(builder, sig, args)


@intrinsic
def where_gt(typing_context, a, b, x, y):
    """Per lane: x where a > b, else y (also where either is NaN)."""

    def emit(context, builder, sig, args):
        compare = builder.fcmp_ordered if sig.args[0].is_float else builder.icmp_signed
        return builder.select(compare(">", args[0], args[1]), args[2], args[3])

    return signature(x, a, a, x, x), emit


def _shift(emit):
    @intrinsic
    def op(typing_context, v, n):
        def lower(context, builder, sig, args):
            element = ELEMENTS[sig.args[0].element]
            count = builder.trunc(args[1], element) if element.width < 64 else args[1]
            return emit(builder, args[0], _splat(builder, count, sig.args[0].n))

        return signature(v, v, i64), lower

    return op


shl = _shift(lambda b, v, n: b.shl(v, n))
lshr = _shift(lambda b, v, n: b.lshr(v, n))
ashr = _shift(lambda b, v, n: b.ashr(v, n))

# -- lanes -------------------------------------------------------------------------------------------------------------


def _tree(combine):
    """Fold the upper half of the lanes onto the lower until one is left."""

    def emit(builder, sig, args):
        v, n = args[0], sig.args[0].n
        while n > 1:
            n //= 2
            v = combine(builder, sig, _shuffle(builder, v, v, range(n)), _shuffle(builder, v, v, range(n, 2 * n)))
        return builder.extract_element(v, ir.Constant(LL_I32, 0))

    return emit


def _add(builder, sig, a, b):
    return builder.fadd(a, b) if sig.args[0].is_float else builder.add(a, b)


def _max(builder, sig, a, b):
    return _call(builder, f"llvm.maxnum.v{a.type.count}f32", a.type, [a, b])


hsum = _unary(lambda v: SCALARS[v.element], _tree(_add))
hmax = _unary(lambda v: f32, _tree(_max))


def _half(k):
    def emit(builder, sig, args):
        n = sig.return_type.n
        return _shuffle(builder, args[0], args[0], range(k * n, (k + 1) * n))

    return _unary(lambda v: VECTORS[f"{v.element}x{v.n // 2}"], emit)


low, high = _half(0), _half(1)
concat = _binary(
    lambda a, b: VECTORS[f"{a.element}x{a.n * 2}"],
    lambda b, sig, args: _shuffle(b, args[0], args[1], range(sig.return_type.n)),
)


def shuffle(mask):
    """An intrinsic that picks the lanes of `mask` from one vector."""
    lanes = list(mask)
    op = _unary(
        lambda v: VECTORS[f"{v.element}x{len(lanes)}"],
        lambda b, sig, args: _shuffle(b, args[0], args[0], lanes),
    )
    op.key = f"shuffle{lanes}"
    return op


@intrinsic(prefer_literal=True)
def spread(typing_context, t, v, j):
    """A T whose lanes are lane j (a literal) of v."""
    k, n = j.literal_value, t.instance_type.n
    emit = lambda context, builder, sig, args: _shuffle(builder, args[1], args[1], [k] * n)  # noqa: E731
    return signature(t.instance_type, t, v, j), emit


@intrinsic(prefer_literal=True)
def spread_pair(typing_context, v, j):
    """The lower half of the lanes is lane j (a literal) of v, the upper half lane j + 1."""
    k = j.literal_value
    mask = [k] * (v.n // 2) + [k + 1] * (v.n // 2)
    return signature(v, v, j), lambda context, builder, sig, args: _shuffle(builder, args[0], args[0], mask)


@intrinsic(prefer_literal=True)
def get(typing_context, v, j):
    """Lane j (a literal) as a scalar."""
    k = ir.Constant(LL_I32, j.literal_value)
    return signature(SCALARS[v.element], v, j), lambda context, b, sig, args: b.extract_element(args[0], k)

# -- primitives: defined in LLVM IR for each level by primitives_*.py --------------------------------------------------

pause = primitive("edged.pause", types.none)
sched_yield = primitive("sched_yield", i32)
syscall = primitive("syscall", i64, i64, ptr, i64, i64, i64, i64, i64)
load_f16 = primitive("edged.load_f16", f32, ptr)  # may read the 8 bytes from p
load_f16_tail = primitive("edged.load_f16_tail", f32, ptr)  # may read the 8 bytes that end with the value
nibbles = primitive("edged.nibbles", i8x32, ptr)  # 16 bytes -> 32 values: low nibbles, then high nibbles
bits_i8x32 = primitive("edged.bits32", i8x32, ptr)  # 32 bits at p -> 32 bytes of 0 or -1
mask_i8x32 = primitive("edged.mask32", i8x32, i32)  # the same of an integer
lookup16 = primitive("edged.lookup16", i8x32, i8x16, i8x32)  # lanes 0..15 of the table by index


# Dot products of a row kernel: i32xA + dot of 32 bytes with 32 bytes, in any order of the lanes.
dot_us = Param("dot_us", lambda v: primitive("edged.dot_us", v["i32xA"], v["i32xA"], i8x32, i8x32))  # u 0..31 x s
dot_ss = Param("dot_ss", lambda v: primitive("edged.dot_ss", v["i32xA"], v["i32xA"], i8x32, i8x32))
# acc + scale * dot(u, s); scale: lanes of scales_u (or scales_s)
dot_scaled = Param("dot_scaled", lambda v: primitive("edged.dot_scaled", *[v["i32xA"]] * 2, i8x32, i8x32, v["i32xA"]))
# the same where bytes 0..15 have the scale of the lower half of the lanes, 16..31 that of the upper half; u 0..63
dot_scaled2 = primitive("edged.dot_scaled2", i32x8, i32x8, i8x32, i8x32, i32x8)
# the same two for signed weights
dot_scaled_s = Param(
    "dot_scaled_s", lambda v: primitive("edged.dot_scaled_s", *[v["i32xA"]] * 2, i8x32, i8x32, v["i32xA"])
)
dot_scaled2_s = primitive("edged.dot_scaled2_s", i32x8, i32x8, i8x32, i8x32, i32x8)
scales_u = primitive("edged.scales_u", i32x8, i8x8)  # 8 unsigned bytes in the form that dot_scaled wants
scales_s = primitive("edged.scales_s", i32x8, i8x8)  # 8 signed bytes, likewise

# A tile kernel's dot product, lanes are tokens: (x, size, w) -> i32 of NT lanes per panel; SCALE weights at w with the
# activations at x, x + size, ... of PANELS panels. `weights` is the class of the weights, see levels.py.
tile_dot = Param(
    "tile_dot",
    lambda v: primitive(
        f"edged.tile_dot_{v['weights']}_{v['PANELS']}", VECTORS[f"i32x{v['PANELS'] * v['NT']}"], ptr, i64, ptr
    ),
)
weights4 = Param("weights4", lambda v: primitive("edged.weights4", v["i32xNT"], ptr, i64))  # 4 bytes at p + 4 g
