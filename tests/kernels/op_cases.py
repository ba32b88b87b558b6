"""Cases for every op, made from the numpy references beside the op bodies (imports numba)."""

from __future__ import annotations

import importlib
from collections.abc import Iterator

import numpy as np

from edged.kernels.activations import quantised, row_records
from edged.kernels.ops import (
    add,
    attention,
    embed,
    gate,
    gather,
    headnorm,
    kv_store,
    layernorm,
    matmul,
    quantise,
    rmsnorm,
    rope,
    scale,
    softcap,
)
from edged.kernels.table import (
    ACT_BLOCK,
    ACT_F32,
    ACT_Q8_32,
    ACT_Q8_256,
    ADD,
    KV_BLOCK,
    LEVEL_BY_NAME,
    REGION_LOGITS,
    TYPES,
    ActKind,
    act_bytes,
    act_row_parts,
    attention_scratch_bytes,
    partials_bytes,
    tile_scratch_bytes,
)
from tests.kernels.case_runner import Case

MAX_DECODE, MAX_PROMPT = 8, 64
ROWS = MAX_DECODE + MAX_PROMPT
BATCHES = ((1, 0), (5, 0), (0, 1), (0, 37), (3, 64))  # (n_decode, n_prompt)
WIDTHS = (576, 640, 1024)
CLOSE = 2e-6  # of the largest value: a few roundings of f32


def used(n_decode: int, n_prompt: int) -> np.ndarray:
    """Rows of a BODY buffer that a step uses."""
    return np.concatenate([np.arange(n_decode), MAX_DECODE + np.arange(n_prompt)])


def counts(n_decode: int, n_prompt: int) -> dict[str, int]:
    return {"n_decode": n_decode, "n_prompt": n_prompt, "max_decode": MAX_DECODE, "max_prompt": MAX_PROMPT}


def with_rows(buffer: np.ndarray, rows: np.ndarray, values: np.ndarray) -> np.ndarray:
    """A copy of the buffer in which only the given rows are replaced."""
    out = buffer.copy()
    out[rows] = values
    return out


def elementwise() -> Iterator[Case]:
    """rmsnorm, layernorm, gate, add, softcap, scale: width n, x in, d out."""
    rng = np.random.default_rng(1)
    for n in WIDTHS:
        for n_decode, n_prompt in BATCHES:
            x = rng.standard_normal((ROWS, n)).astype(np.float32) * 4
            d = rng.standard_normal((ROWS, n)).astype(np.float32) * 30
            w, b = rng.uniform(0.5, 1.5, n).astype(np.float32), rng.standard_normal(n).astype(np.float32)
            r = used(n_decode, n_prompt)
            norm, plain = rmsnorm.reference(x[r], w, 1e-6), rmsnorm.reference(x[r], None, 1e-6)
            for op, title, fields, buffers, result in (
                ("rmsnorm", "", {"b": "w", "f0": 1e-6}, {"w": w}, norm),
                ("rmsnorm", " without weight", {"f0": 1e-6}, {}, plain),
                ("rmsnorm", " added", {"b": "w", "f0": 1e-6, "flags": ADD}, {"w": w}, d[r] + norm),
                ("layernorm", "", {"b": "w", "f0": 1e-5}, {"w": w}, layernorm.reference(x[r], w, None, 1e-5)),
                ("layernorm", " with bias", {"b": "w", "c": "b", "f0": 1e-5}, {"w": w, "b": b},
                 layernorm.reference(x[r], w, b, 1e-5)),
                ("gate", " silu", {"b": "b2", "i0": 0}, {"b2": d}, gate.reference(x[r], d[r], 0)),
                ("gate", " gelu", {"b": "b2", "i0": 1}, {"b2": d}, gate.reference(x[r], d[r], 1)),
                ("gate", " gelu alone", {"i0": 1}, {}, gate.reference(x[r], None, 1)),
                ("gate", " exact gelu", {"b": "b2", "i0": 2}, {"b2": d}, gate.reference(x[r], d[r], 2)),
                ("gate", " exact gelu alone", {"i0": 2}, {}, gate.reference(x[r], None, 2)),
                ("add", "", {}, {}, add.reference(d[r], x[r])),
                ("softcap", "", {"f0": 30.0}, {}, softcap.reference(d[r], 30.0)),
                ("scale", "", {"f0": 25.298222}, {}, scale.reference(d[r], 25.298222)),
            ):  # fmt: skip
                yield Case(
                    f"{op}{title} {n} wide, {n_decode}+{n_prompt} rows", op, {"n": n, "a": "x", "d": "d", **fields},
                    counts(n_decode, n_prompt), {"x": x, "d": d, **buffers}, {"d": with_rows(d, r, result)},
                    {} if op in ("add", "scale") else {"d": CLOSE},
                )  # fmt: skip


def rows_moved() -> Iterator[Case]:
    """embed and gather."""
    rng = np.random.default_rng(2)
    for n in WIDTHS:
        vocab = rng.standard_normal((50, n)).astype(np.float32)
        for n_decode, n_prompt in BATCHES:
            r = used(n_decode, n_prompt)
            tokens = rng.integers(0, 50, ROWS).astype(np.int32)
            d = rng.standard_normal((ROWS, n)).astype(np.float32)
            pos = rng.integers(0, 50, ROWS).astype(np.int32)
            state = {**counts(n_decode, n_prompt), "tokens": tokens, "pos": pos}
            for factor in (1.0, 24.0):
                fields = {"type": 0, "n": n, "stride": 4 * n, "a": "w", "d": "d", "f0": factor}
                expected = with_rows(d, r, embed.reference(vocab, tokens[r], factor))
                yield Case(f"embed {n} wide, {n_decode}+{n_prompt} rows, times {factor}", "embed", fields, state,
                           {"w": vocab, "d": d}, {"d": expected})  # fmt: skip
            places = rng.standard_normal((50, n)).astype(np.float32)
            expected = with_rows(d, r, embed.reference(vocab, tokens[r], 1.0, places[pos[r]] + vocab[0]))
            yield Case(f"embed {n} wide, {n_decode}+{n_prompt} rows, with positions", "embed",
                       {"type": 0, "n": n, "stride": 4 * n, "a": "w", "b": "places", "c": "w", "d": "d", "f0": 1.0},
                       state, {"w": vocab, "places": places, "d": d}, {"d": expected}, {"d": CLOSE})  # fmt: skip
            wanted = rng.permutation(r)[: min(MAX_DECODE, len(r))].astype(np.int32)
            d = rng.standard_normal((MAX_DECODE, n)).astype(np.float32)
            x = rng.standard_normal((ROWS, n)).astype(np.float32)
            state = {**counts(n_decode, n_prompt), "n_logits": len(wanted), "logit_rows": wanted}
            expected = with_rows(d, np.arange(len(wanted)), gather.reference(x, wanted))
            yield Case(f"gather {n} wide, {len(wanted)} rows", "gather",
                       {"n": n, "a": "x", "d": "d", "region": REGION_LOGITS}, state, {"x": x, "d": d},
                       {"d": expected})  # fmt: skip


def awkward_rows(rng: np.random.Generator, rows: int, k: int) -> np.ndarray:
    """Activations with zero blocks, tiny blocks, large ones and halves that must round to even."""
    x = rng.standard_normal((rows, k)).astype(np.float32)
    x[0, :256] = 0
    x[-1, 32:64] = 1e-38
    x[-1, 256:288] = np.float32(1e30) * x[-1, 256:288]
    x[rows // 2, :32] = np.arange(32) - 0.5
    x[rows // 2, 31] = 127
    return x


def quantising(level: str) -> Iterator[Case]:
    """quantise, all kinds; integers and scales bit for bit."""
    rng = np.random.default_rng(3)
    lanes, bias = LEVEL_BY_NAME[level].lanes, LEVEL_BY_NAME[level].bias
    for kind, widths in ((ACT_F32, WIDTHS), (ACT_Q8_32, WIDTHS), (ACT_Q8_256, (256, 1024, 1280))):
        for k in widths:
            for n_decode, n_prompt in BATCHES:
                x = awkward_rows(rng, ROWS, max(k, 512))[:, :k].copy()
                out = np.zeros(act_bytes(kind, k, MAX_DECODE, MAX_PROMPT, lanes), np.uint8)
                records = row_records(x[:n_decode], kind).ravel()
                panels = quantise.reference_panels(x[MAX_DECODE : MAX_DECODE + n_prompt], kind, lanes, bias)
                expected, first = out.copy(), MAX_DECODE * act_row_parts(kind, k)[-1]
                expected[: records.size] = records
                expected[first : first + panels.size] = panels.ravel()
                yield Case(f"quantise kind {kind} {k} wide, {n_decode}+{n_prompt} rows", "quantise",
                           {"n": k, "type": kind, "a": "x", "d": "out"}, counts(n_decode, n_prompt),
                           {"x": x, "out": out}, {"out": expected})  # fmt: skip


def per_head() -> Iterator[Case]:
    """headnorm and rope."""
    rng = np.random.default_rng(4)
    for heads, dim, rotated in ((9, 64, 64), (3, 64, 64), (4, 256, 256), (8, 80, 32), (2, 24, 8)):
        n = heads * dim
        for n_decode, n_prompt in BATCHES:
            r = used(n_decode, n_prompt)
            x = rng.standard_normal((ROWS, n)).astype(np.float32)
            w = rng.uniform(0.5, 1.5, dim).astype(np.float32)
            shaped = x[r].reshape(-1, heads, dim)
            title = f"{heads} heads of {dim}, {n_decode}+{n_prompt} rows"
            normed = headnorm.reference(shaped, w, 1e-6).reshape(-1, n)
            yield Case(f"headnorm {title}", "headnorm",
                       {"a": "x", "b": "w", "n": n, "i0": heads, "i1": dim, "f0": 1e-6}, counts(n_decode, n_prompt),
                       {"x": x, "w": w}, {"x": with_rows(x, r, normed)}, {"x": CLOSE})  # fmt: skip
            angle = rng.uniform(0, 6.3, (ROWS, rotated // 2))
            table = np.stack([np.cos(angle), np.sin(angle)], -1).astype(np.float32)
            for neox in (0, 1):
                turned = rope.reference(shaped, table[r, :, 0], table[r, :, 1], bool(neox)).reshape(-1, n)
                yield Case(f"rope {title}, neox {neox}", "rope",
                           {"a": "x", "b": "t", "n": n, "i0": heads, "i1": dim, "i2": rotated, "i3": neox},
                           counts(n_decode, n_prompt), {"x": x, "t": table}, {"x": with_rows(x, r, turned)},
                           {"x": CLOSE})  # fmt: skip


N_BLOCKS, TABLE = 64, 48  # blocks in the pool; entries in a block table (1536 positions)


def pool(rng: np.random.Generator, kv_heads: int, dim: int) -> np.ndarray:
    """f16 (block, K|V, kv head, position, dim)."""
    return rng.standard_normal((N_BLOCKS, 2, kv_heads, KV_BLOCK, dim)).astype(np.float16)


def kv_fields(kv_heads: int, dim: int) -> dict[str, int]:
    half = kv_heads * KV_BLOCK * dim * 2
    return {"k": half, "stride": 2 * half}


def storing() -> Iterator[Case]:
    """kv_store."""
    rng = np.random.default_rng(5)
    for kv_heads, dim in ((3, 64), (1, 256), (4, 24)):
        for n_decode, n_prompt in BATCHES:
            r = used(n_decode, n_prompt)
            k, v = rng.standard_normal((2, ROWS, kv_heads * dim)).astype(np.float32)
            cache = pool(rng, kv_heads, dim)
            table = np.full((ROWS, 4), -1, np.int32)
            seq = np.zeros(ROWS, np.int32)
            seq[r] = np.concatenate([1 + np.arange(n_decode), np.zeros(n_prompt)])
            pos = np.zeros(ROWS, np.int32)
            pos[r] = np.concatenate([rng.integers(0, 96, n_decode), 20 + np.arange(n_prompt)])
            blocks = rng.permutation(N_BLOCKS)
            for n, (s, b) in enumerate(sorted({(int(seq[i]), int(pos[i]) // KV_BLOCK) for i in r})):
                table[s, b] = blocks[n]
            expected = cache.copy()
            kv_store.reference(k[r].reshape(-1, kv_heads, dim), table, pos[r], seq[r], expected[:, 0])
            kv_store.reference(v[r].reshape(-1, kv_heads, dim), table, pos[r], seq[r], expected[:, 1])
            yield Case(f"kv_store {kv_heads} heads of {dim}, {n_decode}+{n_prompt} rows", "kv_store",
                       {"a": "k", "b": "v", "n": kv_heads * dim, "i0": kv_heads, "i1": dim, "c": "table", "i2": 4,
                        "d": "cache", **kv_fields(kv_heads, dim)},
                       {**counts(n_decode, n_prompt), "pos": pos, "seq": seq},
                       {"k": k, "v": v, "table": table, "cache": cache}, {"cache": expected})  # fmt: skip


def attention_case(
    heads: int, kv_heads: int, dim: int, decode: list[tuple[int, int]], prompt: list[tuple[int, int]], *,
    window: int = 0, cap: float = 0.0, bidirectional: bool = False, seed: int = 6,
) -> Case:  # fmt: skip
    """decode: (sequence, position) per row; prompt: (sequence, position) per row."""
    rng = np.random.default_rng(seed)
    cache = pool(rng, kv_heads, dim)
    q = rng.standard_normal((ROWS, heads * dim)).astype(np.float32)
    seq, pos = np.zeros(ROWS, np.int32), np.zeros(ROWS, np.int32)
    r = used(len(decode), len(prompt))
    for row, (s, p) in zip(r, decode + prompt, strict=True):
        seq[row], pos[row] = s, p
    table = np.full((4, TABLE), -1, np.int32)
    free = iter(rng.permutation(N_BLOCKS))
    seen = {}  # (sequence, block) -> positions that some row attends
    for s, p in decode + prompt:
        for at in range(max(0, p - window + 1) if window else 0, p + 1):
            seen.setdefault((s, at // KV_BLOCK), set()).add(at % KV_BLOCK)
    for (s, b), positions in seen.items():
        table[s, b] = next(free)
        hidden = [at for at in range(KV_BLOCK) if at not in positions]
        cache[table[s, b], :, :, hidden] = np.nan  # nothing may be read into the result from there
    out = rng.standard_normal((ROWS, heads * dim)).astype(np.float32)
    scale_ = dim**-0.5
    want = attention.reference(q[r].reshape(-1, heads, dim), cache[:, 0], cache[:, 1], table, pos[r], seq[r], scale_,
                               window, cap, bidirectional)  # fmt: skip
    partials = np.zeros(partials_bytes(MAX_DECODE, MAX_PROMPT, heads, dim, TABLE * KV_BLOCK), np.uint8)
    return Case(
        f"attention {heads}/{kv_heads} heads of {dim}, window {window}, cap {cap}, decode {decode}, "
        f"{'both ways, ' * bidirectional}prompt {prompt[:1]}..{prompt[-1:]}", "attention",
        {"a": "q", "c": "table", "d": "out", "e": "cache", "b": "partials", "n": TABLE, "i0": heads, "i1": kv_heads,
         "i2": dim, "i3": window, "type": int(bidirectional), "f0": scale_, "f1": cap, **kv_fields(kv_heads, dim)},
        {**counts(len(decode), len(prompt)), "pos": pos, "seq": seq},
        {"q": q, "table": table, "cache": cache, "partials": partials, "out": out},
        {"out": with_rows(out, r, want.reshape(len(r), -1))},
        {"out": 4e-6}, attention_scratch_bytes(heads, kv_heads, dim), ["partials"],
    )  # fmt: skip


def attending() -> Iterator[Case]:
    """attention around block, partition and window bounds, for decode and prompt rows."""
    edges = [0, 1, 31, 32, 255, 256, 257, 700]
    run = [(3, p) for p in range(230, 290)]
    for heads, kv_heads, dim in ((9, 3, 64), (4, 1, 256), (8, 8, 80), (14, 2, 24), (5, 1, 64)):
        for window in (0, 33, 256):
            for p in edges if heads == 9 else (0, 700):
                yield attention_case(heads, kv_heads, dim, [(0, p)], [], window=window)
            two = [(1, p) for p in range(20)] + [(2, p) for p in range(500, 520)] + [(3, 31), (3, 40)]
            yield attention_case(heads, kv_heads, dim, [], two, window=window)
            yield attention_case(heads, kv_heads, dim, [(0, 300), (1, 31), (2, 511)], run, window=window)
    yield attention_case(8, 4, 64, [(0, 300), (1, 5)], run, window=64, cap=50.0)
    for heads, dim in ((12, 32), (4, 64)):
        for lengths in ((1,), (17, 1, 16), (33, 31), (64,)):
            rows = [(s, p) for s, n in enumerate(lengths) for p in range(n)]
            yield attention_case(heads, heads, dim, [], rows, bidirectional=True)


def dequantised(x: np.ndarray, kind: ActKind) -> np.ndarray:
    """What an activation buffer holds of x, in f64."""
    if kind == ACT_F32:
        return x.astype(np.float64)
    q, d = quantised(x, kind)
    return q * np.repeat(d.astype(np.float64), ACT_BLOCK[kind], 1)


def multiplying(level: str) -> Iterator[Case]:
    """matmul of every tensor type: single rows, groups, prompt rows, bias, ADD, LOGITS rows, a longer output row."""
    rng = np.random.default_rng(7)
    lanes, max_decode, n = LEVEL_BY_NAME[level].lanes, 40, 83
    rows = max_decode + MAX_PROMPT
    for t in TYPES:
        for k in (256, 1280):
            # bytes below 60 make every f16, bf16 and f32 among them finite
            blocks = rng.integers(0, 60, (n, k // t.block, t.size)).astype(np.uint8)
            w = importlib.import_module(f"edged.kernels.types.{t.name}").dequantise(blocks).reshape(n, k)
            x = rng.standard_normal((rows, k)).astype(np.float32)
            records = row_records(x[:max_decode], t.act).ravel()
            panels = quantise.reference_panels(x[max_decode:], t.act, lanes, LEVEL_BY_NAME[level].bias).ravel()
            act = np.concatenate([records, panels])
            assert act.size == act_bytes(t.act, k, max_decode, MAX_PROMPT, lanes)
            bias = rng.standard_normal(n).astype(np.float32) * 10
            y = rng.standard_normal((rows, n + 5)).astype(np.float32) * 10
            product = matmul.reference(w, dequantised(x, t.act))
            shape = {"type": t.id, "n": n, "k": k, "stride": t.row_bytes(k), "i0": n + 5}
            fields = {**shape, "a": "w", "b": "act", "d": "y"}
            for n_decode, n_prompt, extra in (
                (1, 0, {}), (3, 0, {"flags": ADD}), (40, 0, {}), (17, 9, {"c": "bias"}), (0, 64, {"flags": ADD}),
                (2, 33, {"flags": ADD, "c": "bias"}), (5, 0, {"region": REGION_LOGITS}),
            ):  # fmt: skip
                state = {**counts(n_decode, n_prompt), "max_decode": max_decode}
                if "region" in extra:
                    state.update(n_decode=0, n_prompt=20, n_logits=n_decode)
                expected = y.astype(np.float64)
                for r in [*range(n_decode), *range(max_decode, max_decode + n_prompt)]:
                    before = y[r, :n] if extra.get("flags") == ADD else 0
                    expected[r, :n] = product[r] + before + (bias if "c" in extra else 0)
                yield Case(f"matmul {t.name} {k} wide, {n_decode}+{n_prompt} rows, {extra}", "matmul",
                           {**fields, **extra}, state, {"w": blocks, "act": act, "bias": bias, "y": y},
                           {"y": expected}, {"y": 5e-6}, tile_scratch_bytes(k))  # fmt: skip


def cases(level: str) -> Iterator[Case]:
    """Every op case for a CPU level."""
    yield from elementwise()
    yield from rows_moved()
    yield from quantising(level)
    yield from per_head()
    yield from storing()
    yield from attending()
    yield from multiplying(level)
