"""torch.distributed on stretto, on GPUs: every collective, streams, graphs, memory.

    PYTHONPATH=src python tests/device/torch_group.py --ranks 2 --out DIR

Ranks take the GPUs in turn, so that two or four may share one. What each collective
gives is checked by the very checks of tests/host/torch, with tensors on the GPU; then
come what only GPUs have, two training stacks, and what a call costs the host.
"""

# ruff: noqa: T201  (a program: it prints its report)

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import sys
import tempfile
import time
import traceback
from datetime import timedelta
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "src"), str(ROOT)]

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from tests.device.torch_times import host_times  # noqa: E402
from torch import nn  # noqa: E402

import stretto  # noqa: E402
import stretto.torch  # noqa: E402

CPU_ALONE = {
    "check_send_and_receive_with_tags_and_any_source",  # NCCL has neither
    "check_a_started_call_goes_on_while_nobody_waits",
    "check_a_barrier_waits_for_started_calls",  # events, not a queue
    "check_sparse_tensors_go_to_the_fallback",
    "check_a_profiler_sees_the_calls",
    "check_memory_of_the_group_is_zero_copy",
    "check_the_group_knows_its_names",
    "check_futures_complete_in_order_and_chain",
    "check_two_threads_may_use_one_group",  # a thread has its own current device
    "check_any_order_of_groups_in_two_threads",  # first calls meet on the host
}
GRACE_S = 20.0
"""After the checks' time: the last check, host times, the end."""
SLOW = 20_000_000
"""GPU cycles, about ten milliseconds: what must be waited for."""


def check_a_started_call_follows_the_callers_stream(rank: int, n: int) -> None:
    """It sees what slow kernels before it wrote; those after `wait` see its result."""
    x = torch.zeros(1 << 20)
    for turn in range(5):
        x.zero_()
        torch.cuda._sleep(SLOW)
        x += rank + turn
        work = dist.all_reduce(x, async_op=True)
        y = torch.full((1 << 20,), 3.0)  # meanwhile, on the caller's stream
        work.wait()
        y += x
        want = 3.0 + sum(r + turn for r in range(n))
        assert bool((y == want).all()), (turn, y[:3], want)


def check_memory_is_not_reused_before_a_call_has_ended(rank: int, n: int) -> None:
    """Inputs are dropped at once, and their size is asked for again at once."""
    outs, works = [], []
    for turn in range(40):
        torch.cuda._sleep(SLOW // 40)
        x = torch.full((100_003,), float(rank + turn))
        out = torch.empty(n * 100_003)
        works.append(dist.all_gather_into_tensor(out, x, async_op=True))
        del x
        torch.full((100_003,), -1.0)  # it would take the place of x
        outs.append(out)
    for turn, (work, out) in enumerate(zip(works, outs, strict=True)):
        work.wait()
        for r, part in enumerate(out.chunk(n)):
            assert bool((part == r + turn).all()), (turn, r)


def check_graphs(rank: int, n: int) -> None:
    for started in (False, True):
        x = torch.zeros(4096)
        y = torch.zeros(n * 4096)
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):  # everything is met and compiled before
            for _ in range(2):
                _both(x, y, started)
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        dist.barrier()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            x.add_(1.0)
            _both(x, y, started)
        for turn in range(4):
            x.fill_(rank + turn)
            graph.replay()
            want = sum(r + turn + 1 for r in range(n))
            assert bool((y == want).all()), (started, turn, y[:2], want)


def _both(x: Any, y: Any, started: bool) -> None:
    for call, args in ((dist.all_reduce, (x,)), (dist.all_gather_into_tensor, (y, x))):
        work = call(*args, async_op=started)
        if work is not None:
            work.wait()


def check_futures(rank: int, n: int) -> None:
    x = torch.full((1 << 20,), 1.0)
    torch.cuda._sleep(SLOW)
    future = dist.all_reduce(x, async_op=True).get_future()
    doubled = future.then(lambda f: f.value()[0] * 2)
    assert bool((doubled.wait() == 2.0 * n).all())
    assert bool((future.wait()[0] == n).all())


def check_transfers(rank: int, n: int) -> None:
    right, left = (rank + 1) % n, (rank - 1) % n
    for count in (1, 5000, 1 << 20):
        got = torch.zeros(count)
        ops = [
            dist.P2POp(dist.isend, torch.full((count,), float(rank)), right),
            dist.P2POp(dist.irecv, got, left),
        ]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        assert bool((got == left).all())
    x = torch.arange(10.0)
    if rank == 0:
        dist.send(x, 1)
    elif rank == 1:
        view = torch.zeros(10, 2)[:, 1]
        dist.recv(view, 0)
        assert torch.equal(x, view)


def check_a_barrier_waits_for_the_gpu(rank: int, n: int) -> None:
    torch.cuda._sleep(SLOW)
    end = torch.cuda.Event()
    end.record()
    dist.barrier()
    assert end.query()


def check_memory(rank: int, n: int) -> None:
    session = stretto.torch.communicator()._sessions["cuda"]
    x = stretto.torch.empty(1000, dtype=torch.bfloat16, device="cuda").fill_(1.0)
    assert session.offset_at(x.data_ptr(), x.nbytes) is not None
    dist.all_reduce(x)
    assert bool((x == n).all())
    y = torch.ones(1 << 20)
    if stretto.torch.register(y):
        assert session.offset_at(y.data_ptr(), y.nbytes) is not None
        dist.all_reduce(y)
        assert bool((y == n).all())
        stretto.torch.deregister(y)
    pool = stretto.torch.pool(64 << 20)
    with torch.cuda.use_mem_pool(pool):
        z = torch.ones(3 << 20)
    assert session.offset_at(z.data_ptr(), z.nbytes) is not None
    dist.all_reduce(z)
    assert bool((z == n).all())


def _network() -> Any:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 64))


def _batches(n: int, step: int) -> list[Any]:
    torch.manual_seed(50 + step)
    return [(torch.randn(8, 64), torch.randn(8, 64)) for _ in range(n)]


def _expected(n: int, steps: int) -> list[Any]:
    """Return the parameters that training on everybody's batches ends with."""
    model = _network()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(steps):
        for x, y in _batches(n, step):
            (nn.functional.mse_loss(model(x), y) / n).backward()
        optimizer.step()
        optimizer.zero_grad()
    return [p.detach() for p in model.parameters()]


def _train(model: Any, rank: int, n: int, steps: int) -> None:
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(steps):
        x, y = _batches(n, step)[rank]
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()


def check_ddp(rank: int, n: int) -> None:
    for placed in (False, True):
        device = torch.cuda.current_device()
        model = nn.parallel.DistributedDataParallel(
            _network(), device_ids=[device], bucket_cap_mb=0.05
        )
        if placed:
            stretto.torch.place_buffers(model)
        _train(model, rank, n, 4)
        for want, got in zip(_expected(n, 4), model.parameters(), strict=True):
            torch.testing.assert_close(got.detach(), want, rtol=1e-4, atol=1e-5)


def check_fsdp2(rank: int, n: int) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    pool = stretto.torch.pool(64 << 20)
    for placed in (False, True):
        mesh = init_device_mesh("cuda", (n,))
        model = _network()
        for layer in (model[0], model[2]):
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        if placed:
            stretto.torch.place_buffers(model, pool)
        _train(model, rank, n, 4)
        for want, got in zip(_expected(n, 4), model.parameters(), strict=True):
            torch.testing.assert_close(
                got.full_tensor().detach(), want, rtol=1e-4, atol=1e-5
            )


def check_compiled(rank: int, n: int) -> None:
    import torch.distributed._functional_collectives as funcol

    def layer(x: Any) -> Any:
        return funcol.all_reduce(x * 2, "sum", dist.group.WORLD) + 1

    x = torch.full((64, 64), float(rank))
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), layer(x))


def serve(comm: Any, folder: str, only: str, budget_s: float) -> dict[str, Any]:
    """Be a rank: run all checks, in groups that are made anew after a failure.

    What does not begin in time is left out, on all ranks alike; a rank that hangs says
    where, and ends.
    """
    from tests.device import torch_late, torch_streams
    from tests.host.torch import collective_checks, group_checks

    began = time.monotonic()
    faulthandler.dump_traceback_later(budget_s + GRACE_S, exit=True)
    device = torch.device("cuda", comm.rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    torch.set_default_device(device)
    own = sys.modules[__name__]
    modules = torch_late, collective_checks, group_checks, torch_streams, own
    checks = {
        name: call
        for module in modules
        for name, call in vars(module).items()
        if name.startswith("check_") and name not in CPU_ALONE and only in name
    }
    said: dict[str, Any] = {}
    groups, is_late = 0, False
    for name, call in checks.items():
        if is_late:
            said[name] = f"left out: {budget_s:g} s are over"
            continue
        if not dist.is_initialized():
            groups += 1
            dist.init_process_group(
                "stretto",
                init_method=f"file://{folder}/store{groups}",
                rank=comm.rank,
                world_size=comm.num_ranks,
                timeout=timedelta(seconds=30),
            )
        begin = time.monotonic()
        try:
            call(comm.rank, comm.num_ranks)
            torch.cuda.synchronize()
            text = ""
        except Exception:
            text = traceback.format_exc()
        said[name] = text
        if comm.rank == 0:
            word = "FAILED" if text else "right"
            print(f"{word:7} {time.monotonic() - begin:6.2f} s  {name}", flush=True)
        flags = _flags(text, time.monotonic() - began > budget_s)
        any_failed, is_late = comm.all_gather(flags).any(axis=0).tolist()
        if any_failed:
            dist.destroy_process_group()
    if dist.is_initialized():
        said["host time"] = host_times(dist.group.WORLD)
        dist.destroy_process_group()
    return said


def _flags(text: str, is_late: bool) -> Any:
    import numpy as np

    return np.array([bool(text), is_late])


def main() -> None:
    """Run the ranks; exit with 1 when a check failed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--only", default="", help="checks with this in their name")
    parser.add_argument("--time-budget", type=float, default=180.0, help="of checks")
    parser.add_argument("--out", default="")
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as folder:
        words = folder, options.only, options.time_budget
        found = stretto.spawn(
            serve,
            *words,
            num_ranks=options.ranks,
            deadline_s=options.time_budget + GRACE_S,
        )
    bad = {
        f"{name}, rank {rank}": text
        for rank, said in enumerate(found)
        for name, text in said.items()
        if text and name != "host time"
    }
    report = {
        "ranks": options.ranks,
        "gpus": torch.cuda.device_count(),
        "torch": torch.__version__,
        "checks": len(found[0]),
        "failed": bad,
        "host_time_us": found[0].get("host time"),
    }
    print(json.dumps(report, indent=1))
    if times := report["host_time_us"]:
        goal = 8 if report["gpus"] == 1 else 10
        took = times["stretto all_reduce"]["median"]
        print(f"dist.all_reduce of 1 KB: {took} us of the host; goal at most {goal}")
    if options.out:
        Path(options.out).mkdir(parents=True, exist_ok=True)
        path = Path(options.out) / f"torch_group_x{options.ranks}.json"
        path.write_text(json.dumps(report, indent=1) + "\n")
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
