"""torch.distributed on the CPU: stretto beside Gloo, in the same processes.

    python benchmarks/torch_cpu.py --out torch_cpux2_202611

Both groups live in the same ranks and take turns, ABBA, on the same sizes; every result
is checked before it is timed. A time is the median of single calls on rank 0, in
microseconds. Then a step of DistributedDataParallel with ten million parameters and the
first one; how soon a dead rank is known everywhere; and what the import costs. At the
end every goal is said to be reached or not. Takes about three minutes when it is quiet.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import stretto

SIZES = (8, 256, 4 << 10, 64 << 10, 1 << 20, 4 << 20, 64 << 20)
RESULTS = Path(__file__).parent / "results"
TABLES = ("all_reduce", "all_reduce, registered", "all_reduce, started")
SHORT = 64 << 10


def main() -> None:
    """Start the ranks, print their tables, and keep them when asked to."""
    from stretto.bench.machine import commit

    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=8, help="ABBA rounds of a size")
    parser.add_argument("--budget-ms", type=float, default=40.0, help="of one turn")
    parser.add_argument("--largest", type=int, default=SIZES[-1])
    parser.add_argument("--steps", type=int, default=12, help="of DDP, each backend")
    parser.add_argument("--deaths", type=int, default=3, help="of a rank, in turn")
    parser.add_argument("--imports", type=int, default=7, help="of each module")
    parser.add_argument("--out", default="")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = stretto.spawn(
            work, vars(options), f"{folder}/store", num_ranks=options.ranks
        )[0]
    found["dead_s"] = max(_dead() for _ in range(options.deaths))
    found["import_ms"] = _import_ms(options.imports)
    found |= {"command": " ".join(["python", *sys.argv]), "commit": commit()}
    found["goals"] = goals(found)
    text = tables(found)
    print(text)
    if options.out:
        (RESULTS / f"{options.out}.json").write_text(json.dumps(found, indent=1) + "\n")
        (RESULTS / f"{options.out}.md").write_text(text + "\n")


def _import_ms(count: int) -> float:
    """Return what importing stretto.torch costs beyond torch: the least of each."""
    least = {}
    for _ in range(count):
        for module in ("torch.distributed", "stretto.torch"):
            code = (
                f"import time; began = time.perf_counter(); import {module}; "
                f"print(time.perf_counter() - began)"
            )
            said = subprocess.run(
                [sys.executable, "-c", code], capture_output=True, text=True, check=True
            )
            took = float(said.stdout) * 1e3
            least[module] = min(took, least.get(module, took))
    return least["stretto.torch"] - least["torch.distributed"]


def _dead() -> float:
    """Return in how many seconds two ranks know that a third was killed in a call."""
    store = tempfile.mktemp()
    ranks = [
        subprocess.Popen(
            [sys.executable, __file__, "--mortal", str(rank), store],
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(3)
    ]
    try:
        for one in ranks:
            assert one.stdout is not None
            assert one.stdout.readline().strip() == "ready", "a rank did not begin"
        time.sleep(0.5)
        began = time.monotonic()
        ranks[2].kill()
        for one in ranks[:2]:
            said, _ = one.communicate(timeout=60)
            assert "DistBackendError" in said, said
        return time.monotonic() - began
    finally:
        for one in ranks:
            one.kill()
            one.wait()


def _mortal(rank: int, store: str) -> int:
    """Be a rank that calls until one is dead; say which class of error told it."""
    import torch
    import torch.distributed as dist

    import stretto.torch  # noqa: F401

    dist.init_process_group(
        "stretto", init_method=f"file://{store}", rank=rank, world_size=3
    )
    x = torch.ones(1 << 18)
    dist.all_reduce(x)
    print("ready", flush=True)
    try:
        while True:
            dist.all_reduce(x.zero_())
            if rank == 2:
                time.sleep(60)  # the others wait for this one when it is killed
    except dist.DistBackendError:
        print("DistBackendError", flush=True)
    os._exit(0)


def work(comm: Any, options: dict[str, Any], store: str) -> dict[str, Any]:
    """Be a rank."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    import torch
    import torch.distributed as dist

    import stretto.torch

    torch.set_num_threads(1)
    dist.init_process_group(
        "stretto",
        init_method=f"file://{store}",
        rank=comm.rank,
        world_size=comm.num_ranks,
    )
    groups = {"stretto": dist.group.WORLD, "gloo": dist.new_group(backend="gloo")}
    found: dict[str, Any] = {
        "ranks": comm.num_ranks,
        "torch": torch.__version__,
        "load": os.getloadavg()[0],
    }
    sizes = [size for size in SIZES if size <= options["largest"]]
    tables: dict[str, Any] = {name: {} for name in TABLES}
    for size in sizes:
        x, y = torch.empty(size // 4), stretto.torch.empty(size // 4)
        args = groups, comm, options
        tables["all_reduce"][size] = _abba(x, x, False, *args)
        tables["all_reduce, registered"][size] = _abba(y, x, False, *args)
        if size <= SHORT:
            tables["all_reduce, started"][size] = _abba(x, x, True, *args)
    found["us"] = tables
    found["ddp"] = _ddp(groups, comm, options)
    dist.destroy_process_group()
    return found


def _abba(
    mine: Any, theirs: Any, started: bool, groups: Any, comm: Any, options: Any
) -> dict[str, float]:
    """Return medians of both, in microseconds."""
    tensors = {"stretto": mine, "gloo": theirs}
    calls = {
        name: _call(tensors[name], group, started) for name, group in groups.items()
    }
    n = comm.num_ranks
    for name, call in calls.items():
        tensors[name].fill_(comm.rank + 1.0)
        call()
        want = n * (n + 1) / 2
        assert bool((tensors[name] == want).all()), f"{name} gave a wrong sum"
        tensors[name].fill_(0.0)  # sums of zeros stay what they are
    counts = {}
    for name, call in calls.items():
        took = statistics.median(_times(call, 5))
        counts[name] = max(4, min(2000, int(options["budget_ms"] * 1e-3 / took)))
    told = [int(c.max()) for c in _columns(comm, counts)]
    counts = dict(zip(counts, told, strict=True))
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(options["rounds"]):
        for name in ("stretto", "gloo", "gloo", "stretto"):
            comm.barrier()
            times[name] += _times(calls[name], counts[name])
    return {name: statistics.median(found) * 1e6 for name, found in times.items()}


def _columns(comm: Any, counts: dict[str, int]) -> Any:
    import numpy as np

    return comm.all_gather(np.array(list(counts.values()))).T


def _call(x: Any, group: Any, started: bool) -> Callable[[], None]:
    import torch.distributed as dist

    if started:
        return lambda: dist.all_reduce(x, group=group, async_op=True).wait()
    return lambda: dist.all_reduce(x, group=group)


def _times(call: Callable[[], None], count: int) -> list[float]:
    clock, found = time.perf_counter, []
    for _ in range(count):
        start = clock()
        call()
        found.append(clock() - start)
    return found


def _ddp(groups: Any, comm: Any, options: Any) -> dict[str, Any]:
    """Return the times of steps of a model of ten million parameters."""
    import torch
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    steps, losses, first = {}, {}, {}
    x, y = torch.randn(2, 1024), torch.randn(2, 1024)
    for name, group in groups.items():
        torch.manual_seed(0)
        layers = [nn.Sequential(nn.Linear(1024, 1024), nn.ReLU()) for _ in range(10)]
        model = DistributedDataParallel(nn.Sequential(*layers), process_group=group)
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        losses[name] = []
        steps[name] = _step(model, optimizer, x, y, losses[name])
        comm.barrier()
        first[name] = _times(steps[name], 1)[0] * 1e3
        _times(steps[name], 2)
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(options["steps"] // 2):
        for name in ("stretto", "gloo", "gloo", "stretto"):
            comm.barrier()
            times[name] += _times(steps[name], 1)
    same = zip(losses["stretto"], losses["gloo"], strict=True)
    assert all(math.isclose(a, b, rel_tol=1e-4) for a, b in same), losses
    return {
        "step_ms": {k: statistics.median(v) * 1e3 for k, v in times.items()},
        "first_ms": first,
    }


def _step(model: Any, optimizer: Any, x: Any, y: Any, losses: list[float]) -> Any:
    import torch

    def step() -> None:
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())

    return step


def goals(found: dict[str, Any]) -> list[tuple[str, str, bool]]:
    """Return what is to be reached, what was measured, and whether that is enough."""
    ratios = {
        name: {size: row["gloo"] / row["stretto"] for size, row in rows.items()}
        for name, rows in found["us"].items()
    }
    means = {
        name: math.exp(statistics.fmean(map(math.log, rows.values())))
        for name, rows in ratios.items()
    }
    ordinary, registered, started = TABLES
    least = min(min(ratios[name].values()) for name in (ordinary, registered))
    least_started = min(ratios[started].values())
    tiny = found["us"][ordinary][SIZES[0]]["stretto"]
    ddp = found["ddp"]
    step = ddp["step_ms"]["stretto"] / ddp["step_ms"]["gloo"]
    first = ddp["first_ms"]["stretto"] / 1e3
    dead, took = found["dead_s"], found["import_ms"]
    return [
        ("all_reduce, geomean 9x", f"{means[ordinary]:.1f}x", means[ordinary] >= 9),
        ("registered, 12x", f"{means[registered]:.1f}x", means[registered] >= 12),
        ("no size under 3x", f"{least:.1f}x", least >= 3),
        ("started to 64 KB, each 5x", f"{least_started:.1f}x", least_started >= 5),
        ("dist.all_reduce of 8 B in 7 us", f"{tiny:.1f} us", tiny <= 7),
        ("a step of DDP, 0.8 of gloo's", f"{step:.2f}", step <= 0.8),
        ("the first step within 2 s", f"{first:.2f} s", first <= 2),
        ("a dead rank known in 2 s", f"{dead:.2f} s", dead <= 2),
        ("the import, 50 ms beyond torch's", f"{took:.0f} ms", took <= 50),
    ]


def tables(found: dict[str, Any]) -> str:
    """Return what was found, as text."""
    lines = [
        f"# torch.distributed, {found['ranks']} ranks on one host's CPU",
        "",
        f"`{found['command']}`, commit {found['commit']}, torch {found['torch']}.",
        f"Load {found['load']:.1f}. Medians in us, ABBA in the same processes.",
    ]
    for name, rows in found["us"].items():
        lines += ["", f"## {name}", "", "| bytes | gloo | stretto | ratio |"]
        lines += ["| --- | --- | --- | --- |"]
        ratios = []
        for size, row in rows.items():
            ratios.append(row["gloo"] / row["stretto"])
            lines.append(
                f"| {size} | {row['gloo']:.1f} | {row['stretto']:.1f} "
                f"| {ratios[-1]:.1f} |"
            )
        mean = math.exp(statistics.fmean(map(math.log, ratios)))
        lines.append(f"\nGeomean {mean:.1f}x, least {min(ratios):.1f}x")
    ddp = found["ddp"]
    ours, theirs = (ddp["step_ms"][k] for k in ("stretto", "gloo"))
    lines += [
        "",
        "## DDP, 10.5 million parameters",
        "",
        f"A step: gloo {theirs:.1f} ms, stretto {ours:.1f} ms: {ours / theirs:.2f} of",
        f"gloo's. The first: gloo {ddp['first_ms']['gloo']:.0f} ms,",
        f"stretto {ddp['first_ms']['stretto']:.0f} ms.",
        "",
        "## Goals",
        "",
        "| goal | measured | reached |",
        "| --- | --- | --- |",
    ]
    lines += [
        f"| {what} | {measured} | {'yes' if reached else 'no'} |"
        for what, measured, reached in found["goals"]
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--mortal"]:
        sys.exit(_mortal(int(sys.argv[2]), sys.argv[3]))
    main()
