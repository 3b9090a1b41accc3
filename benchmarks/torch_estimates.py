"""What Inductor is told that started calls take, beside what they take.

    python benchmarks/torch_estimates.py --ranks 2 --out DIR
    python benchmarks/torch_estimates.py --device cpu --megabytes 1 8 --out DIR

"formula" is what Inductor takes without a backend that knows better. A call is started
and waited for, twenty in a row, in bf16; the median of nine, of the slowest rank.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable
from typing import Any

from torch_ranks import Ranks, inner, launch, outer, write

MEGABYTES = (1, 8, 64, 256)
CALLS, REPEATS = 20, 9


class Rank(Ranks):
    """Calls of one group, and what Inductor makes of them."""

    def tensors(self, verb: str, megabytes: int) -> tuple[Any, Any]:
        """Return an input and an output of so many bytes in all."""
        whole, part = (
            self.torch.zeros(n, device=self.device, dtype=self.torch.bfloat16)
            for n in (megabytes << 19, (megabytes << 19) // self.ranks)
        )
        return (part, whole) if verb == "all_gather" else (whole, part)

    def start(self, verb: str, group: Any, x: Any, y: Any) -> Any:
        """Start a call, and return its Work."""
        dist, how = self.dist, {"group": group, "async_op": True}
        if verb == "all_reduce":
            return dist.all_reduce(x, **how)
        if verb == "all_gather":
            return dist.all_gather_into_tensor(y, x, **how)
        return dist.reduce_scatter_tensor(y, x, **how)

    def takes(self, call: Callable[[], Any]) -> float:
        """Return microseconds of a call among others."""
        call().wait()  # to compile
        self.settle()
        found = [self.took(lambda: call().wait(), CALLS) for _ in range(REPEATS)]
        return round(max(self.everybody(statistics.median(found))), 1)

    def told(self, verb: str, group: Any, x: Any) -> list[float]:
        """Return what Inductor reckons with, and its formula, in microseconds."""
        import torch.distributed._functional_collectives as functional
        from torch._inductor import comm_analysis
        from torch.fx.experimental.proxy_tensor import make_fx

        calls: dict[str, Callable[[Any], Any]] = {
            "all_reduce": lambda x: functional.all_reduce(x, "sum", group),
            "all_gather": lambda x: functional.all_gather_tensor(x, 0, group),
            "reduce_scatter": lambda x: functional.reduce_scatter_tensor(
                x, "sum", 0, group
            ),
        }
        graph = make_fx(calls[verb], tracing_mode="fake")(x).graph
        node = next(
            one
            for one in graph.nodes
            if "_c10d_functional" in str(one.target) and "wait" not in str(one.target)
        )
        ask = comm_analysis.estimate_nccl_collective_runtime_from_fx_node
        both = ask(node), ask(node, use_nccl_estimator=False)
        return [round(1e3 * one, 1) for one in both]


def work(words: list[str]) -> int:
    """Be a rank."""
    parser = argparse.ArgumentParser()
    inner(parser)
    parser.add_argument("--megabytes", nargs="+", type=int)
    rank = Rank(parser.parse_args(words))
    said: dict[str, Any] = {"torch": rank.torch.__version__, "rows": []}
    for name in (rank.baseline, "stretto"):
        for verb in ("all_reduce", "all_gather", "reduce_scatter"):
            for megabytes in rank.args.megabytes:
                group, (x, y) = rank.group(name), rank.tensors(verb, megabytes)
                us = rank.takes(
                    lambda v=verb, g=group, x=x, y=y: rank.start(v, g, x, y)
                )
                told, formula = rank.told(verb, group, x)
                row = {"group": name, "call": verb, "MB": megabytes, "us": us}
                said["rows"].append({**row, "told": told, "formula": formula})
                rank.say(said["rows"][-1])
                rank.write(said)
    rank.dist.barrier(group=rank.control)
    return 0


def table(said: dict[str, Any]) -> str:
    """Return the results as markdown."""
    lines = ["| group | call | MB | takes, us | told | formula |"]
    lines.append("| --- | --- | ---: | ---: | ---: | ---: |")
    lines += [
        f"| {' | '.join(str(one) for one in row.values())} |" for row in said["rows"]
    ]
    return "\n".join([*lines, *([said["wrong"]] if said["wrong"] else [])]) + "\n"


def main() -> int:
    """Measure, or be a rank when started as one."""
    if "--rank" in sys.argv:
        return work(sys.argv[1:])
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    outer(parser)
    parser.add_argument("--megabytes", nargs="+", type=int, default=list(MEGABYTES))
    args = parser.parse_args()
    words = ["--megabytes", *map(str, args.megabytes)]
    said = {"rows": [], **launch("torch_estimates.py", words, args)}
    return write(args.out, f"torch_estimates_x{args.ranks}", said, table(said))


if __name__ == "__main__":
    sys.exit(main())
