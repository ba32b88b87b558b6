"""What the kernels of all tensor types share; build time only.

A type file registers its row-dot body with `rows_kernel`, which makes `matvec_<t>` and `matvec_rows_<t>` of it, and its
unpacking body with one of the tile registrations.

The row-dot body computes ROWS activation rows at once (x, x + xstride, ...), each weight row decoded once:

    y[n * ldy + r] = dot(w[r], x[n])   for r in r0 .. r1, n in 0 .. ROWS     (+= if add)

with the same operations in the same order for each r and n, whatever ROWS is: results are bit-equal. A body in which
one chain of fma per block limits the speed takes PAIR weight rows at once: two chains for one activation row.
"""

from __future__ import annotations

from edged.kernels.export import export, extern, helper
from edged.kernels.simd import f32, load, store
from edged.kernels.unroll import Param

ROWS, PAIR = Param("ROWS"), Param("PAIR")
PREFETCH = Param("PREFETCH")  # bytes ahead of the weights being read
WEIGHT_ROWS = 8  # weight rows that matvec_rows keeps in cache while it goes through the activation rows

_MATVEC = "ptr, i64, i64, i64, i64, ptr, ptr, i64"
_MATVEC_ROWS = "ptr, i64, i64, i64, i64, ptr, i64, i64, ptr, i64, i64"
_ROWS = "ptr, i64, i64, i64, i64, ptr, i64, ptr, i64, i64"
_dot1, _dot2, _dot4 = Param("dot1"), Param("dot2"), Param("dot4")
_dot1_pair = Param("dot1_pair", lambda v: v["dot1"])


def rows_kernel(name, pair=1, **values):
    """Decorator of the row-dot body (w, stride, r0, r1, k, x, xstride, y, ldy, add) of tensor type `name`.

    pair: weight rows at once for one activation row. values: other parameters of the body.
    """

    def register(body):
        parts = {"PAIR": pair}
        for part, rows, weight_rows in (("dot1", 1, 1), ("dot2", 2, 1), ("dot4", 4, 1), ("dot1_pair", 1, 2)):
            if weight_rows <= pair:
                export(_ROWS, name=f"{part}_{name}", internal=True, ROWS=rows, PAIR=weight_rows, **values)(body)
                parts[part] = extern(f"{part}_{name}", _ROWS)
        export(_MATVEC, name=f"matvec_{name}", **parts)(matvec)
        export(_MATVEC_ROWS, name=f"matvec_rows_{name}", **parts)(matvec_rows)
        return body

    return register


def matvec(w, stride, r0, r1, k, x, y, add):
    odd = r0 + (r1 - r0) // PAIR * PAIR
    _dot1_pair(w, stride, r0, odd, k, x, 0, y, 0, add)
    _dot1(w, stride, odd, r1, k, x, 0, y, 0, add)


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
