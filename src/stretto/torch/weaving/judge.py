"""Ranks that judge weaves: `python -m stretto.torch.weaving.judge PARENT`.

It reads lines of JSON: first the load, then weaves. Every weave is run on new input, of
two sizes, compared with the library's collectives and the same matmuls one after the
other, and timed in turns with those.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem

from stretto.errors import StrettoError
from stretto.fabric.process import die_with_parent
from stretto.runtime.calls import Communicator, spawn
from stretto.torch.weaving.loads import WovenLoad, made
from stretto.torch.weaving.woven import Woven, WovenMemory

__all__ = ["main"]

_NEAR = 0.02
"""How far results may be from the other way's, of the largest."""
_SAMPLES, _MORE, _BEGIN_S = 9, 15, 90.0
_FEW = 10
"""With more inputs a weave is judged for the last time."""
_SAMPLE_US = 8_000


def main() -> None:
    """Judge until nobody asks any more."""
    die_with_parent(int(sys.argv[1]))
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    told = json.loads(sys.stdin.readline())
    with tempfile.TemporaryDirectory() as folder:
        ranks = _Ranks(told, folder)
        said = ranks.hear()
        if said.get("refused"):
            answers.write(json.dumps({"error": said["refused"]}) + "\n")
            return
        answers.write('{"ready": true}\n')
        for line in sys.stdin:
            answers.write(json.dumps(ranks.ask(line)) + "\n")


class _Ranks:
    """The ranks, in a thread that waits for their end."""

    def __init__(self, told: Mapping[str, Any], folder: str) -> None:
        place = str(Path(folder) / "ranks")
        self._wrong = ""
        self._listener = Listener(place, "AF_UNIX")
        self._thread = threading.Thread(
            target=self._run, args=(told, place), daemon=True
        )
        self._thread.start()
        self._ends: list[Connection] = []
        for _ in range(told["ranks"]):
            self._ends.append(self._listener.accept())
        self._listener.close()

    def _run(self, told: Mapping[str, Any], place: str) -> None:
        try:
            spawn(_serve, dict(told), place, num_ranks=told["ranks"])
        except Exception as e:
            said = [line for line in str(e).splitlines() if "Error" in line]
            self._wrong = (said or [str(e)])[0].strip()[:400]  # what was first
            with contextlib.suppress(OSError):
                for _ in range(told["ranks"]):  # whoever still waits for them
                    Client(place, "AF_UNIX").close()

    def ask(self, line: str) -> dict[str, Any]:
        """Return what ranks say of a weave."""
        with contextlib.suppress(OSError):  # who is gone is heard of below
            for end in self._ends:
                end.send(line)
        return self.hear()

    def hear(self) -> dict[str, Any]:
        """Return what rank 0 says, or why there is nobody."""
        with contextlib.suppress(EOFError, OSError):
            every: list[dict[str, Any]] = [end.recv() for end in self._ends]
            return next(said for said in every if said)
        self._thread.join(_BEGIN_S)
        why = self._wrong or "the ranks ended"
        return {"cost": None, "refused": why, "last": True}


def _serve(comm: Communicator, told: Mapping[str, Any], place: str) -> None:
    """Be a rank until the other end is gone."""
    end = Client(place, "AF_UNIX")
    judge = _Rank(comm, told, Path(place).parent)
    end.send({"cost": None, "ready": True} if comm.rank == 0 else {})
    while True:
        try:
            asked = json.loads(end.recv())
        except EOFError:
            return
        found = judge.judged(asked)
        end.send(found if comm.rank == 0 else {})


class _Rank:
    """One rank: its communicators, its loads, its clock."""

    def __init__(
        self, comm: Communicator, told: Mapping[str, Any], folder: Path
    ) -> None:
        self._comm, self._told = comm, told
        self._on_gpu = told["device"] == "cuda"
        if self._on_gpu:
            torch.cuda.set_device(comm.rank)
        torch.set_num_threads(max(1, (os.cpu_count() or 2) // comm.num_ranks))
        backend = "nccl" if self._on_gpu else "gloo"
        dist.init_process_group(
            backend, init_method=f"file://{folder}/meet", rank=comm.rank,
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
        found = made(told["load"], *size, device=told["device"])
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
        fresh, many = int(asked["fresh"]) % (1 << 40), int(asked.get("inputs", 2))
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
        if many > _FEW:
            ways |= {"torch_fused": self._fused(), "compute": woven[0].computing}
            theirs |= {"torch_fused": [], "compute": []}
        for _ in range(_SAMPLES if many <= _FEW else _MORE):
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
