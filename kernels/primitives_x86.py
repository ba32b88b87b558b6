"""The primitives of the x86-64 levels as LLVM IR; build time only. `simd.py` says what each means."""

from __future__ import annotations

from edged.kernels.primitives import define, spread_first

_TWICE = ", ".join(f"i32 {i % 16}" for i in range(32))

_X86 = """
declare void @llvm.x86.sse2.pause()
declare <16 x i16> @llvm.x86.avx2.pmadd.ub.sw(<32 x i8>, <32 x i8>)
declare <8 x i32> @llvm.x86.avx2.pmadd.wd(<16 x i16>, <16 x i16>)
declare <32 x i8> @llvm.x86.avx2.psign.b(<32 x i8>, <32 x i8>)
declare <32 x i8> @llvm.abs.v32i8(<32 x i8>, i1)
declare <32 x i8> @llvm.x86.avx2.pshuf.b(<32 x i8>, <32 x i8>)
""" + "".join((
    define("void @edged.pause()", "call void @llvm.x86.sse2.pause()", "ret void"),
    # 'load half; fpext' becomes vpinsrw into a live register, a false dependency (measured: Q8_0 half as fast); a
    # volatile load of four halves stays whole.
    define("float @edged.load_f16(ptr %p)",
           "%h = load volatile <4 x half>, ptr %p, align 1",
           "%f = fpext <4 x half> %h to <4 x float>",
           "%r = extractelement <4 x float> %f, i32 0",
           "ret float %r"),
    define("float @edged.load_f16_tail(ptr %p)",
           "%q = getelementptr i8, ptr %p, i64 -6",
           "%h = load volatile <4 x half>, ptr %q, align 1",
           "%f = fpext <4 x half> %h to <4 x float>",
           "%r = extractelement <4 x float> %f, i32 3",
           "ret float %r"),
    # a shift per lane of a load that fills both halves: one instruction less than inserting the shifted half
    define("<32 x i8> @edged.nibbles(ptr %p)",
           "%b = load <16 x i8>, ptr %p, align 1",
           f"%d = shufflevector <16 x i8> %b, <16 x i8> poison, <32 x i32> <{_TWICE}>",
           "%w = bitcast <32 x i8> %d to <8 x i32>",
           "%s = lshr <8 x i32> %w, <i32 0, i32 0, i32 0, i32 0, i32 4, i32 4, i32 4, i32 4>",
           "%q = bitcast <8 x i32> %s to <32 x i8>",
           "%r = and <32 x i8> %q, splat (i8 15)",
           "ret <32 x i8> %r"),
    define("<32 x i8> @edged.bits32(ptr %p)",
           "%i = load volatile i32, ptr %p, align 1",
           "%r = call <32 x i8> @edged.mask32(i32 %i)",
           "ret <32 x i8> %r"),
    define("<32 x i8> @edged.mask32(i32 %i)",
           "%b = bitcast i32 %i to <32 x i1>",
           "%r = sext <32 x i1> %b to <32 x i8>",
           "ret <32 x i8> %r"),
    define("<32 x i8> @edged.lookup16(<16 x i8> %t, <32 x i8> %i)",
           f"%d = shufflevector <16 x i8> %t, <16 x i8> poison, <32 x i32> <{_TWICE}>",
           "%r = call <32 x i8> @llvm.x86.avx2.pshuf.b(<32 x i8> %d, <32 x i8> %i)",
           "ret <32 x i8> %r"),
    # vpmaddwd multiplies pairs of 16-bit sums: each scale twice in its 32-bit lane
    define("<8 x i32> @edged.scales_u(<8 x i8> %a)",
           "%z = zext <8 x i8> %a to <8 x i32>",
           "%s = shl <8 x i32> %z, splat (i32 16)",
           "%r = or <8 x i32> %z, %s",
           "ret <8 x i32> %r"),
    define("<8 x i32> @edged.scales_s(<8 x i8> %a)",
           "%z = sext <8 x i8> %a to <8 x i32>",
           "%l = and <8 x i32> %z, splat (i32 65535)",
           "%s = shl <8 x i32> %z, splat (i32 16)",
           "%r = or <8 x i32> %l, %s",
           "ret <8 x i32> %r"),
    # |x| as unsigned, y with the sign of x: maddubs would saturate on u8 weights up to 255
    define("<8 x i32> @edged.dot_ss(<8 x i32> %acc, <32 x i8> %x, <32 x i8> %y)",
           "%u = call <32 x i8> @llvm.abs.v32i8(<32 x i8> %x, i1 false)",
           "%s = call <32 x i8> @llvm.x86.avx2.psign.b(<32 x i8> %y, <32 x i8> %x)",
           "%r = call <8 x i32> @edged.dot_us(<8 x i32> %acc, <32 x i8> %u, <32 x i8> %s)",
           "ret <8 x i32> %r"),
    define("<8 x i32> @edged.dot_scaled2(<8 x i32> %acc, <32 x i8> %u, <32 x i8> %s, <8 x i32> %scale)",
           "%r = call <8 x i32> @edged.dot_scaled(<8 x i32> %acc, <32 x i8> %u, <32 x i8> %s, <8 x i32> %scale)",
           "ret <8 x i32> %r"),
    *(define(f"<8 x i32> @edged.{name}_s(<8 x i32> %acc, <32 x i8> %x, <32 x i8> %y, <8 x i32> %scale)",
             "%u = call <32 x i8> @llvm.abs.v32i8(<32 x i8> %x, i1 false)",
             "%s = call <32 x i8> @llvm.x86.avx2.psign.b(<32 x i8> %y, <32 x i8> %x)",
             "%r = call <8 x i32> @edged.dot_scaled(<8 x i32> %acc, <32 x i8> %u, <32 x i8> %s, <8 x i32> %scale)",
             "ret <8 x i32> %r") for name in ("dot_scaled", "dot_scaled2")),
))  # fmt: skip


def _weights4_x86(n: int) -> str:
    return define(
        f"<{n} x i32> @edged.weights4(ptr %p, i64 %g)",
        "%a = getelementptr i32, ptr %p, i64 %g",
        "%w = load i32, ptr %a, align 1",
        *spread_first("r", "w", n),
        f"ret <{n} x i32> %r",
    )


_MADDUBS_STEP = "call <16 x i16> @llvm.x86.avx2.pmadd.ub.sw(<32 x i8> %u, <32 x i8> %s)"
AVX2 = _X86 + _weights4_x86(8) + "".join((
    define("<8 x i32> @edged.dot_us(<8 x i32> %acc, <32 x i8> %u, <32 x i8> %s)",
           f"%p = {_MADDUBS_STEP}",
           "%q = call <8 x i32> @llvm.x86.avx2.pmadd.wd(<16 x i16> %p, <16 x i16> splat (i16 1))",
           "%r = add <8 x i32> %q, %acc",
           "ret <8 x i32> %r"),
    define("<8 x i32> @edged.dot_scaled(<8 x i32> %acc, <32 x i8> %u, <32 x i8> %s, <8 x i32> %scale)",
           f"%p = {_MADDUBS_STEP}",
           "%c = bitcast <8 x i32> %scale to <16 x i16>",
           "%q = call <8 x i32> @llvm.x86.avx2.pmadd.wd(<16 x i16> %p, <16 x i16> %c)",
           "%r = add <8 x i32> %q, %acc",
           "ret <8 x i32> %r"),
    define("<16 x i16> @edged.tile_mul_u(<32 x i8> %s, <8 x i32> %w)",
           "%u = bitcast <8 x i32> %w to <32 x i8>",
           f"%r = {_MADDUBS_STEP}",
           "ret <16 x i16> %r"),
    define("<16 x i16> @edged.tile_mul_s(<32 x i8> %a, <8 x i32> %w)",
           "%x = bitcast <8 x i32> %w to <32 x i8>",
           "%u = call <32 x i8> @llvm.abs.v32i8(<32 x i8> %x, i1 false)",
           "%s = call <32 x i8> @llvm.x86.avx2.psign.b(<32 x i8> %a, <32 x i8> %x)",
           f"%r = {_MADDUBS_STEP}",
           "ret <16 x i16> %r"),
    *(define(f"<16 x i16> @edged.tile_add_{sign}(<32 x i8> %a, <8 x i32> %w, <16 x i16> %acc)",
             f"%p = call <16 x i16> @edged.tile_mul_{sign}(<32 x i8> %a, <8 x i32> %w)",
             "%r = add <16 x i16> %acc, %p",
             "ret <16 x i16> %r") for sign in "us"),
    define("<8 x i32> @edged.tile_widen(<8 x i32> %wide, <16 x i16> %acc)",
           "%p = call <8 x i32> @llvm.x86.avx2.pmadd.wd(<16 x i16> %acc, <16 x i16> splat (i16 1))",
           "%r = add <8 x i32> %p, %wide",
           "ret <8 x i32> %r"),
    define("<8 x i32> @edged.tile_finish(<8 x i32> %wide)", "ret <8 x i32> %wide"),
))  # fmt: skip

VNNI_INSTRUCTIONS = """
declare <8 x i32> @llvm.x86.avx512.vpdpbusd.256(<8 x i32>, <32 x i8>, <32 x i8>)
declare <8 x i32> @llvm.x86.avx512.vpdpwssd.256(<8 x i32>, <16 x i16>, <16 x i16>)
declare <16 x i32> @llvm.x86.avx512.vpdpbusd.512(<16 x i32>, <64 x i8>, <64 x i8>)
"""
VNNI = _X86 + _weights4_x86(16) + "".join((
    define("<8 x i32> @edged.dot_us(<8 x i32> %acc, <32 x i8> %u, <32 x i8> %s)",
           "%r = call <8 x i32> @llvm.x86.avx512.vpdpbusd.256(<8 x i32> %acc, <32 x i8> %u, <32 x i8> %s)",
           "ret <8 x i32> %r"),
    define("<8 x i32> @edged.dot_scaled(<8 x i32> %acc, <32 x i8> %u, <32 x i8> %s, <8 x i32> %scale)",
           f"%p = {_MADDUBS_STEP}",
           "%c = bitcast <8 x i32> %scale to <16 x i16>",
           "%r = call <8 x i32> @llvm.x86.avx512.vpdpwssd.256(<8 x i32> %acc, <16 x i16> %p, <16 x i16> %c)",
           "ret <8 x i32> %r"),
    # unsigned is the activation: it carries the bias of 128
    *(define(f"<16 x i32> @edged.tile_add_{sign}(<64 x i8> %a, <16 x i32> %w, <16 x i32> %acc)",
             "%s = bitcast <16 x i32> %w to <64 x i8>",
             "%r = call <16 x i32> @llvm.x86.avx512.vpdpbusd.512(<16 x i32> %acc, <64 x i8> %a, <64 x i8> %s)",
             "ret <16 x i32> %r") for sign in "us"),
    *(define(f"<16 x i32> @edged.tile_mul_{sign}(<64 x i8> %a, <16 x i32> %w)",
             f"%r = call <16 x i32> @edged.tile_add_{sign}(<64 x i8> %a, <16 x i32> %w, <16 x i32> zeroinitializer)",
             "ret <16 x i32> %r") for sign in "us"),
    define("<16 x i32> @edged.tile_widen(<16 x i32> %wide, <16 x i32> %acc)",
           "%r = add <16 x i32> %wide, %acc",
           "ret <16 x i32> %r"),
    define("<16 x i32> @edged.tile_finish(<16 x i32> %wide)", "ret <16 x i32> %wide"),
))  # fmt: skip
