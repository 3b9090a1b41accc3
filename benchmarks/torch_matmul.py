"""all_gather then matmul, matmul then reduce_scatter: one after the other, or at once.

    python benchmarks/torch_matmul.py --ranks 2 --out DIR
    python benchmarks/torch_matmul.py --device cpu --size 64 --tokens 64 --out DIR

`--size` is both sides of each GPU's matrix, `--tokens` the rows of all ranks. Variants:
nccl (gloo on the CPU) then cuBLAS; stretto then cuBLAS; ours as it chooses by size, and
at once by each of `--how`; torch's fused operators of symmetric memory. bf16; medians
of the slowest rank, of samples in turn; results are compared with the first variant's
before. `--pieces` says what a call is made of: matmuls whole and in parts, sums, copies
and barriers, each alone; and how long the host is busy with a call.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import sys
import time
from collections.abc import Callable
from typing import Any

from torch_decode import geomean
from torch_ranks import Ranks, inner, launch, outer, write

CLOSE = 0.03
"""Distance of results, of the largest one's size: sums have different orders."""
TOKENS = (1024, 2048, 4096, 8192, 16384)
HOWS = {"all_gather": ("whole",), "reduce_scatter": ("whole", "ring")}  # fmt: skip


class Rank(Ranks):
    """The matrices of a rank, and the calls of each variant."""

    def __init__(self, args: argparse.Namespace) -> None:
        super().__init__(args)
        import stretto.torch.operators as ours
        from stretto.torch.operators import matmuls, overlapping

        self.ours, size = ours, args.size
        self.matmuls, self.overlapping = matmuls, overlapping
        kind = self.torch.bfloat16 if self.is_gpu else self.torch.float32
        gen = self.torch.Generator(self.device).manual_seed(self.rank)

        def drawn(rows: int, columns: int) -> Any:
            made = self.torch.empty(rows, columns, device=self.device, dtype=kind)
            return made.normal_(0, columns**-0.5, generator=gen)

        self.drawn, self.w = drawn, drawn(size, size)
        if self.baseline == "nccl":  # registers torch's fused operators
            import torch.distributed._symmetric_memory as symm_mem

            with contextlib.suppress(AttributeError):  # later versions need it not
                symm_mem.enable_symm_mem_for_group(self.dist.group.WORLD.group_name)
        self.theirs, self.mine = self.group(self.baseline), self.group("stretto")

    def gather_steps(self, tokens: int) -> dict[str, Callable[[], Any]]:
        """Return (everybody's rows) @ w of each variant."""
        torch, dist, w = self.torch, self.dist, self.w
        x = self.drawn(tokens // self.ranks, w.shape[0])
        whole = x.new_empty(tokens, w.shape[0])

        def after(group: Any) -> Any:
            dist.all_gather_into_tensor(whole, x, group=group)
            return whole @ w

        def fused() -> Any:
            name = dist.group.WORLD.group_name
            ops = torch.ops.symm_mem
            return ops.fused_all_gather_matmul(x, [w], 0, name)[1][0]

        return self.named(
            "all_gather",
            after,
            functools.partial(self.ours.all_gather_matmul, x, w, self.mine),
            fused,
        )

    def scatter_steps(self, tokens: int) -> dict[str, Callable[[], Any]]:
        """Return this rank's rows of the sum of x @ w of each variant."""
        torch, dist, w = self.torch, self.dist, self.w
        x = self.drawn(tokens, w.shape[0])
        part = x.new_empty(tokens // self.ranks, w.shape[1])

        def after(group: Any) -> Any:
            dist.reduce_scatter_tensor(part, x @ w, group=group)
            return part

        def fused() -> Any:
            name = dist.group.WORLD.group_name
            ops = torch.ops.symm_mem
            return ops.fused_matmul_reduce_scatter(x, w, "sum", 0, name)

        return self.named(
            "reduce_scatter",
            after,
            functools.partial(self.ours.matmul_reduce_scatter, x, w, self.mine),
            fused,
        )

    def named(
        self,
        kind: str,
        after: Callable[[Any], Any],
        at_once: Callable[[], Any],
        fused: Any,
    ) -> dict[str, Callable[[], Any]]:
        """Return the variants by name."""
        steps = {
            self.baseline: functools.partial(after, self.theirs),
            "stretto": functools.partial(after, self.mine),
            "stretto by size": at_once,
        }
        for how in (h for h in self.args.how if h in HOWS[kind]):
            steps[f"at once, {how}"] = functools.partial(self.forced, how, at_once)
        if self.baseline == "nccl":
            steps["torch fused"] = fused
        return steps

    def forced(self, how: str, at_once: Callable[[], Any]) -> Any:
        """Overlap in a way, whatever the size."""
        module, usual = self.matmuls, (self.matmuls.OVERLAP_FROM, self.overlapping.HOW)
        module.OVERLAP_FROM, self.overlapping.HOW = 0, how
        try:
            return at_once()
        finally:
            module.OVERLAP_FROM, self.overlapping.HOW = usual

    def pieces(self, tokens: int) -> dict[str, Any]:
        """Return how long what calls are made of takes alone."""
        torch, w, n = self.torch, self.w, self.ranks
        rows = tokens // n
        x, part = self.drawn(tokens, w.shape[0]), self.drawn(rows, w.shape[0])
        y, whole = x.new_empty(tokens, w.shape[1]), x.view(n, rows, -1)
        parts, flag = y.split(rows), torch.zeros(1, device=self.device)
        outs = [y[cut] for cut in self.overlapping._halves(rows)]

        def in_halves() -> None:
            for one in whole:
                for cut, out in zip(self.overlapping._halves(rows), outs, strict=True):
                    torch.mm(one[cut], w, out=out)

        steps: dict[str, Callable[[], Any]] = {
            "matmul": lambda: torch.mm(x, w, out=y),
            "in parts": lambda: [
                torch.mm(a, w, out=b) for a, b in zip(whole, parts, strict=True)
            ],
            "in halves of parts": in_halves,
            "parts that add": lambda: [
                b.addmm_(a, w) for a, b in zip(whole, parts, strict=True)
            ],
            "sum of parts": lambda: whole.sum(0),
            "sum of parts, ours": lambda: self.overlapping._added(
                x, n, [rows, w.shape[0]]
            ),
            "copy of a part": lambda: part.copy_(whole[0]),
            "barrier": lambda: self.dist.all_reduce(flag, group=self.mine),
        }
        if n == 2:
            steps["sum of two"] = lambda: whole[0] + whole[1]
        return {"tokens": tokens, **self.compare(steps, 3)}

    def host(self, steps: dict[str, Callable[[], Any]]) -> dict[str, float]:
        """Return microseconds of the host for a call, behind a queue that is full."""
        found = {}
        for name, step in steps.items():
            self.settle()
            self.dist.barrier(group=self.control)
            begun = time.perf_counter()
            for _ in range(5):
                step()
            found[name] = round((time.perf_counter() - begun) * 2e5, 1)
        self.settle()
        return found

    def case(self, kind: str, tokens: int) -> dict[str, Any]:
        """Return a row: variants that are right, in turn."""
        make = self.gather_steps if kind == "all_gather" else self.scatter_steps
        steps, failed, want = make(tokens), {}, None
        for name, step in list(steps.items()):
            made, wrong = self.tried(lambda step=step: (step(), step())[1].clone())
            if not wrong and want is not None:
                gap = ((made - want).abs().max() / want.abs().max()).item()
                wrong = self.agree("" if gap < CLOSE else f"off by {gap}")
            if wrong:
                failed[name] = wrong
                del steps[name]
            elif want is None:
                want = made
        times = self.compare(steps, self.args.repeats)
        if self.args.pieces:
            times["host"] = self.host(steps)
        return {"kind": kind, "tokens": tokens, **times, "failed": failed}


def work(words: list[str]) -> int:
    """Be a rank."""
    parser = argparse.ArgumentParser()
    inner(parser)
    parser.add_argument("--size", type=int)
    parser.add_argument("--repeats", type=int)
    parser.add_argument("--tokens", type=int, nargs="+")
    parser.add_argument("--how", nargs="*")
    parser.add_argument("--pieces", action="store_true")
    rank = Rank(parser.parse_args(words))
    said: dict[str, Any] = {"rows": [], "torch": rank.torch.__version__}
    with rank.torch.no_grad():
        for tokens in rank.args.tokens:
            if rank.args.pieces and not rank.late():
                said.setdefault("pieces", []).append(rank.pieces(tokens))
                rank.say(said["pieces"][-1])
            for kind in ("all_gather", "reduce_scatter"):
                if rank.late():
                    said["cut"] = f"no time left at {kind} {tokens}"
                    break
                said["rows"].append(rank.case(kind, tokens))
                rank.say(said["rows"][-1])
                rank.write(said)
    rank.dist.barrier(group=rank.control)
    return 0


def best_of(rows: list[dict[str, Any]], baseline: str) -> dict[str, str]:
    """Return the geomean over the baseline if every size had our fastest way."""
    found: dict[str, list[tuple[int, str, float]]] = {}
    for row in rows:
        ours = {n: t for n, t in row["us"].items() if n.startswith(("stretto", "at"))}
        if not ours or baseline not in row["us"]:
            continue
        name = min(ours, key=lambda n: ours[n])
        gain = row["us"][baseline] / ours[name]
        found.setdefault(row["kind"], []).append((row["tokens"], name, gain))
    return {
        kind: f"geomean {geomean([g for *_, g in some]):.3f}: "
        + ", ".join(f"{tokens} {name} {gain:.3f}" for tokens, name, gain in some)
        for kind, some in found.items()
    }


def table(said: dict[str, Any], baseline: str) -> str:
    """Return the rows as markdown."""
    names = list(dict.fromkeys(n for row in said["rows"] for n in row["us"]))
    others = [n for n in names if n != baseline]
    heads = ["kind", "tokens", *(f"{n} us" for n in names), *(f"{n} x" for n in others)]
    lines = [f"| {' | '.join(heads)} |"]
    lines.append(f"| --- | {' | '.join(['---:'] * (len(heads) - 1))} |")
    gains: dict[str, list[float]] = {}
    for row in said["rows"]:
        us = row["us"]
        cells = [row["kind"], str(row["tokens"])]
        cells += [f"{us[n]:.1f}" if n in us else "-" for n in names]
        for name in others:
            gain = us[baseline] / us[name] if {name, baseline} <= set(us) else None
            cells.append(f"{gain:.3f}" if gain else "-")
            if gain:
                gains.setdefault(f"{row['kind']}, {name}", []).append(gain)
        lines.append(f"| {' | '.join(cells)} |")
    lines.append("")
    for what, found in gains.items():
        lines.append(f"- {what}: geomean {geomean(found):.3f} over {baseline}")
    for what, best in best_of(said["rows"], baseline).items():
        lines.append(f"- {what}, the best way of each size: {best}")
    for row in said["rows"]:
        for name, why in row["failed"].items():
            lines.append(f"- {row['kind']} {row['tokens']} {name}: {why[:300]}")
        if "host" in row:
            lines.append(f"- host us, {row['kind']} {row['tokens']}: {row['host']}")
    lines += [
        f"- pieces, {row['tokens']} tokens, us: {row['us']}"
        for row in said.get("pieces", [])
    ]
    lines += [f"- {said[key]}" for key in ("cut", "wrong") if said.get(key)]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Measure, or be a rank when started as one."""
    if "--rank" in sys.argv:
        return work(sys.argv[1:])
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    outer(parser)
    parser.add_argument("--size", type=int, default=8192)
    parser.add_argument("--tokens", type=int, nargs="+", default=list(TOKENS))
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--how", nargs="*", default=["whole", "ring"])
    parser.add_argument("--pieces", action="store_true", help="what a call is made of")
    args = parser.parse_args()
    words = [
        "--how",
        *args.how,
        "--size",
        str(args.size),
        "--repeats",
        str(args.repeats),
    ]
    words += ["--tokens", *map(str, args.tokens)]
    words += ["--pieces"] * args.pieces
    said = {"rows": [], **launch("torch_matmul.py", words, args)}
    baseline = "nccl" if args.device == "cuda" and not args.share else "gloo"
    name = f"torch_matmul_x{args.ranks}"
    return write(args.out, name, said, table(said, baseline))


if __name__ == "__main__":
    sys.exit(main())
