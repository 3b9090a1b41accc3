"""The communicator on GPUs: every verb on tensors, against calls on the CPU."""

import subprocess
import sys

import pytest

import stretto


def gpus():
    """Return how many GPUs there are, without loading anything."""
    try:
        done = subprocess.run(
            ("nvidia-smi", "-L"), capture_output=True, text=True, check=False
        )
    except OSError:
        return 0
    return done.stdout.count("GPU ")


def verbs(comm):
    """Return what differs between GPU tensors and CPU tensors, and times."""
    import torch

    torch.cuda.set_device(comm.rank)
    wrong = []
    n, r = comm.num_ranks, comm.rank

    def both(name, call, *shapes, dtype=torch.float32):
        gen = torch.Generator().manual_seed(7 * r + len(name))
        cpu = [torch.randint(0, 9, s, generator=gen).to(dtype) for s in shapes]
        gpu = [t.cuda() for t in cpu]
        for _ in range(3):  # recognised the second time; inputs are the same each time
            want, got = call(*[t.clone() for t in cpu]), call(*[t.clone() for t in gpu])
        torch.cuda.synchronize()
        comm.check()
        if (want is None) != (got is None):
            wrong.append(f"{name}: {want} on the CPU, {got} on the GPU")
        elif want is not None and not torch.equal(want, got.cpu()):
            wrong.append(f"{name}: {want.flatten()[:4]} for {got.flatten()[:4]}")

    for size in (5, 1000, 1 << 18):
        shape = (n * size,)
        for dtype in (torch.float32, torch.bfloat16, torch.int64):
            name = f"{size} {dtype}"
            both(f"all_reduce {name}", comm.all_reduce, shape, dtype=dtype)
            both(f"all_gather {name}", comm.all_gather, shape, dtype=dtype)
        both(f"reduce_scatter {size}", comm.reduce_scatter, shape)
        both(f"all_to_all {size}", comm.all_to_all, shape)
        both(f"broadcast {size}", lambda x: comm.broadcast(x, root=n - 1), shape)
        both(f"reduce {size}", lambda x: comm.reduce(x, root=n - 1), shape)
        both(f"gather {size}", lambda x: comm.gather(x, root=n - 1), shape)
        both(f"permute {size}", lambda x: comm.permute(x, ((0, n - 1),)), shape)
        both("all_gather_v", lambda x: comm.all_gather_v(x[: 3 + r]), shape)
    room = torch.from_dlpack(comm.empty(1 << 20, "float32", device="cuda"))
    room.fill_(r + 1)
    comm.all_reduce(room)
    torch.cuda.synchronize()
    if room[-1] != n * (n + 1) / 2:
        wrong.append(f"registered: {room[-1]}")
    half = comm.split(r % 2)
    x = torch.full((100,), float(r), device="cuda")
    half.all_reduce(x)
    torch.cuda.synchronize()
    if x[0] != sum(q for q in range(n) if q % 2 == r % 2):
        wrong.append(f"split: {x[0]}")
    half.close()
    if r < 2:
        y = torch.full((100,), float(r), device="cuda")
        comm.send(y, to=1) if r == 0 else comm.recv(y, source=0)
        torch.cuda.synchronize()
        if y[0] != 0:
            wrong.append(f"send: {y[0]}")
    return wrong


@pytest.mark.gpus(2)
@pytest.mark.skipif(gpus() < 2, reason="needs two GPUs")
def test_gpu_tensors_give_what_cpu_tensors_give():
    """Every verb; integers in every type, so that rounding says nothing."""
    n = min(4, gpus())

    assert [[]] * n == stretto.spawn(verbs, num_ranks=n)


if __name__ == "__main__":
    sys.stdout.write(f"{stretto.spawn(verbs, num_ranks=min(4, gpus()))}\n")
