"""What dispatch and combine are to give, in plain NumPy: the definition, written out.

Lists of all ranks' arrays go in; what one rank is to see comes out. Elements are those
of ml_dtypes and of NumPy, so nothing is shared with what is judged.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np

TYPES = {
    "float32": np.dtype("float32"),
    "float16": np.dtype("float16"),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
}


def quantised(x, powers):
    """Return fp8 bytes and scales of rows: groups of 128."""
    wide = x.astype(np.float32)
    groups = wide.reshape(len(x), x.shape[1] // 128, 128)
    most = np.maximum(np.abs(groups).max(-1, initial=0), np.float32(1e-4))
    per = most * np.float32(1 / 448)
    scale = np.float32(448) / most
    if powers:
        mantissa, exponent = np.frexp(per)
        up = exponent - (mantissa == 0.5)
        per, scale = np.ldexp(np.float32(1), up), np.ldexp(np.float32(1), -up)
    scaled = np.clip(groups * scale[..., None], -448, 448)
    made = scaled.astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
    return made.reshape(x.shape), per.astype(np.float32)


class Case:
    """One routing of all ranks' tokens, and what their experts make of them."""

    def __init__(self, xs, ids, weights, owner, layout, align, max_tokens, quant=""):
        self.xs, self.ids, self.weights = xs, ids, weights
        self.owner = np.asarray(owner)
        self.layout, self.align, self.max_tokens = layout, align, max_tokens
        self.n, self.quant = len(xs), quant

    def experts_of(self, rank):
        return [e for e, q in enumerate(self.owner) if q == rank]

    def arrivals(self, rank):
        """Return (source, token) of each row that comes to a rank, in order."""
        return [
            (s, t)
            for s in range(self.n)
            for t, chosen in enumerate(self.ids[s])
            if any(e >= 0 and self.owner[e] == rank for e in chosen)
        ]

    def expert_rows(self, rank):
        """Return (source, token, choice) of each row, by expert."""
        return [
            [
                (s, t, j)
                for s, t in self.arrivals(rank)
                for j, chosen in enumerate(self.ids[s][t])
                if chosen == e
            ]
            for e in self.experts_of(rank)
        ]

    def lines(self, rank):
        """Return what stands in each line of `rows`, None where nothing does."""
        if self.layout == "token":
            return self.arrivals(rank)
        if self.layout == "rank":
            found = []
            for s in range(self.n):
                mine = [one for one in self.arrivals(rank) if one[0] == s]
                found += mine + [None] * (self.max_tokens - len(mine))
            return found
        found = []
        for rows in self.expert_rows(rank):
            found += rows + [None] * (-len(rows) % self.align)
        return found

    def dispatched(self, rank):
        """Return rows, and scales or None."""
        width, kind = self.xs[0].shape[1], self.xs[0].dtype
        lines = self.lines(rank)
        made = list(self.xs)
        scales = None
        if self.quant:
            both = [quantised(x, self.quant.endswith("pow2")) for x in self.xs]
            made, kind = [b[0] for b in both], np.dtype("uint8")
            scales = np.zeros((len(lines), width // 128), np.float32)
        rows = np.zeros((len(lines), width), kind)
        for at, one in enumerate(lines):
            if one is not None:
                rows[at] = made[one[0]][one[1]]
                if scales is not None:
                    scales[at] = both[one[0]][1][one[1]]
        return rows, scales

    def local_ids(self, rank):
        mine = self.experts_of(rank)
        return [
            [mine.index(e) if e in mine else -1 for e in self.ids[s][t]]
            for s, t in self.arrivals(rank)
        ]

    def combined(self, rank, rows_of, order):
        """Return a rank's tokens: sums of all ranks' rows (`rows_of[rank]`)."""
        kind, width = self.xs[0].dtype, self.xs[0].shape[1]
        where = [
            {one: at for at, one in enumerate(self.lines(q)) if one is not None}
            for q in range(self.n)
        ]
        out = np.zeros((len(self.ids[rank]), width), kind)
        for t, chosen in enumerate(self.ids[rank]):
            total = np.zeros(width, np.float32)
            parts = {q: np.zeros(width, np.float32) for q in range(self.n)}
            reached = set()
            for j, e in enumerate(chosen):
                if e < 0:
                    continue
                q = int(self.owner[e])
                if self.layout != "expert":
                    reached.add(q)
                    continue
                row = rows_of[q][where[q][rank, t, j]].astype(np.float32)
                scaled = row * np.float32(self.weights[rank][t, j])
                total = total + scaled
                parts[q] = parts[q] + scaled
                reached.add(q)
            if order == "rank":
                total = np.zeros(width, np.float32)
                for q in sorted(reached):
                    part = parts[q]
                    if self.layout != "expert":
                        part = rows_of[q][where[q][rank, t]].astype(np.float32)
                    total = total + part.astype(kind).astype(np.float32)
            out[t] = total.astype(kind)
        return out


def random_case(rng, n):
    """Return a case with sizes of few tokens, and the options that it is for."""
    k = int(rng.integers(1, 5))
    num = int(rng.integers(k, 13))
    most = int(rng.integers(1, 9))
    hidden = int(rng.choice([128, 256]))
    layout = str(rng.choice(["token", "expert", "rank"]))
    order = str(rng.choice(["k", "rank"])) if layout == "expert" else "rank"
    dtype = str(rng.choice(list(TYPES)))
    quant = str(rng.choice(["", "", "fp8_128", "fp8_128_pow2"]))
    if not quant and rng.integers(2):
        hidden = int(rng.choice([1, 3, 20]))
    align = int(rng.choice([1, 1, 4, 16]))
    owner = [e * n // num for e in range(num)]
    placed = bool(rng.integers(2))
    if placed:
        owner = [int(q) for q in rng.integers(0, n, num)]
    tokens = [int(rng.choice([0, most, rng.integers(0, most + 1)])) for _ in range(n)]
    how = rng.integers(4)
    ids = []
    for many in tokens:
        chosen = rng.integers(-1, num, (many, k))  # twice the same, too
        if how == 0:
            chosen[:] = rng.integers(0, num)
        elif how == 1:
            chosen[:] = -1
        elif how == 2:
            chosen = rng.permuted(np.tile(np.arange(num), (many, 1)), axis=1)[:, :k]
        ids.append(chosen.astype(np.int64))
    kind = TYPES[dtype]
    scale = 10.0 ** rng.integers(-6, 4)
    xs = [(rng.standard_normal((m, hidden)) * scale).astype(kind) for m in tokens]
    weights = [rng.random((m, k)).astype(np.float32) for m in tokens]
    case = Case(xs, ids, weights, owner, layout, align, most, quant)
    options = {
        "num_experts": num, "top_k": k, "hidden": hidden, "max_tokens": most,
        "layout": layout, "order": order, "dtype": dtype, "quantise": quant or None,
        "align": align, "placement": owner if placed else None,
    }  # fmt: skip
    return case, options
