"""Start the ranks of a benchmark of PyTorch, one process each, and read what they said.

A rank's program takes what `Ranks` reads, and writes its answers as JSON on rank 0.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "benchmarks")]
NO_MULTICAST = {
    "NCCL_NVLS_ENABLE": "0",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
    "NVSHMEM_DISABLE_NVLS": "1",
}
SAMPLE_S = 0.04


def launch(program: str, words: Sequence[str], args: argparse.Namespace) -> Any:
    """Run a program on so many processes; return its answers, and what is wrong."""
    from stretto.bench.machine import commit

    folder = Path(tempfile.mkdtemp())
    answers = folder / "answers.json"
    environment = {**os.environ, **NO_MULTICAST}
    source = str(ROOT / "src")
    environment["PYTHONPATH"] = f"{source}:{environment.get('PYTHONPATH', '')}"
    if args.share:
        environment["STRETTO_CUDA_SHARE_GPU"] = "1"
    command = [sys.executable, str(ROOT / "benchmarks" / program), *words]
    command += ["--ranks", str(args.ranks), "--device", args.device]
    command += ["--time-budget", str(args.time_budget)]
    command += ["--meet", str(folder / "meet"), "--answers", str(answers)]
    command += ["--share"] * args.share
    ranks = []
    for rank in range(args.ranks):
        environment["LOCAL_RANK"] = str(rank)
        one = subprocess.Popen([*command, "--rank", str(rank)], env=dict(environment))
        ranks.append(one)
    wrong, stop_at = "", time.monotonic() + args.time_budget + args.grace
    while any(one.poll() is None for one in ranks):
        ended = [one.poll() for one in ranks]
        if any(code not in (None, 0) for code in ended) or time.monotonic() > stop_at:
            wrong = f"ranks ended with {ended}"
            time.sleep(2)
            for one in ranks:
                one.kill()
            break
        time.sleep(0.1)
    for one in ranks:
        one.wait()
    if any(one.returncode for one in ranks) and not wrong:
        wrong = f"ranks ended with {[one.returncode for one in ranks]}"
    said = json.loads(answers.read_text()) if answers.is_file() else {}
    said.update(wrong=wrong, command=" ".join(["python", *sys.argv]))
    said.update(commit=commit(), ranks=args.ranks)
    return said


def outer(parser: argparse.ArgumentParser) -> None:
    """Add what every benchmark takes."""
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--share", action="store_true", help="one GPU for all ranks")
    parser.add_argument("--time-budget", type=float, default=300)
    parser.add_argument("--grace", type=float, default=90, help="to start and to end")
    parser.add_argument("--out", default=os.environ.get("OUT", "."))


def write(out: str, name: str, said: Any, text: str) -> int:
    """Write both forms of the results; return an exit status."""
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(said, indent=1))
    (folder / f"{name}.md").write_text(text)
    print(text)
    return 1 if said["wrong"] or not said.get("rows") else 0


def inner(parser: argparse.ArgumentParser) -> None:
    """Add what `launch` passes to every rank."""
    for name in ("rank", "ranks"):
        parser.add_argument(f"--{name}", type=int)
    for name in ("device", "meet", "answers"):
        parser.add_argument(f"--{name}")
    parser.add_argument("--share", action="store_true")
    parser.add_argument("--time-budget", type=float)


class Ranks:
    """This process among the ranks: its device, its groups, its clock."""

    def __init__(self, args: argparse.Namespace) -> None:
        import torch
        import torch.distributed as dist

        import stretto.torch  # noqa: F401  (registers the backend)

        self.args, self.rank, self.ranks = args, args.rank, args.ranks
        self.torch, self.dist = torch, dist
        self.is_gpu = args.device == "cuda"
        self.device = torch.device("cpu")
        self.began = time.monotonic()
        if self.is_gpu:
            at = 0 if args.share else self.rank
            torch.cuda.set_device(at)
            self.device = torch.device("cuda", at)
            torch.backends.cuda.matmul.allow_tf32 = False
        torch.set_num_threads(max(1, (os.cpu_count() or 2) // self.ranks))
        self.baseline = "nccl" if self.is_gpu and not args.share else "gloo"
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if self.baseline == "nccl" else "gloo",
            init_method=f"file://{args.meet}",
            rank=self.rank,
            world_size=self.ranks,
        )
        self.control = dist.new_group(backend="gloo")
        self.groups: dict[str, Any] = {self.baseline: dist.group.WORLD}

    def group(self, name: str) -> Any:
        """Return the group of a backend; all ranks ask in one order."""
        if name not in self.groups:
            self.groups[name] = self.dist.new_group(backend=name)
        return self.groups[name]

    def everybody(self, mine: Any) -> list[Any]:
        """Return what each rank passes."""
        said: list[Any] = [None] * self.ranks
        self.dist.all_gather_object(said, mine, group=self.control)
        return said

    def agree(self, wrong: str) -> str:
        """Return what is wrong on any rank."""
        said = self.everybody(wrong)
        return "; ".join(f"rank {r}: {w}" for r, w in enumerate(said) if w)

    def tried(self, call: Callable[[], Any]) -> tuple[Any, str]:
        """Return what a call returns, and what was wrong on any rank."""
        made, wrong = None, ""
        try:
            made = call()
            self.settle()
        except Exception as e:
            wrong = f"{type(e).__name__}: {e}"[:1500]
        return made, self.agree(wrong)

    def late(self) -> bool:
        """Return whether the time is over, the same on all ranks."""
        mine = time.monotonic() - self.began > self.args.time_budget
        return any(self.everybody(mine))

    def slowest(self, times: Sequence[float]) -> list[float]:
        """Return each sample's longest time over ranks."""
        return [max(one) for one in zip(*self.everybody(times), strict=True)]

    def settle(self) -> None:
        """Wait for the device."""
        if self.is_gpu:
            self.torch.cuda.synchronize()

    def took(self, step: Callable[[], Any], turns: int) -> float:
        """Return microseconds a step."""
        self.dist.barrier(group=self.control)
        if not self.is_gpu:
            began = time.perf_counter()
            for _ in range(turns):
                step()
            return (time.perf_counter() - began) * 1e6 / turns
        begin = self.torch.cuda.Event(enable_timing=True)
        end = self.torch.cuda.Event(enable_timing=True)
        step()
        begin.record()
        for _ in range(turns):
            step()
        end.record()
        self.settle()
        return float(begin.elapsed_time(end)) * 1e3 / turns

    def compare(
        self, steps: dict[str, Callable[[], Any]], repeats: int
    ) -> dict[str, Any]:
        """Return each step's median time, of the slowest rank, measured in turn."""
        turns = 1
        if steps:
            first = self.slowest([self.took(s, 2) for s in steps.values()])
            turns = max(2, min(300, int(SAMPLE_S * 1e6 / max(1.0, min(first)))))
        times: dict[str, list[float]] = {name: [] for name in steps}
        for turn in range(repeats):
            names = list(steps) if turn % 2 == 0 else list(steps)[::-1]
            for name in names:
                times[name].append(self.took(steps[name], turns))
        medians, spread = {}, {}
        for name in steps:
            slowest = self.slowest(times[name])
            medians[name] = round(statistics.median(slowest), 2)
            spread[name] = round(max(slowest) - min(slowest), 2)
        return {"turns": turns, "us": medians, "spread": spread}

    def write(self, said: Any) -> None:
        """Write the answers so far, on rank 0."""
        if self.rank == 0:
            Path(self.args.answers).write_text(json.dumps(said))

    def say(self, text: object) -> None:
        """Print with the time, on rank 0."""
        if self.rank == 0:
            print(f"[{time.monotonic() - self.began:6.1f}] {text}", flush=True)
