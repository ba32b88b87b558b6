"""exp, log, tanh and the logistic function on eight floats, within 2 ulp, and the normal distribution; NaN in, NaN
out. Build-time only."""

from __future__ import annotations

from edged.kernels.export import helper
from edged.kernels.simd import (
    ashr,
    bitcast,
    cvt_f32,
    cvt_i32,
    f32,
    f32x8,
    fma,
    get,
    i32,
    i32x8,
    shl,
    splat,
    vabs,
    vround,
    where_gt,
)

EXP_MAX = 89.0  # results above 2**127.5 are inf
EXP_MIN = -87.33  # results below the smallest normal number are flushed to zero


@helper
def vexp(x):
    """e**x. Cephes expf: x = n ln 2 + r, a polynomial of degree 6 in r, times 2**n."""
    t = where_gt(x, splat(f32x8, f32(EXP_MAX)), splat(f32x8, f32(EXP_MAX)), x)
    t = where_gt(splat(f32x8, f32(EXP_MIN)), t, splat(f32x8, f32(EXP_MIN)), t)
    n = vround(t * splat(f32x8, f32(1.44269504088896341)))
    r = fma(n, splat(f32x8, f32(-0.693359375)), t)
    r = fma(n, splat(f32x8, f32(2.12194440e-4)), r)
    p = splat(f32x8, f32(1.9875691500e-4))
    p = fma(p, r, splat(f32x8, f32(1.3981999507e-3)))
    p = fma(p, r, splat(f32x8, f32(8.3334519073e-3)))
    p = fma(p, r, splat(f32x8, f32(4.1665795894e-2)))
    p = fma(p, r, splat(f32x8, f32(1.6666665459e-1)))
    p = fma(p, r, splat(f32x8, f32(5.0000001201e-1)))
    p = fma(p * r, r, r + splat(f32x8, f32(1.0)))
    y = p * bitcast(f32x8, shl(cvt_i32(n) + splat(i32x8, i32(127)), 23))
    return where_gt(splat(f32x8, f32(EXP_MIN)), x, splat(f32x8, f32(0.0)), y)


@helper
def exp_of(x):
    """e**x of one float."""
    return get(vexp(splat(f32x8, x)), 0)


@helper
def vlog(x):
    """ln x of normal positive x. Cephes logf: x = 2**n (1 + z) with 1 + z in sqrt(1/2)..sqrt(2), a polynomial in z."""
    bits = bitcast(i32x8, x) - splat(i32x8, i32(0x3F3504F3))  # sqrt(1/2)
    n = cvt_f32(ashr(bits, 23))
    mantissa = (bits & splat(i32x8, i32(0x7FFFFF))) + splat(i32x8, i32(0x3F3504F3))
    z = bitcast(f32x8, mantissa) - splat(f32x8, f32(1.0))
    p = splat(f32x8, f32(7.0376836292e-2))
    p = fma(p, z, splat(f32x8, f32(-1.1514610310e-1)))
    p = fma(p, z, splat(f32x8, f32(1.1676998740e-1)))
    p = fma(p, z, splat(f32x8, f32(-1.2420140846e-1)))
    p = fma(p, z, splat(f32x8, f32(1.4249322787e-1)))
    p = fma(p, z, splat(f32x8, f32(-1.6668057665e-1)))
    p = fma(p, z, splat(f32x8, f32(2.0000714765e-1)))
    p = fma(p, z, splat(f32x8, f32(-2.4999993993e-1)))
    p = fma(p, z, splat(f32x8, f32(3.3333331174e-1)))
    zz = z * z
    y = fma(n, splat(f32x8, f32(-2.12194440e-4)), p * zz * z)
    y = fma(zz, splat(f32x8, f32(-0.5)), y)
    return fma(n, splat(f32x8, f32(0.693359375)), z + y)


@helper
def log_of(x):
    """ln x of one normal positive float."""
    return get(vlog(splat(f32x8, x)), 0)


@helper
def vsigmoid(x):
    """1 / (1 + e**-x)."""
    one = splat(f32x8, f32(1.0))
    return one / (one + vexp(x * splat(f32x8, f32(-1.0))))


@helper
def vtanh(x):
    """tanh x. Cephes tanhf: odd polynomial below 0.625, 1 - 2 / (e**2|x| + 1) above."""
    one = splat(f32x8, f32(1.0))
    a = vabs(x)
    big = one - splat(f32x8, f32(2.0)) / (vexp(a + a) + one)
    big = where_gt(splat(f32x8, f32(0.0)), x, big * splat(f32x8, f32(-1.0)), big)
    z = x * x
    p = splat(f32x8, f32(-5.70498872745e-3))
    p = fma(p, z, splat(f32x8, f32(2.06390887954e-2)))
    p = fma(p, z, splat(f32x8, f32(-5.37397155531e-2)))
    p = fma(p, z, splat(f32x8, f32(1.33314422036e-1)))
    p = fma(p, z, splat(f32x8, f32(-3.33332819422e-1)))
    return where_gt(a, splat(f32x8, f32(0.625)), big, fma(p * z, x, x))


@helper
def vnormal(x):
    """Standard normal distribution Phi(x) = (1 + erf(x / sqrt 2)) / 2, within 1e-7.

    Abramowitz and Stegun, Handbook of Mathematical Functions, 7.1.26; the tail is not taken from 1, so it stays exact.
    """
    z = vabs(x) * splat(f32x8, f32(0.70710678118654752))
    one = splat(f32x8, f32(1.0))
    t = one / fma(z, splat(f32x8, f32(0.3275911)), one)
    p = splat(f32x8, f32(1.061405429))
    p = fma(p, t, splat(f32x8, f32(-1.453152027)))
    p = fma(p, t, splat(f32x8, f32(1.421413741)))
    p = fma(p, t, splat(f32x8, f32(-0.284496736)))
    p = fma(p, t, splat(f32x8, f32(0.254829592)))
    tail = p * t * vexp(z * z * splat(f32x8, f32(-1.0))) * splat(f32x8, f32(0.5))
    return where_gt(splat(f32x8, f32(0.0)), x, tail, one - tail)
