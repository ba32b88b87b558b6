"""The primitives of each CPU level as LLVM IR; build time only.

`simd.py` says what each primitive means. A level is a target for LLVM, the values of the level-dependent parameters,
and one IR text that defines every primitive `alwaysinline`; the build links it to the kernels of that level.

The tile dot products are made of steps. A step multiplies 4 weights (`weights4` spreads them to all lanes) with 4
activations of each token and adds to a narrow accumulator: 16-bit lanes on CPUs without a dot-product instruction,
which hold `depth` steps. `tile_widen` adds that to a wide accumulator, `tile_finish` makes one sum per token of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from edged.kernels import simd
from edged.kernels.table import LEVEL_BY_NAME, Level


@dataclass(frozen=True)
class Target:
    """How to compile for one level.

    steps: IR of the primitives but for the tile dots; narrow, wide: IR types of a tile dot's accumulators; depths:
    steps that a narrow one holds, by weight class; lanes_row: lanes of a row-dot accumulator; prefetch: bytes that a
    row dot asks for ahead of what it reads.
    """

    level: Level
    triple: str
    cpu: str
    features: str
    steps: str
    narrow: str
    wide: str
    depths: dict[str, int]
    lanes_row: int
    prefetch: int
    nr_futex: int

    @property
    def primitives(self) -> str:
        """LLVM IR of every primitive."""
        return self.steps + "".join(self._tile_dot(c, panels) for c in self.depths for panels in (1, 2))

    def values(self) -> dict[str, Any]:
        """The parameters of kernel bodies at this level."""
        n = self.level.lanes
        return {
            "level": self.level.name, "NT": n, "BIAS": self.level.bias, "NR_FUTEX": self.nr_futex,
            "PREFETCH": self.prefetch,
            "i32xNT": simd.VECTORS[f"i32x{n}"], "f32xNT": simd.VECTORS[f"f32x{n}"],
            "i8xNT4": simd.VECTORS[f"i8x{4 * n}"], "f32xNT4": simd.VECTORS[f"f32x{4 * n}"],
            "i32xA": simd.VECTORS[f"i32x{self.lanes_row}"], "f32xA": simd.VECTORS[f"f32x{self.lanes_row}"],
        }  # fmt: skip

    def _tile_dot(self, weights: str, panels: int) -> str:
        """The primitive simd.tile_dot for one class of weights."""
        n, steps = self.level.lanes, WEIGHTS_PER_SCALE[weights] // 4
        lines = [f"%x{t} = getelementptr i8, ptr %x, i64 %o{t}" for t in range(panels)]
        lines = [f"%o{t} = mul i64 %size, {t}" for t in range(panels)] + lines
        for g in range(steps):
            fresh, full = g % self.depths[weights] == 0, (g + 1) % self.depths[weights] == 0 or g == steps - 1
            lines.append(f"%w{g} = call <{n} x i32> @edged.weights4(ptr %w, i64 {g})")
            for t in range(panels):
                step, narrow = f"{weights[0]}(<{4 * n} x i8> %v{t}.{g}, <{n} x i32> %w{g}", f"%s{t}.{g}"
                lines += [
                    f"%p{t}.{g} = getelementptr i8, ptr %x{t}, i64 {4 * n * g}",
                    f"%v{t}.{g} = load <{4 * n} x i8>, ptr %p{t}.{g}, align 1",
                    f"{narrow} = call {self.narrow} @edged.tile_mul_{step})" if fresh else
                    f"{narrow} = call {self.narrow} @edged.tile_add_{step}, {self.narrow} %s{t}.{g - 1})",
                ]  # fmt: skip
                if full:
                    before = [f"%wide{t}.{i}" for i in range(g) if (i + 1) % self.depths[weights] == 0]
                    wide = f"{self.wide} {before[-1] if before else 'zeroinitializer'}"
                    lines.append(
                        f"%wide{t}.{g} = call {self.wide} @edged.tile_widen({wide}, {self.narrow} {narrow})"
                    )
        last = f"{self.wide} %wide{{}}.{steps - 1}"
        lines += [f"%r{t} = call <{n} x i32> @edged.tile_finish({last.format(t)})" for t in range(panels)]
        if panels == 2:
            lines += [join("r", "r0", "r1", "i32", n), f"ret <{2 * n} x i32> %r"]
        else:
            lines.append(f"ret <{n} x i32> %r0")
        return define(f"<{panels * n} x i32> @edged.tile_dot_{weights}_{panels}(ptr %x, i64 %size, ptr %w)", *lines)


def define(head: str, *lines: str) -> str:
    """One inlined function. `head`: 'result @name(arguments)'."""
    body = "".join(f"  {line}\n" for line in lines)
    return f"define linkonce_odr {head} alwaysinline {{\n{body}}}\n"


def piece(out: str, source: str, element: str, n: int, start: int, count: int) -> str:
    """Lanes start .. start + count of an n-lane vector."""
    mask = ", ".join(f"i32 {i}" for i in range(start, start + count))
    return f"%{out} = shufflevector <{n} x {element}> %{source}, <{n} x {element}> poison, <{count} x i32> <{mask}>"


def join(out: str, a: str, b: str, element: str, n: int) -> str:
    """Two n-lane vectors, one after the other."""
    mask = ", ".join(f"i32 {i}" for i in range(2 * n))
    return f"%{out} = shufflevector <{n} x {element}> %{a}, <{n} x {element}> %{b}, <{2 * n} x i32> <{mask}>"


def spread_first(out: str, scalar: str, n: int) -> tuple[str, str]:
    """An i32 in n lanes."""
    return (
        f"%{out}.0 = insertelement <{n} x i32> poison, i32 %{scalar}, i32 0",
        f"%{out} = shufflevector <{n} x i32> %{out}.0, <{n} x i32> poison, <{n} x i32> zeroinitializer",
    )


_TWICE = ", ".join(f"i32 {i % 16}" for i in range(32))

# -- x86-64 ------------------------------------------------------------------------------------------------------------

_X86 = """
declare void @llvm.x86.sse2.pause()
declare <16 x i16> @llvm.x86.avx2.pmadd.ub.sw(<32 x i8>, <32 x i8>)
declare <8 x i32> @llvm.x86.avx2.pmadd.wd(<16 x i16>, <16 x i16>)
declare <32 x i8> @llvm.x86.avx2.psign.b(<32 x i8>, <32 x i8>)
declare <32 x i8> @llvm.abs.v32i8(<32 x i8>, i1)
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
           "%b = bitcast i32 %i to <32 x i1>",
           "%r = sext <32 x i1> %b to <32 x i8>",
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
_AVX2 = _X86 + _weights4_x86(8) + "".join((
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

_VNNI_INSTRUCTIONS = """
declare <8 x i32> @llvm.x86.avx512.vpdpbusd.256(<8 x i32>, <32 x i8>, <32 x i8>)
declare <8 x i32> @llvm.x86.avx512.vpdpwssd.256(<8 x i32>, <16 x i16>, <16 x i16>)
declare <16 x i32> @llvm.x86.avx512.vpdpbusd.512(<16 x i32>, <64 x i8>, <64 x i8>)
"""
_VNNI = _X86 + _weights4_x86(16) + "".join((
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

# -- AArch64 -----------------------------------------------------------------------------------------------------------


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
    return define(
        "<32 x i8> @edged.bits32(ptr %p)",
        "%i = load volatile float, ptr %p, align 1",
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


_LOAD_F16_ARM = ("%h = load half, ptr %p, align 1", "%r = fpext half %h to float", "ret float %r")
_HALVES = tuple(piece(f"{v}{i}", v, "i8", 32, 16 * i, 16) for v in "us" for i in (0, 1))
_ARM = "declare void @llvm.aarch64.hint(i32)\n" + _bits32_arm() + _scales_arm("u", "zext") + _scales_arm("s", "sext")
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
_DOTPROD = _ARM + f"declare <4 x i32> @{_SDOT}(<4 x i32>, <16 x i8>, <16 x i8>)\n" + "".join((
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
_NEON = _ARM + """
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

# -- the levels --------------------------------------------------------------------------------------------------------

_X86_TRIPLE, _ARM_TRIPLE = "x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"
# Weight classes: unsigned 0 .. 15 and 0 .. 31, signed -32 .. 31 and -128 .. 127.
WEIGHTS_PER_SCALE = {"u4": 32, "u5": 32, "s6": 16, "s8": 32}
# A 16-bit lane of vpmaddubsw sums 2 products per step, of smull 1; the largest are 15, 31, 32 and 128 times 127.
_DEPTHS_AVX2 = {"u4": 8, "u5": 4, "s6": 4, "s8": 1}
_DEPTHS_NEON = {"u4": 8, "u5": 8, "s6": 4, "s8": 2}
_DEPTHS_DOT = {weights: count // 4 for weights, count in WEIGHTS_PER_SCALE.items()}

TARGETS: dict[str, Target] = {
    t.level.name: t
    for t in (
        Target(LEVEL_BY_NAME["x86_64_vnni512"], _X86_TRIPLE, "x86-64-v4", "+avx512vnni", _VNNI + _VNNI_INSTRUCTIONS,
               narrow="<16 x i32>", wide="<16 x i32>", depths=_DEPTHS_DOT, lanes_row=8, prefetch=6144, nr_futex=202),
        Target(LEVEL_BY_NAME["x86_64_v3"], _X86_TRIPLE, "x86-64-v3", "", _AVX2,
               narrow="<16 x i16>", wide="<8 x i32>", depths=_DEPTHS_AVX2, lanes_row=8, prefetch=6144, nr_futex=202),
        Target(LEVEL_BY_NAME["aarch64_dotprod"], _ARM_TRIPLE, "cortex-a76", "+dotprod", _DOTPROD,
               narrow="<8 x i32>", wide="<8 x i32>", depths=_DEPTHS_DOT, lanes_row=4, prefetch=2048, nr_futex=98),
        Target(LEVEL_BY_NAME["aarch64_neon"], _ARM_TRIPLE, "cortex-a72", "", _NEON,
               narrow="<32 x i16>", wide="<16 x i32>", depths=_DEPTHS_NEON, lanes_row=4, prefetch=2048, nr_futex=98),
    )
}  # fmt: skip
