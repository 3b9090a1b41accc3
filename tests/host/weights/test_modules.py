"""Modules of PyTorch as sources and replicas: parameters, buffers, shards."""

import numpy as np
import pytest
from tests.pure.weights.stand_ins import Mesh, Replicate, Shard, Sharded, _StridedShard

from stretto.errors import LayoutError
from stretto.weights import Cat, Float8
from stretto.weights.tensors import named_tensors, owned

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.host, pytest.mark.timeout(120)]
WAIT = 30


class Tied(torch.nn.Module):
    """A tied head, a buffer that changes, and one that is not persistent."""

    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(12, 8)
        self.head = torch.nn.Linear(8, 12, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("seen", torch.zeros(4))
        self.register_buffer("rope", torch.ones(6), persistent=False)


@pytest.mark.parametrize("copies", [1, 2])
def test_a_module_follows_a_module(engines, copies):
    """All of it: tied heads on both ends, buffers mutable and not persistent."""
    ours, theirs = Tied(), Tied()
    source = engines.source(ours)
    policy = engines.replica(theirs, source.engine, copies=copies)
    for value in (1.0, 2.0, 3.0):
        with torch.no_grad():
            ours.embed.weight.add_(value)
            ours.seen.add_(value)
            ours.rope.mul_(value)
        source.push(wait=True, timeout=WAIT)
        with policy.step():
            for name, tensor in named_tensors(ours):
                there = dict(named_tensors(theirs))[name]

                assert torch.equal(tensor, there), name


def test_wrappers_leave_no_trace_in_names():
    """DDP, torch.compile and FSDP put words before names."""
    inner = Tied()
    ddp = torch.nn.Module()
    ddp.module = torch.nn.Module()
    ddp.module._orig_mod = inner

    assert [n for n, _ in named_tensors(inner)] == [n for n, _ in named_tensors(ddp)]


def test_half_precision_and_fp8_of_a_module(engines):
    """Cast at the source; a fused matrix here, and scales beside the rest."""
    ours = {n: torch.randn(16, 8, dtype=torch.bfloat16) for n in ("q", "k", "v", "o")}
    source = engines.source(ours, cast={"o": Float8(block=(8, 8)), "*": "float16"})
    into = {
        "qkv": torch.zeros(48, 8, dtype=torch.float16),
        "o": torch.zeros(16, 8, dtype=torch.float8_e4m3fn),
        "o_scale_inv": torch.zeros(2, 1),
    }
    names = {"qkv": Cat("q", "k", "v")}
    policy = engines.replica(into, source.engine, names=names)
    source.push(wait=True, timeout=WAIT)
    with policy.step():
        held = policy.tensors
        wide = held["o"].float() * held["o_scale_inv"].repeat_interleave(8, 0)

    fused = torch.cat([ours[n] for n in "qkv"]).half()
    assert torch.equal(fused, held["qkv"])
    assert torch.allclose(ours["o"].float(), wide, rtol=0.07, atol=0.02)


@pytest.mark.parametrize("size", [1, 7, 16, 23])
def test_shards_lie_where_pytorch_puts_them(size):
    """Uneven ones, ranks with nothing, and FSDP over tensor parallelism."""
    value = torch.arange(size * 3.0).reshape(size, 3)
    for rank in range(4):
        mesh = Mesh((4,), (rank,))
        some = torch.chunk(value, 4)
        local = some[rank] if rank < len(some) else value[:0]
        found = owned({"w": Sharded(value, local, mesh, [Shard(0)]), "x": value})
        held = {own.name: own.held for own in found}
        if not local.numel():
            assert "w" not in held
            continue
        (start, stop), _ = held["w"].box

        assert torch.equal(local, value[start:stop])


def test_fsdp_over_tensor_parallelism_cuts_the_later_axis_first():
    """A strided shard; and what is summed up only in part is refused."""
    value = torch.arange(24.0).reshape(8, 3)
    for dp in range(2):
        for tp in range(2):
            mesh = Mesh((2, 2), (dp, tp))
            local = value.chunk(2)[tp].chunk(2)[dp]
            places = [_StridedShard(0), Shard(0)]
            (own,) = owned({"w": Sharded(value, local, mesh, places)})
            (start, stop), _ = own.held.box

            assert np.array_equal(local.numpy(), value[start:stop].numpy())
    partial = type("Partial", (Replicate,), {"is_replicate": lambda self: False})()
    with pytest.raises(LayoutError, match="sums that are not added up"):
        owned({"w": Sharded(value, value, Mesh((2,), (0,)), [partial])})


def test_real_dtensors_are_read_alike():
    """One rank of a real mesh, as FSDP2 leaves it."""
    tensor = pytest.importorskip("torch.distributed.tensor")
    dist = torch.distributed
    if not dist.is_available() or not dist.is_gloo_available():
        pytest.skip("this PyTorch has no gloo")
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        mesh = dist.init_device_mesh("cpu", (1,))
        value = torch.randn(6, 4)
        made = tensor.distribute_tensor(value, mesh, [tensor.Shard(0)])
        module = torch.nn.Linear(4, 6)
        dist.fsdp.fully_shard(module, mesh=mesh)
        (own,) = owned({"w": made})
        held = {one.name: one.held for one in owned(module)}
    finally:
        dist.destroy_process_group()

    assert ((0, 6), (0, 4)) == own.held.box
    assert np.array_equal(value.numpy(), own.array)
    assert (6, 4) == held["weight"].shape
