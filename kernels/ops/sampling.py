"""Choosing the next token from a row of logits, without Python touching an array of the vocabulary's size.

    sample(logits, n, SAMPLING record) -> token id, SAMPLE_NOT_FINITE or SAMPLE_NO_TOKEN; leaves the logits as found
    logprobs(logits, n, id, top, ids, values) -> log-probability of `id`; writes the `top` (<= n) best ids, best first,
        and their log-probabilities; NaN if a logit is NaN or inf, or all are -inf

Tokens rank by logit, equal ones by id. Each filter keeps a prefix of that ranking, so all of them together do. The
prefix is popped from a heap of candidates: the top k or, without top-k, all that min-p lets pass; the vocabulary is
never sorted. Without any filter the draw runs over the vocabulary in the order of ids.
"""

from __future__ import annotations

import numpy as np
from numba import float64 as f64

from edged.kernels.export import export, extern, helper
from edged.kernels.ops.attention_cache import max_of
from edged.kernels.ops.elementary import exp_of, log_of, vexp
from edged.kernels.simd import (
    bitcast,
    f32,
    f32x8,
    get,
    hmax,
    hsum,
    i32,
    i32x8,
    i64,
    load,
    ptr,
    splat,
    store,
    u32,
    where_gt,
    zero,
)
from edged.kernels.table import SAMPLE_NO_TOKEN, SAMPLE_NOT_FINITE, SAMPLING
from edged.kernels.unroll import static

(
    TEMPERATURE, TOP_P, MIN_P, REPEAT, PRESENCE, FREQUENCY, TOP_K, DRAW,
    N_BIAS, N_SEEN, BIAS_IDS, BIAS, SEEN_IDS, SEEN_COUNTS, SCRATCH,
) = (SAMPLING.fields[name][1] for name in SAMPLING.names)  # fmt: skip
CHUNK = 64  # logits looked at together
UNIT = 2.0**-32  # draws are whole numbers below 2**32
MINUS_INF = float("-inf")


def reference(logits: np.ndarray, p: dict[str, float], draw: int) -> tuple[int, np.ndarray]:
    """Filtered choice from adjusted logits: the id, and the kept ids, best first. p: the float fields and top_k."""
    x = logits.astype(np.float64)
    kept = np.lexsort((np.arange(len(x)), -x))
    if p["temperature"] <= 0:
        return int(kept[0]), kept[:1]
    filtered = 0 < p["top_k"] < len(x) or p["top_p"] < 1 or p["min_p"] > 0
    if 0 < p["top_k"] < len(x):
        kept = kept[: int(p["top_k"])]
    weight = np.exp(x[kept] - x[kept[0]])
    if p["top_p"] < 1:
        enough = np.cumsum(weight) >= p["top_p"] * weight.sum()
        kept = kept[: int(np.argmax(enough)) + 1]
    if p["min_p"] > 0:
        kept = kept[np.exp(x[kept] - x[kept[0]]) >= p["min_p"]]
    order = kept if filtered else np.sort(kept)
    weight = np.exp((x[order] - x[kept[0]]) / p["temperature"])
    chosen = np.searchsorted(np.cumsum(weight), draw / 2**32 * weight.sum(), side="right")
    return int(order[min(chosen, len(order) - 1)]), kept


# -- passes over the vocabulary ----------------------------------------------------------------------------------------


@helper
def logit(logits, i):
    return load(f32, logits + i * 4)


@helper
def chunk_max(logits, i0, i1):
    """Largest logit of i0..i1, at most CHUNK. No NaN."""
    m = splat(f32x8, f32(MINUS_INF))
    whole = i0 + (i1 - i0) // 8 * 8
    for i in range(i0, whole, 8):
        v = load(f32x8, logits + i * 4)
        m = where_gt(v, m, v, m)
    best = hmax(m)
    for i in range(whole, i1):
        best = max_of(best, logit(logits, i))
    return best


@helper
def chunk_sum(logits, i0, i1, m, temperature):
    """Sum of exp((logit - m) / temperature) over i0..i1. Divides: 1 / temperature may overflow."""
    total = zero(f32x8)
    whole = i0 + (i1 - i0) // 8 * 8
    for i in range(i0, whole, 8):
        total = total + vexp((load(f32x8, logits + i * 4) - splat(f32x8, m)) / splat(f32x8, temperature))
    s = hsum(total)
    for i in range(whole, i1):
        s = s + exp_of((logit(logits, i) - m) / temperature)
    return s


@export("ptr, i64 -> i32", internal=True)
def largest_magnitude(logits, n):
    """Bits of the largest |logit|: floats without sign order like their bits, and NaN comes above infinity."""
    m = zero(i32x8)
    mask = splat(i32x8, i32(0x7FFFFFFF))
    for i in range(n // 8):
        a = bitcast(i32x8, load(f32x8, logits + i * 32)) & mask
        m = where_gt(a, m, a, m)
    best = i32(0)
    for j in static(8):
        best = max(best, get(m, j))
    for i in range(n // 8 * 8, n):
        best = max(best, load(i32, logits + i * 4) & i32(0x7FFFFFFF))
    return best


@export("ptr, i64 -> i64", internal=True)
def best_token(logits, n):
    """The first of the largest logits; SAMPLE_NO_TOKEN where all are -inf. No NaN."""
    best, at = f32(MINUS_INF), -1
    for i in range(0, n, CHUNK):
        m = chunk_max(logits, i, min(n, i + CHUNK))
        if m > best:
            best, at = m, i
    if at < 0:
        return SAMPLE_NO_TOKEN
    while logit(logits, at) != best:
        at += 1
    return at


@helper
def total_weight(logits, n, m, temperature):
    """Sum of exp((logit - m) / temperature) over the vocabulary."""
    total = f64(0.0)
    for i in range(0, n, CHUNK):
        total += f64(chunk_sum(logits, i, min(n, i + CHUNK), m, temperature))
    return total


@helper
def draw_from_chunk(logits, i0, i1, m, temperature, part):
    """The token of i0..i1 at which the running sum of weights passes `part` (< 1) of the sum of all."""
    total = f64(0.0)
    for i in range(i0, i1):
        total += f64(exp_of((logit(logits, i) - m) / temperature))
    running = f64(0.0)
    for i in range(i0, i1):
        running += f64(exp_of((logit(logits, i) - m) / temperature))
        if running > part * total:
            return i
    return i1 - 1


@export("ptr, i64, f32, f32, i64 -> i64", internal=True)
def draw_from_all(logits, n, m, temperature, draw):
    """The token at which the running sum of exp((logit - m) / temperature) passes draw / 2**32 of the total."""
    target = f64(draw) * UNIT * total_weight(logits, n, m, temperature)
    running = f64(0.0)
    for i in range(0, n, CHUNK):
        end = min(n, i + CHUNK)
        weight = f64(chunk_sum(logits, i, end, m, temperature))
        if running + weight > target:  # true of the last chunk that has weight, at the latest
            return draw_from_chunk(logits, i, end, m, temperature, (target - running) / weight)
        running += weight
    return n - 1


best_of = extern("best_token", "ptr, i64 -> i64")
magnitude_of = extern("largest_magnitude", "ptr, i64 -> i32")
draw_of_all = extern("draw_from_all", "ptr, i64, f32, f32, i64 -> i64")

# -- heaps of token ids ------------------------------------------------------------------------------------------------


@helper
def candidate(ids, i):
    return i64(load(i32, ids + i * 4))


@helper
def put(ids, i, token):
    store(i32, ids + i * 4, i32(token))


@helper
def ahead(logits, a, b):
    """Whether token a ranks before token b."""
    x, y = logit(logits, a), logit(logits, b)
    return x > y or (x == y and a < b)


@export("ptr, ptr, i64, i64, i64", internal=True)
def sift_down(logits, ids, i, n, best_first):
    """Restore the heap ids[0..n] below entry i. best_first: the root ranks first, otherwise last."""
    token = candidate(ids, i)
    while 2 * i + 1 < n:
        c = 2 * i + 1
        if c + 1 < n and ahead(logits, candidate(ids, c + 1), candidate(ids, c)) == (best_first != 0):
            c += 1
        child = candidate(ids, c)
        if ahead(logits, child, token) != (best_first != 0):
            break
        put(ids, i, child)
        i = c
    put(ids, i, token)


sift = extern("sift_down", "ptr, ptr, i64, i64, i64")


@helper
def heapify(logits, ids, n, best_first):
    for i in range(n // 2 - 1, -1, -1):
        sift(logits, ids, i, n, best_first)


@export("ptr, i64, ptr, i64", internal=True)
def select_top(logits, n, ids, k):
    """ids[0..k] become the k <= n tokens that rank first, as a heap whose root ranks first."""
    for i in range(k):
        put(ids, i, i)
    heapify(logits, ids, k, 0)
    worst = logit(logits, candidate(ids, 0))
    for i in range(k, n, CHUNK):
        end = min(n, i + CHUNK)
        if chunk_max(logits, i, end) > worst:
            for j in range(i, end):
                if logit(logits, j) > worst:  # an equal one ranks behind: its id is larger
                    put(ids, 0, j)
                    sift(logits, ids, 0, k, 0)
                    worst = logit(logits, candidate(ids, 0))
    heapify(logits, ids, k, 1)


@export("ptr, i64, ptr, f32, f32 -> i64", internal=True)
def select_likely(logits, n, ids, m, least):
    """ids[0..result] become the tokens with exp(logit - m) >= least and > 0, as a heap whose root ranks first."""
    count = 0
    for i in range(0, n, CHUNK):
        end = min(n, i + CHUNK)
        p = exp_of(chunk_max(logits, i, end) - m)
        if p >= least and p > f32(0.0):
            for j in range(i, end):
                p = exp_of(logit(logits, j) - m)
                if p >= least and p > f32(0.0):
                    put(ids, count, j)
                    count += 1
    heapify(logits, ids, count, 1)
    return count


@helper
def pop(logits, ids, n):
    """Move the root of ids[0..n] to ids[n - 1] and make ids[0..n - 1] a heap again."""
    token = candidate(ids, 0)
    put(ids, 0, candidate(ids, n - 1))
    put(ids, n - 1, token)
    sift(logits, ids, 0, n - 1, 1)
    return token


top_of = extern("select_top", "ptr, i64, ptr, i64")
likely_of = extern("select_likely", "ptr, i64, ptr, f32, f32 -> i64")

# -- the choice --------------------------------------------------------------------------------------------------------


@helper
def adjust(logits, params, saved):
    """Add the bias and apply the penalties; the logits before are kept in `saved`."""
    n_bias, n_seen = load(i64, params + N_BIAS), load(i64, params + N_SEEN)
    ids, bias = load(ptr, params + BIAS_IDS), load(ptr, params + BIAS)
    for i in range(n_bias):
        at = logits + candidate(ids, i) * 4
        store(f32, saved + i * 4, load(f32, at))
        store(f32, at, load(f32, at) + load(f32, bias + i * 4))
    ids, counts = load(ptr, params + SEEN_IDS), load(ptr, params + SEEN_COUNTS)
    repeat, presence, frequency = (
        load(f32, params + REPEAT), load(f32, params + PRESENCE), load(f32, params + FREQUENCY),
    )  # fmt: skip
    for i in range(n_seen):
        at = logits + candidate(ids, i) * 4
        x = load(f32, at)
        store(f32, saved + (n_bias + i) * 4, x)
        if x > f32(0.0):
            x = x / repeat
        else:
            x = x * repeat
        store(f32, at, x - f32(load(i32, counts + i * 4)) * frequency - presence)


@helper
def restore(logits, params, saved):
    """Undo `adjust`, last change first."""
    n_bias, n_seen = load(i64, params + N_BIAS), load(i64, params + N_SEEN)
    ids = load(ptr, params + SEEN_IDS)
    for i in range(n_seen - 1, -1, -1):
        store(f32, logits + candidate(ids, i) * 4, load(f32, saved + (n_bias + i) * 4))
    ids = load(ptr, params + BIAS_IDS)
    for i in range(n_bias - 1, -1, -1):
        store(f32, logits + candidate(ids, i) * 4, load(f32, saved + i * 4))


@helper
def heap_weight(logits, ids, n, m):
    """Sum of exp(logit - m) over ids[0..n]."""
    total = f64(0.0)
    for i in range(n):
        total += f64(exp_of(logit(logits, candidate(ids, i)) - m))
    return total


@helper
def draw_filtered(logits, n, params, ids, m, temperature, draw):
    """Pop the ranking while the filters allow, then draw among what was popped, best first."""
    k, top_p, min_p = i64(load(i32, params + TOP_K)), load(f32, params + TOP_P), load(f32, params + MIN_P)
    if k > 0 and k < n:
        count = k
        top_of(logits, n, ids, k)
        weight = heap_weight(logits, ids, count, m)
    else:
        weight, least = f64(0.0), min_p
        if top_p < f32(1.0):
            # All tokens that weigh less than (1 - top_p) / n of the total together weigh less than 1 - top_p of it:
            # top-p needs none of them. Half of that, to be safe from rounding.
            weight = total_weight(logits, n, m, f32(1.0))
            least = max_of(min_p, f32(0.5 * (1.0 - f64(top_p)) * weight / f64(n)))
        count = likely_of(logits, n, ids, m, least)
    enough = f64(top_p) * weight
    left, running, total = count, f64(0.0), f64(0.0)
    while left > 0:
        x = logit(logits, candidate(ids, 0)) - m
        p = exp_of(x)
        if left < count and p < min_p:
            break
        pop(logits, ids, left)
        left -= 1
        running += f64(p)
        total += f64(exp_of(x / temperature))
        if top_p < f32(1.0) and running >= enough:
            break
    target = f64(draw) * UNIT * total
    running = f64(0.0)
    for i in range(count - 1, left, -1):
        token = candidate(ids, i)
        running += f64(exp_of((logit(logits, token) - m) / temperature))
        if running > target:
            return token
    return candidate(ids, left)


@helper
def choose_token(logits, n, params):
    best = best_of(logits, n)
    temperature = load(f32, params + TEMPERATURE)
    if best < 0 or not (temperature > f32(0.0)):
        return best
    m = logit(logits, best)
    draw = i64(load(u32, params + DRAW))
    k = i64(load(i32, params + TOP_K))
    if (k <= 0 or k >= n) and load(f32, params + TOP_P) >= f32(1.0) and load(f32, params + MIN_P) <= f32(0.0):
        return draw_of_all(logits, n, m, temperature, draw)
    return draw_filtered(logits, n, params, load(ptr, params + SCRATCH), m, temperature, draw)


@helper
def not_finite(logits, n):
    """Whether a logit is inf or NaN; only -inf is allowed."""
    if magnitude_of(logits, n) >= i32(0x7F800000):
        for i in range(n):
            if not (logit(logits, i) < f32(np.inf)):
                return True
    return False


@export("ptr, i64, ptr -> i64")
def sample(logits, n, params):
    if not_finite(logits, n):
        return SAMPLE_NOT_FINITE
    saved = load(ptr, params + SCRATCH) + n * 4
    adjust(logits, params, saved)
    token = choose_token(logits, n, params)
    restore(logits, params, saved)
    return token


@export("ptr, i64, i64, i64, ptr, ptr -> f32")
def logprobs(logits, n, token, top, ids, values):
    best = best_of(logits, n)
    if best < 0 or not_finite(logits, n):  # all -inf, or a fault of the model
        return f32(np.nan)
    m = logit(logits, best)
    shift = m + log_of(f32(total_weight(logits, n, m, f32(1.0))))
    if top > 0:
        top_of(logits, n, ids, top)
        for left in range(top, 0, -1):
            pop(logits, ids, left)
        for i in range(top // 2):
            a, b = candidate(ids, i), candidate(ids, top - 1 - i)
            put(ids, i, b)
            put(ids, top - 1 - i, a)
        for i in range(top):
            store(f32, values + i * 4, logit(logits, candidate(ids, i)) - shift)
    return logit(logits, token) - shift
