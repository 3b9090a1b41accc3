"""A rank that judges weaves: `python -m stretto.torch.weaving.judge PARENT RANK`.

It reads lines of JSON: first the load, then weaves, as all ranks do. Every weave is run
on new input, of two sizes, compared with the library's collectives and the same matmuls
one after the other, and timed in turns with those.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem

from stretto.errors import StrettoError
from stretto.fabric.process import die_with_parent
from stretto.runtime.calls import Communicator, connect
from stretto.torch.weaving.loads import WovenLoad, load_of
from stretto.torch.weaving.memory import WovenMemory
from stretto.torch.weaving.woven import Woven

__all__ = ["main"]

_NEAR = 0.02
"""How far results may be from the other way's, of the largest."""
_SAMPLES, _MORE, _SAMPLE_US = 9, 15, 8_000
_BEGIN_S, _CALL_S = 120.0, 30.0


def main() -> None:
    """Judge, as one of the ranks, until nobody asks any more."""
    die_with_parent(int(sys.argv[1]))
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    told = json.loads(sys.stdin.readline())
    name = f"weaves {told['folder']}"
    with connect(int(sys.argv[2]), told["ranks"], name, deadline_s=_BEGIN_S) as comm:
        judge = _Rank(comm, told)
        comm.deadline_s = _CALL_S
        answers.write('{"ready": true}\n')
        for line in sys.stdin:
            answers.write(json.dumps(judge.judged(json.loads(line))) + "\n")


class _Rank:
    """One rank: its communicators, its loads, its clock."""

    def __init__(self, comm: Communicator, told: Mapping[str, Any]) -> None:
        self._comm, self._told = comm, told
        self._on_gpu = told["device"] == "cuda"
        if self._on_gpu:
            torch.cuda.set_device(comm.rank)
        torch.set_num_threads(max(1, (os.cpu_count() or 2) // comm.num_ranks))
        backend = "nccl" if self._on_gpu else "gloo"
        dist.init_process_group(
            backend, init_method=f"file://{told['folder']}/meet", rank=comm.rank,
            world_size=comm.num_ranks,
        )  # fmt: skip
        tokens = told["tokens"]
        self._loads = [self._load(tokens), self._load(self._odd(tokens))]
        self._memories = [WovenMemory(load, comm) for load in self._loads]
        self._plain: Callable[[], Any] = lambda: self._loads[0].plain(dist, None)
        self._loads[0].fresh(0)
        self._plain()
        self._settle()
        self._replayed = self._captured() if self._on_gpu else None

    def _load(self, tokens: int) -> WovenLoad:
        told, comm = self._told, self._comm
        size = comm.rank, comm.num_ranks, tokens, told["width"]
        found = load_of(told["load"], *size, device=told["device"])
        found.draw()
        return found

    def _odd(self, tokens: int) -> int:
        """Return a number of tokens that no part divides."""
        n = self._comm.num_ranks
        return max(1, tokens // (3 * n) | 1) * n

    def _captured(self) -> Callable[[], None] | None:
        """Return the other way as a graph: it may be quicker so."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            self._plain()
        replay: Callable[[], None] = graph.replay
        return replay

    def judged(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Return whether a weave is right, and how long it and the other way take."""
        fresh, many = int(asked["fresh"]) % (1 << 40), int(asked["inputs"])
        worst = 0.0
        try:
            woven = [
                Woven(self._comm, asked["text"], load, memory)
                for load, memory in zip(self._loads, self._memories, strict=True)
            ]
        except StrettoError as e:
            return {"cost": None, "refused": str(e)[:400]}
        for turn in range(many):
            for one in woven[:: 1 if turn < 2 else 2]:
                worst = max(worst, self._distance(one, fresh + turn))
        worst = max(self._everybodys(worst))
        if not worst < _NEAR:
            return {"cost": None, "refused": f"wrong: {worst:.3g} from the other way"}
        ours: list[float] = []
        theirs: dict[str, list[float]] = {"eager": [], "graph": []}
        ways = {"eager": self._plain, "graph": self._replayed}
        if asked["last"]:
            ways |= {"torch_fused": self._fused(), "compute": woven[0].computing()}
            theirs |= {"torch_fused": [], "compute": []}
        for _ in range(_MORE if asked["last"] else _SAMPLES):
            ours.append(self._took(woven[0]))
            for name, way in ways.items():
                if way is not None:
                    theirs[name].append(self._took(way))
        more = {k: theirs.pop(k, []) for k in ("torch_fused", "compute")}
        base = min((t for t in theirs.values() if t), key=statistics.median)
        facts = {"us": statistics.median(ours), "plain_us": statistics.median(base),
                 "distance": worst, "inputs": float(many)}  # fmt: skip
        facts |= {f"{k}_us": statistics.median(us) for k, us in more.items() if us}
        ratios = sorted(a / b for a, b in zip(ours, base, strict=True))
        return {
            "cost": statistics.median(ratios), "low": ratios[0], "high": ratios[-1],
            "refused": "", "facts": facts,
        }  # fmt: skip

    def _fused(self) -> Callable[[], Any] | None:
        """Return the call by torch's own fused operators, where it has one."""
        if dist.get_backend() != "nccl":
            return None
        with contextlib.suppress(AttributeError):  # later versions need it not
            symm_mem.enable_symm_mem_for_group(dist.group.WORLD.group_name)
        load, name = self._loads[0], dist.group.WORLD.group_name
        way = load.by_torch(name)
        if way is not None:
            way()
        return way

    def _distance(self, woven: Woven, seed: int) -> float:
        """Return how far a call's result is from the other way's, of the largest."""
        load = woven.load
        load.fresh(seed)
        woven.memory.poison()
        self._settle()
        self._comm.barrier()
        first = woven().float().clone()
        load.fresh(seed + 1)  # while others may still be in the call before
        found = woven().float().clone()
        wanted = load.plain(dist, None).float().clone()
        load.fresh(seed)
        before = load.plain(dist, None).float()
        self._settle()
        return max(_gap(first, before), _gap(found, wanted))

    def _took(self, way: Callable[[], Any]) -> float:
        """Return microseconds a call of the slowest rank."""
        once = self._took_for(way, 1)
        return self._took_for(way, max(2, min(30, int(_SAMPLE_US / max(1.0, once)))))

    def _took_for(self, way: Callable[[], Any], turns: int) -> float:
        self._settle()
        self._comm.barrier()
        way()
        if self._on_gpu:
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            for _ in range(turns):
                way()
            end.record()
            self._settle()
            mine = float(begin.elapsed_time(end)) * 1e3 / turns
        else:
            began = time.perf_counter()
            for _ in range(turns):
                way()
            mine = (time.perf_counter() - began) * 1e6 / turns
        return max(self._everybodys(mine))

    def _everybodys(self, mine: float) -> list[float]:
        return [float(x) for x in self._comm.all_gather(np.array([mine])).flat]

    def _settle(self) -> None:
        if self._on_gpu:
            torch.cuda.synchronize()


def _gap(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """Return how far one is from the other, of the largest."""
    if not wanted.numel():
        return 0.0
    gap = float((found - wanted).abs().max() / wanted.abs().max())
    return math.inf if math.isnan(gap) else gap


if __name__ == "__main__":
    main()
