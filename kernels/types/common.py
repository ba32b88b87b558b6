"""What the kernels of all tensor types share; build time only.

A type file registers its row-dot body with `rows_kernel`, which makes `matvec_<t>` and `matvec_rows_<t>` of it, and its
unpacking body with one of the tile registrations.

The row-dot body computes ROWS activation rows at once (x, x + xstride, ...), each weight row decoded once:

    y[n * ldy + r] = dot(w[r], x[n])   for r in r0 .. r1, n in 0 .. ROWS     (+= if add)

with the same operations in the same order for each n, whatever ROWS is: results are bit-equal.
"""

from __future__ import annotations

from edged.kernels.export import export, extern, helper
from edged.kernels.simd import f32, load, store
from edged.kernels.unroll import Param

ROWS = Param("ROWS")
PREFETCH = 2048  # bytes ahead of the weights being read; most of the gain over unhinted streaming from DRAM
WEIGHT_ROWS = 8  # weight rows that matvec_rows keeps in cache while it goes through the activation rows

_ROWS = "ptr, i64, i64, i64, i64, ptr, i64, ptr, i64, i64"
_dot1, _dot2, _dot4 = Param("dot1"), Param("dot2"), Param("dot4")


def rows_kernel(name, **values):
    """Decorator of the row-dot body (w, stride, r0, r1, k, x, xstride, y, ldy, add) of tensor type `name`.

    values: parameters of the body.
    """

    def register(body):
        parts = {}
        for rows in (1, 2, 4):
            export(_ROWS, name=f"dot{rows}_{name}", internal=True, ROWS=rows, **values)(body)
            parts[f"dot{rows}"] = extern(f"dot{rows}_{name}", _ROWS)
        export("ptr, i64, i64, i64, i64, ptr, ptr, i64", name=f"matvec_{name}", **parts)(matvec)
        export("ptr, i64, i64, i64, i64, ptr, i64, i64, ptr, i64, i64", name=f"matvec_rows_{name}", **parts)(matvec_rows)
        return body

    return register


def matvec(w, stride, r0, r1, k, x, y, add):
    _dot1(w, stride, r0, r1, k, x, 0, y, 0, add)


def matvec_rows(w, stride, r0, r1, k, x, xstride, nrows, y, ldy, add):
    for b in range(r0, r1, WEIGHT_ROWS):
        e = min(b + WEIGHT_ROWS, r1)
        n = 0
        while n + 4 <= nrows:
            _dot4(w, stride, b, e, k, x + n * xstride, xstride, y + n * ldy * 4, ldy, add)
            n += 4
        if n + 2 <= nrows:
            _dot2(w, stride, b, e, k, x + n * xstride, xstride, y + n * ldy * 4, ldy, add)
            n += 2
        if n < nrows:
            _dot1(w, stride, b, e, k, x + n * xstride, xstride, y + n * ldy * 4, ldy, add)


@helper
def align64(n):
    return (n + 63) & -64


@helper
def put(y, v, add):
    """y = v, or y += v."""
    if add:
        store(f32, y, load(f32, y) + v)
    else:
        store(f32, y, v)
