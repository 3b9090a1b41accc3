"""Training stacks of PyTorch on a group of stretto: losses as on Gloo, step by step."""

from __future__ import annotations

import copy
import os
import tempfile
import warnings
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import stretto.torch

STEPS = 3
_cached: dict[str, object] = {}


def gloo():
    """Return a group of all ranks on Gloo, to compare with."""
    found = _cached.get("gloo")
    if found is None or found not in dist.distributed_c10d._world.pg_map:
        found = _cached["gloo"] = dist.new_group(backend="gloo")
    return found


def network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(16, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 64), nn.Tanh(),
        nn.Linear(64, 4),
    )  # fmt: skip


def batch(rank, step, rows=8):
    generator = torch.Generator().manual_seed(100 * step + rank)
    return (
        torch.randn(rows, 16, generator=generator),
        torch.randn(rows, 4, generator=generator),
    )


def steps(model, rank, *, optimizer=None, sync=None, count=STEPS):
    """Train, and return the losses."""
    optimizer = optimizer or torch.optim.SGD(model.parameters(), 0.05)
    losses = []
    for step in range(count):
        context = nullcontext() if sync is None or sync(step) else model.no_sync()
        with context:
            x, y = batch(rank, step)
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
        if sync is None or sync(step):
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def alike(ours, gloos, *, rtol=1e-5):
    assert len(gloos) == len(ours)
    for a, b in zip(gloos, ours, strict=True):
        assert abs(a - b) <= rtol * max(1.0, abs(a)), (gloos, ours)


def ddp(group, rank, **options):
    model = DistributedDataParallel(network(), process_group=group, **options)
    return steps(model, rank)


def check_ddp_with_few_and_many_buckets(rank, n):
    alike(ddp(None, rank), ddp(gloo(), rank))
    alike(ddp(None, rank, bucket_cap_mb=0.001), ddp(gloo(), rank))


def check_ddp_with_a_static_graph_and_gradients_as_views(rank, n):
    options = {"static_graph": True, "gradient_as_bucket_view": True}
    alike(ddp(None, rank, **options), ddp(gloo(), rank, **options))


def check_ddp_that_accumulates_without_sync(rank, n):
    def losses(group):
        model = DistributedDataParallel(network(), process_group=group)
        return steps(model, rank, sync=lambda step: step % 2 == 1, count=4)

    alike(losses(None), losses(gloo()))


def check_ddp_with_unused_parameters(rank, n):
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.net, self.idle = network(), nn.Linear(3, 3)

        def forward(self, x):
            return self.net(x)

    def losses(group):
        model = DistributedDataParallel(
            Odd(), process_group=group, find_unused_parameters=True
        )
        return steps(model, rank)

    alike(losses(None), losses(gloo()))


def check_ddp_with_hooks(rank, n):
    from torch.distributed.algorithms.ddp_comm_hooks import (
        default_hooks,
        powerSGD_hook,
    )

    def losses(group, hook, state):
        model = DistributedDataParallel(network(), process_group=group)
        model.register_comm_hook(state(group), hook)
        return steps(model, rank, count=5)

    def power(group):
        return powerSGD_hook.PowerSGDState(
            process_group=group, matrix_approximation_rank=1, start_powerSGD_iter=2
        )

    for hook, state in (
        (default_hooks.allreduce_hook, lambda group: group),
        (default_hooks.fp16_compress_hook, lambda group: group),
        (powerSGD_hook.powerSGD_hook, power),
    ):
        tolerance = 1e-3 if hook is not default_hooks.allreduce_hook else 1e-5
        ours = losses(None, hook, lambda g, s=state: s(g or dist.group.WORLD))
        alike(ours, losses(gloo(), hook, state), rtol=tolerance)


def check_ddp_that_joins_with_uneven_inputs(rank, n):
    def losses(group):
        model = DistributedDataParallel(network(), process_group=group)
        with model.join():
            return steps(model, rank, count=2 + rank)

    alike(losses(None), losses(gloo()))


def check_zero_shards_the_optimizer(rank, n):
    from torch.distributed.optim import ZeroRedundancyOptimizer

    def losses(group):
        model = DistributedDataParallel(network(), process_group=group)
        optimizer = ZeroRedundancyOptimizer(
            model.parameters(), torch.optim.Adam, process_group=group, lr=0.01
        )
        return steps(model, rank, optimizer=optimizer)

    alike(losses(None), losses(gloo()))


def mesh_of(group, n, *names):
    from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

    if group is None:
        return init_device_mesh("cpu", (n,), mesh_dim_names=names)
    return DeviceMesh.from_group(group, "cpu", mesh_dim_names=names)


def plain(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 4)
    )


def sharded(mesh):
    from torch.distributed.fsdp import fully_shard

    model = plain()
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def check_fsdp2(rank, n):
    ours = steps(sharded(mesh_of(None, n, "dp")), rank)
    alike(ours, steps(sharded(mesh_of(gloo(), n, "dp")), rank))
    assert ours[0] > ours[-1] or ours[0] != ours[1]


def check_fsdp1(rank, n):
    """It resizes storages, which calls must not lock."""
    from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy

    def losses(group, **options):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            model = FullyShardedDataParallel(
                plain(), process_group=group, device_id=torch.device("cpu"), **options
            )
            return steps(model, rank)

    for strategy in (ShardingStrategy.FULL_SHARD, ShardingStrategy.SHARD_GRAD_OP):
        for original in (False, True):
            options = {"sharding_strategy": strategy, "use_orig_params": original}
            alike(losses(dist.group.WORLD, **options), losses(gloo(), **options))


def check_buffers_are_placed_by_one_call(rank, n):
    model = DistributedDataParallel(network(), process_group=None)
    assert 1 == stretto.torch.place_buffers(model)
    alike(steps(model, rank), ddp(gloo(), rank))
    model = sharded(mesh_of(None, n, "dp"))
    assert 4 == stretto.torch.place_buffers(model, pool=object())
    alike(steps(model, rank), steps(sharded(mesh_of(gloo(), n, "dp")), rank))


def check_hsdp(rank, n):
    """Replicas of shards: a mesh of two axes, in two sizes."""
    from torch.distributed.device_mesh import init_device_mesh

    shapes = [(1, n), (n, 1)] + ([(2, n // 2)] if n % 2 == 0 and n > 2 else [])
    want = steps(DistributedDataParallel(plain(), process_group=gloo()), rank)
    for shape in shapes:
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=("replicas", "shards"))
        alike(steps(sharded(mesh), rank), want, rtol=1e-4)


def check_tensor_and_sequence_parallel(rank, n):
    from torch.distributed.tensor import Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        SequenceParallel,
        loss_parallel,
        parallelize_module,
    )

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(1)
            self.norm, self.up = nn.LayerNorm(16), nn.Linear(16, 8 * n)
            self.down, self.head = nn.Linear(8 * n, 16), nn.Linear(16, 4 * n)

        def forward(self, x):
            return self.head(self.down(torch.relu(self.up(self.norm(x)))))

    whole = Block()
    model = parallelize_module(
        copy.deepcopy(whole),
        mesh_of(None, n, "tp"),
        {
            "norm": SequenceParallel(),
            "up": ColwiseParallel(input_layouts=Shard(1)),
            "down": RowwiseParallel(),
            "head": ColwiseParallel(output_layouts=Shard(-1), use_local_output=False),
        },
    )
    torch.manual_seed(5)
    x, y = torch.randn(2, 4 * n, 16), torch.randint(4 * n, (2 * 4 * n,))
    pairs = [torch.optim.SGD(m.parameters(), 0.1) for m in (whole, model)]
    for _ in range(STEPS):
        want = nn.functional.cross_entropy(whole(x).flatten(0, 1), y)
        want.backward()
        with loss_parallel():
            part = x.chunk(n, 1)[rank]
            got = nn.functional.cross_entropy(model(part).flatten(0, 1), y)
            got.backward()
        alike([got.full_tensor().item()], [want.item()])
        for optimizer in pairs:
            optimizer.step()
            optimizer.zero_grad()


def check_dtensors_are_redistributed(rank, n):
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = mesh_of(None, n, "x")
    whole = torch.arange(float(n * (n + 1) * 4)).reshape(n + 1, n * 4)
    for there in (Shard(0), Shard(1)):  # the first is uneven
        one = distribute_tensor(whole, mesh, [there])
        assert torch.equal(whole, one.full_tensor())
        for back in (Shard(0), Shard(1), Replicate()):
            assert torch.equal(whole, one.redistribute(mesh, [back]).full_tensor())


def check_context_parallel(rank, n):
    """Ring attention on parts of a sequence gives the attention of the whole.

    On CPUs PyTorch does not dispatch to its ring; its loop is called with an operator.
    """
    from torch.distributed.tensor.experimental import _attention as rings

    def attend(q, k, v, is_causal):
        flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        return flash(q, k, v, 0.0, is_causal)

    options, _ = rings._cp_options, torch.manual_seed(3)
    whole = [torch.randn(1, 2, 8 * n, 8) for _ in range(3)]
    want = nn.functional.scaled_dot_product_attention(*whole, is_causal=True)
    parts = [x.chunk(n, 2)[rank].contiguous() for x in whole]
    usual, options.enable_load_balance = options.enable_load_balance, False
    try:
        for method in ("allgather", "alltoall"):
            rings.set_rotate_method(method)
            got, *_ = rings._templated_ring_attention(
                dist.group.WORLD, 2, attend, *parts, is_causal=True
            )
            torch.testing.assert_close(got, want.chunk(n, 2)[rank])
    finally:
        options.enable_load_balance = usual


def check_pipelines(rank, n):
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

    if torch.__version__.startswith("2.9."):
        return  # there Gloo itself ends the process in these schedules

    def losses(kind, group):
        torch.manual_seed(7)
        layers = [nn.Sequential(nn.Linear(16, 16), nn.Tanh()) for _ in range(n)]
        stage = PipelineStage(layers[rank], rank, n, torch.device("cpu"), group=group)
        schedule = kind(stage, 2 * n, loss_fn=nn.functional.mse_loss)
        optimizer, found = torch.optim.SGD(layers[rank].parameters(), 0.1), []
        for step in range(STEPS):
            x, _ = batch(0, step, rows=4 * n)
            said: list[torch.Tensor] = []
            if rank == 0:
                schedule.step(x)
            elif rank == n - 1:
                schedule.step(target=x, losses=said)
            else:
                schedule.step()
            optimizer.step()
            optimizer.zero_grad()
            found += [loss.item() for loss in said]
        return found

    for kind in (ScheduleGPipe, Schedule1F1B):
        alike(losses(kind, None), losses(kind, gloo()))


def check_checkpoints_at_once_and_beside(rank, n):
    import torch.distributed.checkpoint as dcp

    folder = [tempfile.mkdtemp() if rank == 0 else None]
    dist.broadcast_object_list(folder, 0)
    model = sharded(mesh_of(None, n, "dp"))
    steps(model, rank)
    want = {k: v.full_tensor() for k, v in model.state_dict().items()}
    for name, save in (("now", dcp.save), ("beside", dcp.async_save)):
        path = os.path.join(folder[0], name)  # noqa: PTH118
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            future = save(model.state_dict(), checkpoint_id=path)
            if name == "beside":
                future.result()
        dist.barrier()
        other = sharded(mesh_of(None, n, "dp"))
        state = other.state_dict()
        dcp.load(state, checkpoint_id=path)
        for key, tensor in state.items():
            assert torch.equal(want[key], tensor.full_tensor())


def check_many_groups_are_made_and_destroyed(rank, n):
    for k in range(5):
        groups = [dist.new_group([0, 1]), dist.new_group([0])]
        x = torch.ones(2) * k
        if rank < 2:
            dist.all_reduce(x, group=groups[0])
            assert [2.0 * k] * 2 == x.tolist()
        for group in groups:
            dist.destroy_process_group(group)
