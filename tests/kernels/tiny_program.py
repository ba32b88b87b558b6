"""A two-layer llama of random f32 weights as an op table, with a float64 forward to compare with."""

from __future__ import annotations

from typing import Any

import numpy as np

from edged.kernels.program import Program, Workers, address, aligned
from edged.kernels.table import (
    ACT_F32,
    ADD,
    KV_BLOCK,
    OP,
    OP_BY_NAME,
    REGION_LOGITS,
    STATE,
    SYNC,
    act_bytes,
    partials_bytes,
)

VOCAB, WIDTH, FF, HEADS, KV_HEADS, DIM, LAYERS = 96, 64, 160, 4, 2, 16, 2
MAX_DECODE, MAX_PROMPT, SEQS, TABLE, LANES = 8, 64, 8, 12, 16
EPS = 1e-5


def weights(seed: int = 0) -> dict[str, np.ndarray]:
    """f32 tensors by name; matrices are (out, in)."""
    rng = np.random.default_rng(seed)
    kv = KV_HEADS * DIM
    shapes = {"embd": (VOCAB, WIDTH), "out": (VOCAB, WIDTH), "norm": (WIDTH,)}
    for i in range(LAYERS):
        shapes.update({
            f"{i}.norm": (WIDTH,), f"{i}.q": (HEADS * DIM, WIDTH), f"{i}.k": (kv, WIDTH), f"{i}.v": (kv, WIDTH),
            f"{i}.o": (WIDTH, HEADS * DIM), f"{i}.ffn_norm": (WIDTH,), f"{i}.gate": (FF, WIDTH), f"{i}.up": (FF, WIDTH),
            f"{i}.down": (WIDTH, FF),
        })  # fmt: skip
    return {
        name: (rng.uniform(0.5, 1.5, s) if len(s) == 1 else rng.standard_normal(s) * s[1] ** -0.5).astype(np.float32)
        for name, s in shapes.items()
    }


def angles(pos: np.ndarray) -> np.ndarray:
    """f64 (rows, DIM / 2)."""
    return pos[:, None] * 10000.0 ** (-np.arange(DIM // 2) / (DIM // 2))


def forward(w: dict[str, np.ndarray], tokens: np.ndarray) -> np.ndarray:
    """Logits f64 (n, VOCAB) of one sequence, whole."""
    n = len(tokens)
    turn = np.exp(1j * angles(np.arange(n)))[:, None]

    def norm(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + EPS) * weight

    def rope(x: np.ndarray) -> np.ndarray:
        z = (x[..., ::2] + 1j * x[..., 1::2]) * turn
        return np.stack([z.real, z.imag], -1).reshape(x.shape)

    w = {name: t.astype(np.float64) for name, t in w.items()}
    x = w["embd"][tokens]
    for i in range(LAYERS):
        h = norm(x, w[f"{i}.norm"])
        q = rope((h @ w[f"{i}.q"].T).reshape(n, HEADS, DIM))
        k = rope((h @ w[f"{i}.k"].T).reshape(n, KV_HEADS, DIM)).repeat(HEADS // KV_HEADS, 1)
        v = (h @ w[f"{i}.v"].T).reshape(n, KV_HEADS, DIM).repeat(HEADS // KV_HEADS, 1)
        score = np.einsum("ihd,jhd->hij", q, k) * DIM**-0.5
        score[:, ~np.tri(n, dtype=bool)] = -np.inf
        p = np.exp(score - score.max(-1, keepdims=True))
        x = x + np.einsum("hij,jhd->ihd", p / p.sum(-1, keepdims=True), v).reshape(n, -1) @ w[f"{i}.o"].T
        h = norm(x, w[f"{i}.ffn_norm"])
        g = h @ w[f"{i}.gate"].T
        x = x + (g / (1 + np.exp(-g)) * (h @ w[f"{i}.up"].T)) @ w[f"{i}.down"].T
    return norm(x, w["norm"]) @ w["out"].T


class Tiny:
    """The model bound to buffers and a Program."""

    def __init__(self, library: Any, threads: int, w: dict[str, np.ndarray] | None = None, **options: Any) -> None:
        rows = MAX_DECODE + MAX_PROMPT
        self.w = {name: aligned(t.nbytes).view(np.float32).reshape(t.shape) for name, t in (w or weights()).items()}
        for name, t in (w or weights()).items():
            self.w[name][...] = t
        half = KV_HEADS * KV_BLOCK * DIM * 2
        self.block_bytes = LAYERS * 2 * half
        self.cache = aligned(SEQS * TABLE * self.block_bytes)
        self.table = np.full((SEQS, TABLE), -1, np.int32)
        self.rope = aligned(rows * DIM * 4).view(np.float32).reshape(rows, DIM // 2, 2)
        self.buffers = {
            name: aligned(rows * n * 4)
            for name, n in (("x", WIDTH), ("h", WIDTH), ("q", HEADS * DIM), ("k", KV_HEADS * DIM),
                            ("v", KV_HEADS * DIM), ("att", HEADS * DIM), ("g", FF), ("u", FF), ("last", WIDTH))
        }  # fmt: skip
        self.buffers["act"] = aligned(act_bytes(ACT_F32, FF, MAX_DECODE, MAX_PROMPT, LANES))
        self.buffers["part"] = aligned(partials_bytes(MAX_DECODE, MAX_PROMPT, HEADS, DIM, TABLE * KV_BLOCK))
        self.logits = aligned(MAX_DECODE * VOCAB * 4).view(np.float32).reshape(MAX_DECODE, VOCAB)
        self.ops, self.state = self._ops(half), np.zeros(1, STATE)
        self.workers = Workers(library, threads, **options)
        self.program = Program(self.workers, self.ops)
        self._free = list(range(SEQS * TABLE))

    def _ops(self, half: int) -> np.ndarray:
        at = {name: address(b) for name, b in self.buffers.items()}
        at.update({name: address(t) for name, t in self.w.items()})
        at.update(table=address(self.table), rope=address(self.rope), logits=address(self.logits))
        ops: list[np.ndarray] = []

        def op(name: str, i: tuple[int, ...] = (), f: tuple[float, ...] = (), **fields: Any) -> None:
            record = np.zeros((), OP)
            record["op"] = OP_BY_NAME[name].code
            record["i"][: len(i)], record["f"][: len(f)] = i, f
            for key, value in fields.items():
                record[key] = at[value] if isinstance(value, str) else value
            ops.append(record)

        def project(weight: str, out: str, flags: int, region: int = 0) -> None:
            n, k = self.w[weight].shape
            op("matmul", (n,), type=0, n=n, k=k, stride=4 * k, a=weight, b="act", d=out, flags=flags, region=region)

        def norm(weight: str, x: str, out: str, region: int = 0) -> None:
            op("rmsnorm", f=(EPS,), n=WIDTH, a=x, b=weight, d=out, region=region)
            op("quantise", n=WIDTH, type=ACT_F32, a=out, d="act", flags=SYNC, region=region)

        op("embed", f=(1.0,), type=0, n=WIDTH, stride=4 * WIDTH, a="embd", d="x", flags=SYNC)
        for layer in range(LAYERS):
            cache = address(self.cache) + layer * 2 * half
            blocks = {"c": "table", "k": half, "stride": self.block_bytes}
            norm(f"{layer}.norm", "x", "h")
            project(f"{layer}.q", "q", 0)
            project(f"{layer}.k", "k", 0)
            project(f"{layer}.v", "v", SYNC)
            op("rope", (HEADS, DIM, DIM, 0), n=HEADS * DIM, a="q", b="rope")
            op("rope", (KV_HEADS, DIM, DIM, 0), n=KV_HEADS * DIM, a="k", b="rope")
            op("kv_store", (KV_HEADS, DIM, TABLE), n=KV_HEADS * DIM, a="k", b="v", d=cache, flags=SYNC, **blocks)
            op("attention", (HEADS, KV_HEADS, DIM, 0), (DIM**-0.5, 0.0), n=TABLE, a="q", d="att", e=cache, b="part",
               flags=SYNC, **blocks)  # fmt: skip
            op("quantise", n=HEADS * DIM, type=ACT_F32, a="att", d="act", flags=SYNC)
            project(f"{layer}.o", "x", ADD | SYNC)
            norm(f"{layer}.ffn_norm", "x", "h")
            project(f"{layer}.gate", "g", 0)
            project(f"{layer}.up", "u", SYNC)
            op("gate", n=FF, a="g", b="u", d="g")
            op("quantise", n=FF, type=ACT_F32, a="g", d="act", flags=SYNC)
            project(f"{layer}.down", "x", ADD | SYNC)
        op("gather", n=WIDTH, a="x", d="last", region=REGION_LOGITS, flags=SYNC)
        norm("norm", "last", "h", REGION_LOGITS)
        project("out", "logits", SYNC, REGION_LOGITS)
        return np.array(ops, OP)

    def step(
        self, decode: list[tuple[int, int, int]], prompt: list[tuple[int, int, int]], wanted: list[int]
    ) -> np.ndarray | None:
        """Rows are (sequence, position, token); wanted: rows as decode rows 0.. or prompt rows MAX_DECODE + 0...

        Returns the logits of the wanted rows, None if the step was stopped.
        """
        rows = np.zeros((3, MAX_DECODE + MAX_PROMPT), np.int32)
        for first, part in ((0, decode), (MAX_DECODE, prompt)):
            for n, row in enumerate(part):
                rows[:, first + n] = row
                if self.table[row[0], row[1] // KV_BLOCK] < 0:
                    self.table[row[0], row[1] // KV_BLOCK] = self._free.pop()
        seq, pos, tokens = self._rows = [np.ascontiguousarray(r) for r in rows]
        self.rope[..., 0], self.rope[..., 1] = np.cos(angles(pos)), np.sin(angles(pos))
        self._wanted = np.array(wanted, np.int32)
        for name, value in {
            "n_decode": len(decode), "n_prompt": len(prompt), "n_logits": len(wanted), "max_decode": MAX_DECODE,
            "max_prompt": MAX_PROMPT, "tokens": address(tokens), "pos": address(pos), "seq": address(seq),
            "logit_rows": address(self._wanted),
        }.items():  # fmt: skip
            self.state[name] = value
        return self.logits[: len(wanted)].copy() if self.program.step(self.state) else None

    def prefill(self, seq: int, tokens: np.ndarray, chunk: int) -> np.ndarray | None:
        """Feed a prompt in chunks; logits of its last token."""
        logits = None
        for i in range(0, len(tokens), chunk):
            part = [(seq, p, int(tokens[p])) for p in range(i, min(len(tokens), i + chunk))]
            logits = self.step([], part, [MAX_DECODE + len(part) - 1])
        return logits
