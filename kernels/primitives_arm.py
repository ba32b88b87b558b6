"""The primitives of the AArch64 levels as LLVM IR; build time only. `simd.py` says what each means."""

from __future__ import annotations

from edged.kernels.primitives import define, join, piece, spread_first


def _scales_arm(sign: str, extend: str) -> str:
    # InstCombine turns 'spread(extend v, j)' into umov + dup + extend per lane; an empty asm keeps the vector whole
    # (Q4_K on Cortex-A76: 72 -> 57 cycles per 256 weights).
    return define(
        f"<8 x i32> @edged.scales_{sign}(<8 x i8> %a)",
        f"%z = {extend} <8 x i8> %a to <8 x i32>",
        piece("l", "z", "i32", 8, 0, 4),
        piece("h", "z", "i32", 8, 4, 4),
        '%lo = call <4 x i32> asm "", "=w,0"(<4 x i32> %l)',
        '%hi = call <4 x i32> asm "", "=w,0"(<4 x i32> %h)',
        join("r", "lo", "hi", "i32", 4),
        "ret <8 x i32> %r",
    )


def _bits32_arm() -> str:
    # 'sext <32 x i1>' is very slow on NEON: pick the byte, test the bit. The load is that of a float and volatile, else
    # LLVM takes the bits out of a wider load by way of a general register; the empty asm keeps cmtst from being undone.
    bytes4 = ", ".join(f"i32 {i // 8}" for i in range(32))
    bits = ", ".join(f"i8 {1 << i % 8 if i % 8 < 7 else -128}" for i in range(32))
    spread_bits = (
        "%v = insertelement <4 x float> poison, float %i, i32 0",
        "%b = bitcast <4 x float> %v to <16 x i8>",
        f"%s = shufflevector <16 x i8> %b, <16 x i8> poison, <32 x i32> <{bytes4}>",
        f"%m = and <32 x i8> %s, <{bits}>",
        "%c = icmp ne <32 x i8> %m, zeroinitializer",
        "%x = sext <32 x i1> %c to <32 x i8>",
        piece("l", "x", "i8", 32, 0, 16),
        piece("h", "x", "i8", 32, 16, 16),
        '%lo = call <16 x i8> asm "", "=w,0"(<16 x i8> %l)',
        '%hi = call <16 x i8> asm "", "=w,0"(<16 x i8> %h)',
        join("r", "lo", "hi", "i8", 16),
        "ret <32 x i8> %r",
    )
    return define(
        "<32 x i8> @edged.bits32(ptr %p)", "%i = load volatile float, ptr %p, align 1", *spread_bits
    ) + define("<32 x i8> @edged.mask32(i32 %n)", "%i = bitcast i32 %n to float", *spread_bits)


_LOAD_F16_ARM = ("%h = load half, ptr %p, align 1", "%r = fpext half %h to float", "ret float %r")
_HALVES = tuple(piece(f"{v}{i}", v, "i8", 32, 16 * i, 16) for v in "us" for i in (0, 1))
_TBL1 = "<16 x i8> @llvm.aarch64.neon.tbl1.v16i8"
_ARM = f"declare void @llvm.aarch64.hint(i32)\ndeclare {_TBL1}(<16 x i8>, <16 x i8>)\n"
_ARM += _bits32_arm() + _scales_arm("u", "zext") + _scales_arm("s", "sext")
_ARM += "".join((
    define("<32 x i8> @edged.nibbles(ptr %p)",
           "%b = load <16 x i8>, ptr %p, align 1",
           "%l = and <16 x i8> %b, splat (i8 15)",
           "%h = lshr <16 x i8> %b, splat (i8 4)",
           join("r", "l", "h", "i8", 16),
           "ret <32 x i8> %r"),
    define("void @edged.pause()", "call void @llvm.aarch64.hint(i32 1)", "ret void"),
    define("float @edged.load_f16(ptr %p)", *_LOAD_F16_ARM),
    define("float @edged.load_f16_tail(ptr %p)", *_LOAD_F16_ARM),
    define("<4 x i32> @edged.dot_scaled(<4 x i32> %acc, <32 x i8> %u, <32 x i8> %s, <4 x i32> %scale)",
           "%p = call <4 x i32> @edged.dot_us(<4 x i32> zeroinitializer, <32 x i8> %u, <32 x i8> %s)",
           "%q = mul <4 x i32> %p, %scale",
           "%r = add <4 x i32> %q, %acc",
           "ret <4 x i32> %r"),
    define("<4 x i32> @edged.dot_ss(<4 x i32> %acc, <32 x i8> %u, <32 x i8> %s)",
           *_HALVES,
           "%t = call <4 x i32> @edged.dot16(<4 x i32> %acc, <16 x i8> %u0, <16 x i8> %s0)",
           "%r = call <4 x i32> @edged.dot16(<4 x i32> %t, <16 x i8> %u1, <16 x i8> %s1)",
           "ret <4 x i32> %r"),
    define("<8 x i32> @edged.dot_scaled2(<8 x i32> %acc, <32 x i8> %u, <32 x i8> %s, <8 x i32> %scale)",
           *_HALVES,
           "%p0 = call <4 x i32> @edged.dot16(<4 x i32> zeroinitializer, <16 x i8> %u0, <16 x i8> %s0)",
           "%p1 = call <4 x i32> @edged.dot16(<4 x i32> zeroinitializer, <16 x i8> %u1, <16 x i8> %s1)",
           join("p", "p0", "p1", "i32", 4),
           "%q = mul <8 x i32> %p, %scale",
           "%r = add <8 x i32> %q, %acc",
           "ret <8 x i32> %r"),
    define("<4 x i32> @edged.dot_scaled_s(<4 x i32> %acc, <32 x i8> %u, <32 x i8> %s, <4 x i32> %scale)",
           "%p = call <4 x i32> @edged.dot_ss(<4 x i32> zeroinitializer, <32 x i8> %u, <32 x i8> %s)",
           "%q = mul <4 x i32> %p, %scale",
           "%r = add <4 x i32> %q, %acc",
           "ret <4 x i32> %r"),
    define("<8 x i32> @edged.dot_scaled2_s(<8 x i32> %acc, <32 x i8> %u, <32 x i8> %s, <8 x i32> %scale)",
           "%r = call <8 x i32> @edged.dot_scaled2(<8 x i32> %acc, <32 x i8> %u, <32 x i8> %s, <8 x i32> %scale)",
           "ret <8 x i32> %r"),
    define("<32 x i8> @edged.lookup16(<16 x i8> %t, <32 x i8> %i)",
           piece("l", "i", "i8", 32, 0, 16),
           piece("h", "i", "i8", 32, 16, 16),
           f"%a = call {_TBL1}(<16 x i8> %t, <16 x i8> %l)",
           f"%b = call {_TBL1}(<16 x i8> %t, <16 x i8> %h)",
           join("r", "a", "b", "i8", 16),
           "ret <32 x i8> %r"),
    # a 16-byte load and a lane: sdot takes the lane as it is, dup costs nothing more than ld1r
    define("<8 x i32> @edged.weights4(ptr %p, i64 %g)",
           "%block = and i64 %g, -4",
           "%lane = and i64 %g, 3",
           "%a = getelementptr i32, ptr %p, i64 %block",
           "%v = load <4 x i32>, ptr %a, align 1",
           "%w = extractelement <4 x i32> %v, i64 %lane",
           *spread_first("r", "w", 8),
           "ret <8 x i32> %r"),
))  # fmt: skip

_SDOT = "llvm.aarch64.neon.sdot.v4i32.v16i8"
DOTPROD = _ARM + f"declare <4 x i32> @{_SDOT}(<4 x i32>, <16 x i8>, <16 x i8>)\n" + "".join((
    define("<4 x i32> @edged.dot16(<4 x i32> %acc, <16 x i8> %x, <16 x i8> %y)",
           f"%r = call <4 x i32> @{_SDOT}(<4 x i32> %acc, <16 x i8> %x, <16 x i8> %y)",
           "ret <4 x i32> %r"),
    define("<4 x i32> @edged.dot_us(<4 x i32> %acc, <32 x i8> %u, <32 x i8> %s)",
           "%r = call <4 x i32> @edged.dot_ss(<4 x i32> %acc, <32 x i8> %u, <32 x i8> %s)",
           "ret <4 x i32> %r"),
    *(define(f"<8 x i32> @edged.tile_add_{sign}(<32 x i8> %u, <8 x i32> %w, <8 x i32> %acc)",
             "%s = bitcast <8 x i32> %w to <32 x i8>",
             *_HALVES,
             piece("a0", "acc", "i32", 8, 0, 4),
             piece("a1", "acc", "i32", 8, 4, 4),
             f"%r0 = call <4 x i32> @{_SDOT}(<4 x i32> %a0, <16 x i8> %u0, <16 x i8> %s0)",
             f"%r1 = call <4 x i32> @{_SDOT}(<4 x i32> %a1, <16 x i8> %u1, <16 x i8> %s1)",
             join("r", "r0", "r1", "i32", 4),
             "ret <8 x i32> %r") for sign in "us"),
    *(define(f"<8 x i32> @edged.tile_mul_{sign}(<32 x i8> %a, <8 x i32> %w)",
             f"%r = call <8 x i32> @edged.tile_add_{sign}(<32 x i8> %a, <8 x i32> %w, <8 x i32> zeroinitializer)",
             "ret <8 x i32> %r") for sign in "us"),
    define("<8 x i32> @edged.tile_widen(<8 x i32> %wide, <8 x i32> %acc)",
           "%r = add <8 x i32> %wide, %acc",
           "ret <8 x i32> %r"),
    define("<8 x i32> @edged.tile_finish(<8 x i32> %wide)", "ret <8 x i32> %wide"),
))  # fmt: skip

_SMULL = "call <8 x i16> @llvm.aarch64.neon.smull.v8i16"
_ADDP = "call <8 x i16> @llvm.aarch64.neon.addp.v8i16"
_SADDLP = "call <4 x i32> @llvm.aarch64.neon.saddlp.v4i32.v8i16"
_QUARTERS = tuple(piece(f"{v}{i}", v, "i8", 32, 8 * i, 8) for v in "us" for i in range(4))
NEON = _ARM + """
declare <8 x i16> @llvm.aarch64.neon.smull.v8i16(<8 x i8>, <8 x i8>)
declare <4 x i32> @llvm.aarch64.neon.saddlp.v4i32.v8i16(<8 x i16>)
declare <4 x i32> @llvm.aarch64.neon.addp.v4i32(<4 x i32>, <4 x i32>)
declare <8 x i16> @llvm.aarch64.neon.addp.v8i16(<8 x i16>, <8 x i16>)
""" + "".join((
    # sums of pairs first: lane j holds products 4 j .. 4 j + 3, as sdot has them, so both levels round alike
    define("<4 x i32> @edged.dot16(<4 x i32> %acc, <16 x i8> %x, <16 x i8> %y)",
           *(piece(f"{v}{i}", v, "i8", 16, 8 * i, 8) for v in "xy" for i in (0, 1)),
           f"%p0 = {_SMULL}(<8 x i8> %x0, <8 x i8> %y0)",
           f"%p1 = {_SMULL}(<8 x i8> %x1, <8 x i8> %y1)",
           f"%p = {_ADDP}(<8 x i16> %p0, <8 x i16> %p1)",
           f"%w = {_SADDLP}(<8 x i16> %p)",
           "%r = add <4 x i32> %w, %acc",
           "ret <4 x i32> %r"),
    # u <= 63: four products fit one 16-bit lane, one sadalp for 32 weights instead of two
    define("<4 x i32> @edged.dot_us(<4 x i32> %acc, <32 x i8> %u, <32 x i8> %s)",
           *_QUARTERS,
           *(f"%p{i} = {_SMULL}(<8 x i8> %u{i}, <8 x i8> %s{i})" for i in range(4)),
           f"%t0 = {_ADDP}(<8 x i16> %p0, <8 x i16> %p1)",
           f"%t1 = {_ADDP}(<8 x i16> %p2, <8 x i16> %p3)",
           "%t2 = add <8 x i16> %t0, %t1",
           f"%w = {_SADDLP}(<8 x i16> %t2)",
           "%r = add <4 x i32> %w, %acc",
           "ret <4 x i32> %r"),
    *(define(f"<32 x i16> @edged.tile_mul_{sign}(<32 x i8> %u, <8 x i32> %w)",
             "%s = bitcast <8 x i32> %w to <32 x i8>",
             *_QUARTERS,
             *(f"%p{i} = {_SMULL}(<8 x i8> %u{i}, <8 x i8> %s{i})" for i in range(4)),
             join("l", "p0", "p1", "i16", 8),
             join("h", "p2", "p3", "i16", 8),
             join("r", "l", "h", "i16", 16),
             "ret <32 x i16> %r") for sign in "us"),
    *(define(f"<32 x i16> @edged.tile_add_{sign}(<32 x i8> %a, <8 x i32> %w, <32 x i16> %acc)",
             f"%p = call <32 x i16> @edged.tile_mul_{sign}(<32 x i8> %a, <8 x i32> %w)",
             "%r = add <32 x i16> %acc, %p",
             "ret <32 x i16> %r") for sign in "us"),
    define("<16 x i32> @edged.tile_widen(<16 x i32> %wide, <32 x i16> %acc)",
           *(piece(f"a{i}", "acc", "i16", 32, 8 * i, 8) for i in range(4)),
           *(f"%w{i} = {_SADDLP}(<8 x i16> %a{i})" for i in range(4)),
           join("l", "w0", "w1", "i32", 4),
           join("h", "w2", "w3", "i32", 4),
           join("w", "l", "h", "i32", 8),
           "%r = add <16 x i32> %w, %wide",
           "ret <16 x i32> %r"),
    define("<8 x i32> @edged.tile_finish(<16 x i32> %wide)",
           *(piece(f"w{i}", "wide", "i32", 16, 4 * i, 4) for i in range(4)),
           "%l = call <4 x i32> @llvm.aarch64.neon.addp.v4i32(<4 x i32> %w0, <4 x i32> %w1)",
           "%h = call <4 x i32> @llvm.aarch64.neon.addp.v4i32(<4 x i32> %w2, <4 x i32> %w3)",
           join("r", "l", "h", "i32", 4),
           "ret <8 x i32> %r"),
))  # fmt: skip
