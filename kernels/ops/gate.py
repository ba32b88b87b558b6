"""gate: d = act(a) * b with act SiLU (x * sigmoid(x)) or GELU in its tanh or erf form; without b, d = act(a).

GELU, tanh form (Hendrycks, Gimpel, arXiv 1606.08415): 0.5 x (1 + tanh u) = x * sigmoid(2 u),
u = sqrt(2 / pi) (x + 0.044715 x**3). Erf form: x * Phi(x), Phi the normal distribution, within 1e-7.
"""

from __future__ import annotations

import math

import numpy as np

from edged.kernels.export import export, helper
from edged.kernels.ops.elementary import vnormal, vsigmoid
from edged.kernels.ops.record import I0, OP_SIGNATURE, A, B, D, N, columns, decode_rows, prompt_rows
from edged.kernels.simd import address, f32, f32x8, i64, load, ptr, splat, store

GELU, GELU_ERF = 1, 2
TWO_SQRT_2_PI = 1.5957691216057308  # 2 sqrt(2 / pi)


def reference(a: np.ndarray, b: np.ndarray | None, kind: int) -> np.ndarray:
    """a, b: (rows, n)."""
    x = a.astype(np.float64)
    if kind == GELU_ERF:
        y = x * np.vectorize(lambda v: math.erfc(-v / math.sqrt(2)) / 2)(x)
        return y if b is None else y * b
    u = TWO_SQRT_2_PI * (x + 0.044715 * x**3) if kind == GELU else x
    y = x / (1 + np.exp(-u))
    return y if b is None else y * b


@helper
def gate_row(a, b, d, act, product, c0, c1):
    for i in range(c0 // 8, c1 // 8):
        x = load(f32x8, a + i * 32)
        u = x
        if act == GELU:
            cubic = splat(f32x8, f32(0.044715 * TWO_SQRT_2_PI)) * x * x
            u = x * (cubic + splat(f32x8, f32(TWO_SQRT_2_PI)))
        if act == GELU_ERF:
            y = x * vnormal(x)
        else:
            y = x * vsigmoid(u)
        if product:
            y = y * load(f32x8, b + i * 32)
        store(f32x8, d + i * 32, y)


@export(OP_SIGNATURE)
def op_gate(op, state, ith, nth):
    n, act = load(i64, op + N), load(i64, op + I0)
    a, b, d = load(ptr, op + A), load(ptr, op + B), load(ptr, op + D)
    product = address(b) != 0
    c0, c1 = columns(n, ith, nth)
    for r in range(decode_rows(op, state)):
        gate_row(a + r * n * 4, b + r * n * 4, d + r * n * 4, act, product, c0, c1)
    r0, r1 = prompt_rows(op, state, ith, nth)
    for r in range(r0, r1):
        gate_row(a + r * n * 4, b + r * n * 4, d + r * n * 4, act, product, 0, n)
