"""What ranks do that weave, on CPUs or GPUs: any weave against one call after another.

`weave(comm, folder, seed, many)` is run by the tests with ranks on this host, and by
tests/device/weaves.py with ranks that have a GPU each.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from stretto.compiler.weaves import LOADS, FoundWeave, placed, prove
from stretto.errors import CallError, PlanError
from stretto.search.problems._weaving import CHANGES, begin, changed
from stretto.torch import woven
from stretto.torch.weaving import Woven, WovenLoad, load_of
from stretto.torch.weaving.memory import WovenMemory

SIZES = {"cpu": ((96, 48), (66, 32)), "cuda": ((3072, 512), (1026, 256))}
NEAR = {torch.float32: 1e-4, torch.bfloat16: 0.02}


def join(comm: Any, folder: str, device: str = "cpu") -> None:
    """Make the process group that the other way wants."""
    if device == "cuda":
        torch.cuda.set_device(comm.rank)
    dist.init_process_group(
        "nccl" if device == "cuda" else "gloo", init_method=f"file://{folder}/meet",
        rank=comm.rank, world_size=comm.num_ranks,
    )  # fmt: skip


def loaded(comm: Any, name: str, tokens: int, width: int, device: str) -> WovenLoad:
    """Return a load with tensors of its own."""
    n = comm.num_ranks
    load = load_of(name, comm.rank, n, -(-tokens // n) * n, width, device)
    load.draw()
    return load


def weaves(name: str, ranks: int, seed: int, many: int) -> list[str]:
    """Return random weaves that are proved, the same on every rank."""
    rng, shape, found = random.Random(f"{name} {seed}"), LOADS[name], []
    while len(found) < many:
        parts = shape.parts or rng.choice((1, 2, 3, 4, 7))
        weave = begin(shape, ranks, parts, each=rng.random() < 0.5)
        for _ in range(rng.randrange(12)):
            weave = changed(weave, weave, rng.choice(CHANGES), shape, rng) or weave
        try:
            prove(placed(weave, shape), shape, ranks, weave.parts)
        except PlanError:
            continue
        found.append(str(weave))
    return found


def weave(comm: Any, folder: str, device: str, seed: int, many: int) -> int:
    """Do random weaves of every load that so many ranks can; return how many."""
    join(comm, folder, device)
    count = 0
    for name in LOADS:
        if name == "kv_transfer" and comm.num_ranks != 2:
            continue
        for tokens, width in SIZES[device]:
            load = loaded(comm, name, tokens, width, device)
            memory = WovenMemory(load, comm)
            for text in weaves(name, comm.num_ranks, seed + tokens, many):
                right(comm, Woven(comm, text, load, memory), text, seed + count)
                count += 1
    return count


def right(comm: Any, call: Woven, text: str, seed: int) -> None:
    """Hold three calls, of other input each, against one call after the other."""
    load = call.load
    call.memory.poison()
    settle(load)
    comm.barrier()
    pairs = []
    for turn in range(3):  # one behind the other: nobody waits for the others
        load.fresh(seed * 8 + turn)
        pairs.append(call().clone())
    for turn, found in enumerate(pairs):
        load.fresh(seed * 8 + turn)
        wanted = load.plain(dist, None)
        settle(load)
        if not wanted.numel():
            continue
        gap = float((found.float() - wanted.float()).abs().max())
        most = float(wanted.float().abs().max())
        assert gap <= NEAR[load.dtype] * most, (
            f"{load.name}, call {turn}: {text}: {gap}"
        )


def settle(load: WovenLoad) -> None:
    """Wait for the GPU."""
    if load.device.type == "cuda":
        torch.cuda.synchronize()


FILE = """problem = "fused"
found = "{text}"
load = "{load}"
ranks = {ranks}
tokens = 64
width = 16
"""
GATHER = "parts=2 | m free; a push 1.0-1; m do 0.0-1; m came 1.0-1; m do 1.0-1"
SCATTER = "parts=2 | m free; m do 1.0-1; b send 1.0-1; m do 0.0-1; m sent 1.0-1"


def use_found(comm: Any, folder: str, device: str = "cpu") -> None:
    """Files of weaves, with tensors of ours, give what the operators give."""
    from stretto.torch import all_gather_matmul, matmul_reduce_scatter, named

    group, rank = named(comm), comm.rank
    if device == "cuda":
        torch.cuda.set_device(rank)
    gen = torch.Generator().manual_seed(rank)
    for load, text, plain in (
        ("gemm_all_gather", GATHER, all_gather_matmul),
        ("gemm_reduce_scatter", SCATTER, matmul_reduce_scatter),
    ):
        path = f"{folder}/{load}.toml"
        if rank == 0:
            said = FILE.format(text=text, load=load, ranks=2)
            Path(path).write_text(said, encoding="utf-8")
        comm.barrier()
        assert FoundWeave.read(path).text == text
        x = torch.randn(34, 12, generator=gen).to(device)
        w = torch.randn(12, 10, generator=gen).to(device)
        call = woven(path, group=group, x=x, w=w)
        for _ in range(3):
            x.copy_(torch.randn(34, 12, generator=gen))
            wanted = plain(x, w, group)
            torch.testing.assert_close(call(), wanted, rtol=1e-4, atol=1e-4)
        wide = torch.zeros(34, 24, device=device)[:, ::2]
        for tensors, why in (
            ({"x": x}, "want x, w"),
            ({"x": x, "w": None}, "w a NoneType; want tensors"),
            ({"x": x.cpu().numpy(), "w": w}, "x is a ndarray"),
            ({"x": wide, "w": w}, r"want \(rows, k\), contiguous"),
            ({"x": x[:, :9].contiguous(), "w": w}, r"x has shape \(34, 9\)"),
            ({"x": x, "w": w.double()}, "of one type"),
            ({"x": x[:0], "w": w}, "no elements"),
        ):
            with pytest.raises(CallError, match=why):
                woven(path, group=group, **tensors)
        mine = x if rank else x[:32]
        with pytest.raises(CallError, match="differ: rows of x"):
            woven(path, group=group, x=mine, w=w)
        if rank:
            with pytest.raises(CallError, match="want x, w"):
                woven(path, group=group, x=x)
        else:
            with pytest.raises(CallError, match="rank 1 has tensors that cannot"):
                woven(path, group=group, x=x, w=w)
        w.requires_grad_()
        assert not woven(path, group=group, x=x, w=w)().requires_grad
        w.requires_grad_(False)
