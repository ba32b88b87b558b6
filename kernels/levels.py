"""The primitives of each CPU level as LLVM IR; build time only.

`simd.py` says what each primitive means. A level is a target for LLVM, the values of the level-dependent parameters,
and one IR text (`primitives_x86.py`, `primitives_arm.py`) that defines every primitive `alwaysinline`; the build
links it to the kernels of that level.

The tile dot products are made of steps. A step multiplies 4 weights (`weights4` spreads them to all lanes) with 4
activations of each token and adds to a narrow accumulator: 16-bit lanes on CPUs without a dot-product instruction,
which hold `depth` steps. `tile_widen` adds that to a wide accumulator, `tile_finish` makes one sum per token of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from edged.kernels import primitives_arm, primitives_x86, simd
from edged.kernels.primitives import define, join
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


# -- the levels --------------------------------------------------------------------------------------------------------

_X86_TRIPLE, _ARM_TRIPLE = "x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"
# Weight classes: unsigned 0 .. 15 and 0 .. 31, signed -32 .. 31, -63 .. 63 and -128 .. 127.
WEIGHTS_PER_SCALE = {"u4": 32, "u5": 32, "s6": 16, "s7": 16, "s8": 32}
# A 16-bit lane of vpmaddubsw sums 2 products per step, of smull 1; the largest are 15, 31, 32, 63 and 128 times 127.
_DEPTHS_AVX2 = {"u4": 8, "u5": 4, "s6": 4, "s7": 2, "s8": 1}
_DEPTHS_NEON = {"u4": 8, "u5": 8, "s6": 4, "s7": 4, "s8": 2}
_DEPTHS_DOT = {weights: count // 4 for weights, count in WEIGHTS_PER_SCALE.items()}

TARGETS: dict[str, Target] = {
    t.level.name: t
    for t in (
        Target(LEVEL_BY_NAME["x86_64_vnni512"], _X86_TRIPLE, "x86-64-v4", "+avx512vnni",
               primitives_x86.VNNI + primitives_x86.VNNI_INSTRUCTIONS,
               narrow="<16 x i32>", wide="<16 x i32>", depths=_DEPTHS_DOT, lanes_row=8, prefetch=6144, nr_futex=202),
        Target(LEVEL_BY_NAME["x86_64_v3"], _X86_TRIPLE, "x86-64-v3", "", primitives_x86.AVX2,
               narrow="<16 x i16>", wide="<8 x i32>", depths=_DEPTHS_AVX2, lanes_row=8, prefetch=6144, nr_futex=202),
        Target(LEVEL_BY_NAME["aarch64_dotprod"], _ARM_TRIPLE, "cortex-a76", "+dotprod", primitives_arm.DOTPROD,
               narrow="<8 x i32>", wide="<8 x i32>", depths=_DEPTHS_DOT, lanes_row=4, prefetch=2048, nr_futex=98),
        Target(LEVEL_BY_NAME["aarch64_neon"], _ARM_TRIPLE, "cortex-a72", "", primitives_arm.NEON,
               narrow="<32 x i16>", wide="<16 x i32>", depths=_DEPTHS_NEON, lanes_row=4, prefetch=2048, nr_futex=98),
    )
}  # fmt: skip
