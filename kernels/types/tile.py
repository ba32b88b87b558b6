"""Tile kernels, the prompt path of all tensor types; build time only.

A tile kernel unpacks some weight rows into the thread's scratch and multiplies them, four at a time, with one or two
panels of NT tokens. Lanes are tokens: there are no horizontal sums, a token's result depends on nothing but its own
lane, and rows or tokens that fill up a block are computed and not stored.

Scratch for `rb` rows of k weights, as `unpack(w, stride, rows, k, wq, wd, wm, wc)` of an integer type leaves it:

    wq i8[rb][k] | wd f32[rb][k/G] scale | wm f32[rb][k/O] offset | wc i32[rb][k/G] = -BIAS * sum(q) | ... | out

with w = wd * q + wm, G = 32 weights per scale (16 in Q6_K) and O = 32 per offset (16 in Q2_K). Float types:
wf f32[rb][k] | ... | out. `out` starts at rb * 4 * k (table.tile_scratch_bytes).
"""

from __future__ import annotations

from dataclasses import dataclass

from edged.kernels.export import export, extern, helper
from edged.kernels.simd import (
    BIAS,
    NT,
    VECTORS,
    atomic_load,
    bitcast,
    concat,
    cvt_f32,
    dot_us,
    f32,
    f32x4,
    f32xNT,
    fma,
    high,
    hsum,
    i8x16,
    i8x32,
    i32,
    i32xA,
    load,
    low,
    shuffle,
    splat,
    store,
    tile_dot,
    weights4,
    zero,
)
from edged.kernels.table import ACT_F32, ACT_Q8_32, ACT_Q8_256, TYPE_BY_NAME
from edged.kernels.types.common import align64, put
from edged.kernels.unroll import Param, static


@dataclass(frozen=True)
class Shape:
    """What a micro-kernel needs to know of the unpacked weights.

    weights: class of their values, see levels.py. scale: weights per scale. offset: weights per offset, 0: no wm.
    act: weights per activation scale.
    """

    weights: str
    scale: int = 32
    offset: int = 0
    act: int = 32

    @property
    def name(self) -> str:
        return f"{self.weights}_{self.act}" + ("_offset16" if self.offset == 16 else "")


SHAPES = (
    Shape("u4", offset=32), Shape("u5", offset=32), Shape("s8"),
    Shape("u4", offset=32, act=256), Shape("u5", offset=32, act=256), Shape("s8", act=256),
    Shape("s6", scale=16, act=256), Shape("s7", scale=16, act=256), Shape("s6", scale=16, offset=16, act=256),
)

PANELS, OFFSET, SCALE, ACT = Param("PANELS"), Param("OFFSET"), Param("SCALE"), Param("ACT")
f32xNT4 = Param("f32xNT4")
i32xPNT = Param("i32xPNT", lambda v: VECTORS[f"i32x{v['PANELS'] * v['NT']}"])
transpose = Param("transpose", lambda v: shuffle([r * v["NT"] + t for t in range(v["NT"]) for r in range(4)]))


# (k, wq, wd, wm, wc, x, size, out, y, ldy, rows, tokens, add); x: first of PANELS panels of `size` bytes
_MICRO = "i64, ptr, ptr, ptr, ptr, ptr, i64, ptr, ptr, i64, i64, i64, i64"


def micro(k, wq, wd, wm, wc, x, size, out, y, ldy, rows, tokens, add):
    """4 weight rows x PANELS panels; stores the first `rows` rows and `tokens` tokens."""
    xd = x + align64(k * NT)
    xs = xd + align64(4 * (k // ACT) * NT)
    ns = k // SCALE
    if OFFSET == 16:
        store(i8x16, out, splat(i8x16, 1))
    for r in static(4):
        for t in static(PANELS):
            f[r, t] = zero(f32xNT)
    for b in range(k // ACT):
        for t in static(PANELS):
            dx[t] = load(f32xNT, xd + (t * size + b * 4 * NT))
        if ACT > SCALE:
            for r in static(4):
                for t in static(PANELS):
                    e[r, t] = zero(f32xNT)
        for i in range(b * (ACT // SCALE), (b + 1) * (ACT // SCALE)):
            for r in static(4):
                c = tile_dot(x + i * SCALE * NT, size, wq + (r * k + i * SCALE))
                if BIAS != 0:
                    c = c + splat(i32xPNT, load(i32, wc + (r * ns + i) * 4))
                d = splat(f32xNT, load(f32, wd + (r * ns + i) * 4))
                for t in static(PANELS):
                    n = cvt_f32(part(c, t))
                    if ACT > SCALE:
                        e[r, t] = fma(n, d, e[r, t])
                    else:
                        f[r, t] = fma(n, d * dx[t], f[r, t])
        if ACT > SCALE:
            for r in static(4):
                for t in static(PANELS):
                    f[r, t] = fma(e[r, t], dx[t], f[r, t])
        if OFFSET == 16:  # panels have no sums of 16: multiply with ones
            for i in range(b * (ACT // 16), (b + 1) * (ACT // 16)):
                c = tile_dot(x + i * 16 * NT, size, out)
                if BIAS != 0:
                    c = c - splat(i32xPNT, i32(16 * BIAS))
                for t in static(PANELS):
                    sx[t] = cvt_f32(part(c, t)) * dx[t]
                for r in static(4):
                    m = splat(f32xNT, load(f32, wm + (r * ns + i) * 4))
                    for t in static(PANELS):
                        f[r, t] = fma(m, sx[t], f[r, t])
        if OFFSET == 32:
            for j in range(b * (ACT // 32), (b + 1) * (ACT // 32)):
                for t in static(PANELS):
                    sx[t] = load(f32xNT, xs + (t * size + j * 4 * NT))
                for r in static(4):
                    m = splat(f32xNT, load(f32, wm + (r * (k // 32) + j) * 4))
                    for t in static(PANELS):
                        f[r, t] = fma(m, sx[t], f[r, t])
    for t in static(PANELS):
        store(f32xNT4, out + t * 16 * NT, transpose(concat(concat(f[0, t], f[1, t]), concat(f[2, t], f[3, t]))))
    put_block(out, y, ldy, rows, tokens, add)


def micro_f32(k, wf, wd, wm, wc, x, size, out, y, ldy, rows, tokens, add):
    """The same over f32 rows and panels; wd, wm and wc are not used."""
    for r in static(4):
        for t in static(PANELS):
            f[r, t] = zero(f32xNT)
    for i in range(k // 4):
        for j in static(4):
            for t in static(PANELS):
                v[t] = load(f32xNT, x + (t * size + (i * 4 + j) * 4 * NT))
            for r in static(4):
                w = bitcast(f32xNT, weights4(wf + (r * k + i * 4) * 4, j))
                for t in static(PANELS):
                    f[r, t] = fma(w, v[t], f[r, t])
    for t in static(PANELS):
        store(f32xNT4, out + t * 16 * NT, transpose(concat(concat(f[0, t], f[1, t]), concat(f[2, t], f[3, t]))))
    put_block(out, y, ldy, rows, tokens, add)


@helper
def part(c, t):
    """Panel t of the result of tile_dot."""
    if PANELS == 1:
        return c
    if t == 0:
        return low(c)
    return high(c)


@helper
def put_block(out, y, ldy, rows, tokens, add):
    """out f32[tokens][4] -> y f32[tokens][ldy], the first `rows` of each four."""
    for t in range(min(tokens, PANELS * NT)):
        to = y + t * ldy * 4
        v = load(f32x4, out + t * 16)
        if rows == 4:
            if add:
                v = v + load(f32x4, to)
            store(f32x4, to, v)
        else:
            for r in range(rows):
                put(to + r * 4, load(f32, out + (t * 16 + r * 4)), add)


# (w, stride, r0, r1, k, panels, n_prompt, y, ldy, add, scratch, stop)
_TILE = "ptr, i64, i64, i64, i64, ptr, i64, ptr, i64, i64, ptr, ptr"
_UNPACK = "ptr, i64, i64, i64, ptr, ptr, ptr, ptr"
KIND = Param("KIND")
_unpack, _micro1, _micro2 = Param("unpack"), Param("micro1"), Param("micro2")


def tile(w, stride, r0, r1, k, panels, n_prompt, y, ldy, add, scratch, stop):
    """y[token * ldy + r] = dot(w[r], x[token]) (+= if add); returns early when *stop is set."""
    rb = max(4, min(32, 65536 // k // 4 * 4))  # table.tile_rows
    size = align64(4 * k * NT)  # table.act_panel_parts
    if KIND == ACT_Q8_32:
        size = align64(k * NT) + 2 * align64(k // 8 * NT)
    if KIND == ACT_Q8_256:
        size = align64(k * NT) + align64(k // 64 * NT) + align64(k // 8 * NT)
    wd = scratch + rb * k
    wm = wd + rb * (k // 4)
    wc = wm + rb * (k // 4)
    row = k
    scales = k // SCALE * 4
    offsets = k // 32 * 4
    if OFFSET == 16:
        offsets = k // 16 * 4
    if KIND == ACT_F32:
        row = k * 4
    out = scratch + rb * 4 * k
    for b in range(r0, r1, rb):
        if atomic_load(i32, stop) != 0:
            return
        rows = min(rb, r1 - b)
        _unpack(w + b * stride, stride, rows, k, scratch, wd, wm, wc)
        for t in range(0, n_prompt, 2 * NT):
            x = panels + t // NT * size
            for r in range(0, rows, 4):
                at = y + (t * ldy + b + r) * 4
                wq, d, m, c = scratch + r * row, wd + r * scales, wm + r * offsets, wc + r * scales
                n = min(4, rows - r)
                if n_prompt - t > NT:
                    _micro2(k, wq, d, m, c, x, size, out, at, ldy, n, n_prompt - t, add)
                else:
                    _micro1(k, wq, d, m, c, x, size, out, at, ldy, n, n_prompt - t, add)


@helper
def bias_correction(q):
    """-BIAS * sum of 32 bytes."""
    return -BIAS * hsum(dot_us(zero(i32xA), splat(i8x32, 1), q))


def tile_kernel(name, shape=None, **values):
    """Decorator of `unpack(w, stride, rows, k, wq, wd, wm, wc)` of tensor type `name`; no shape: a float type.

    values: parameters of the body.
    """

    def register(body):
        micros = shape.name if shape else "f32"
        export(_UNPACK, name=f"unpack_{name}", internal=True, **values)(body)
        export(
            _TILE, name=f"tile_{name}", KIND=TYPE_BY_NAME[name].act, SCALE=shape.scale if shape else 32,
            OFFSET=shape.offset if shape else 0,
            unpack=extern(f"unpack_{name}", _UNPACK),
            micro1=extern(f"micro1_{micros}", _MICRO), micro2=extern(f"micro2_{micros}", _MICRO),
        )(tile)  # fmt: skip
        return body

    return register


for _panels in (1, 2):
    export(_MICRO, name=f"micro{_panels}_f32", internal=True, PANELS=_panels)(micro_f32)
    for _shape in SHAPES:
        export(
            _MICRO, name=f"micro{_panels}_{_shape.name}", internal=True, PANELS=_panels, weights=_shape.weights,
            SCALE=_shape.scale, OFFSET=_shape.offset, ACT=_shape.act,
        )(micro)  # fmt: skip
