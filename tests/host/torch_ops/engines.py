"""What serving engines' interfaces have to do, on a group of Gloo's that they made."""

import json
from pathlib import Path

import torch
import torch.distributed as dist
from tests.host.torch_ops.checks import check
from tests.host.torch_ops.fusions import gloo

from stretto.torch.serving import sglang, vllm, vllm_engine

RECORDED = Path(__file__).parents[2] / "pure" / "torch_ops" / "signatures.json"


def attributes(name):
    """Return the recorded attributes of a class."""
    classes = json.loads(RECORDED.read_text())["classes"]
    return next(c["attributes"] for path, c in classes.items() if path.endswith(name))


@check
def engine_of_vllm(b):
    """Its device communicator: results are those of dist, each a new tensor."""
    gloo(b)
    group = dist.new_group(backend="gloo")
    comm = vllm.StrettoDeviceCommunicator(
        group, b.device, unique_name="tp:0", something_new=1
    )
    for name in attributes("StrettoDeviceCommunicator"):
        b.true(f"attribute {name}", hasattr(comm, name))
    xs = b.draw(b.n * b.n, 3)
    x, kept = xs[b.rank], xs[b.rank].clone()
    total = torch.stack(xs).sum(0)
    b.same("all_reduce", comm.all_reduce(x), total)
    b.same("its input stays", x, kept)
    b.same("all_gather", comm.all_gather(x), torch.cat(xs, -1))
    b.same("all_gather 0", comm.all_gather(x, 0), torch.cat(xs))
    b.same("reduce_scatter", comm.reduce_scatter(x, 0), total.chunk(b.n)[b.rank])
    turned = comm.reduce_scatter(x.t(), -1)
    b.same("reduce_scatter -1", turned, total.t().chunk(b.n, 1)[b.rank])
    sizes = [r + 1 for r in range(b.n)]
    mine = x[: sizes[b.rank]]
    rows = torch.cat([y[:s] for y, s in zip(xs, sizes, strict=True)])
    b.same("all_gatherv", comm.all_gatherv(mine, sizes=sizes), rows)
    both = comm.all_gatherv([mine, mine * 2], sizes=sizes)
    b.same("of a list", both[1], rows * 2)
    cut = total[: sum(sizes)].split(sizes)[b.rank]
    part = comm.reduce_scatterv(x[: sum(sizes)], 0, sizes)
    b.same("reduce_scatterv", part, cut)
    part = comm.reduce_scatterv(x[: sum(sizes)].t(), -1, sizes)
    b.same("reduce_scatterv -1", part, cut.t())
    whole = comm.gather(x, b.n - 1, -1)
    if b.rank == b.n - 1:
        b.same("gather", whole, torch.cat(xs, -1))
    else:
        b.true("gather elsewhere", whole is None)
    b.same("broadcast", comm.broadcast(x.clone(), 1), xs[1])
    if b.rank == 0:
        comm.send(x)
    elif b.rank == 1:
        b.same("recv", comm.recv(x.shape, x.dtype), xs[0])
    b.true("dispatch", comm.dispatch(x, kept) == (x, kept))
    extra = [kept]
    whole = comm.dispatch(x, kept, x, False, extra)
    b.true("more in its place", len(whole) == 4 and whole[3] is extra)
    b.true("combine", comm.combine(x) is x)
    other = vllm.CustomAllreduce(group, torch.device("cpu"))
    b.true("one communicator for a group", other._name == comm._name)
    comm.destroy()
    whole = torch.cat([total] * 4)
    b.same("what is shared stays", other.custom_all_reduce(whole), b.n * whole)
    other.close()
    b.true("closed", other.disabled)
    comm.destroy()


@check
def custom_all_reduces(b):
    """Both engines' all_reduces take what they say that they take, and are right."""
    gloo(b)
    group = dist.new_group(backend="gloo")
    for make in (vllm.CustomAllreduce, sglang.CustomAllReduceV2):
        custom = make(group, torch.device("cpu"))
        for name in attributes(make.__name__):
            b.true(f"{make.__name__}.{name}", hasattr(custom, name))
        xs = b.draw(8, 4, dtype=torch.bfloat16)
        x, kept = xs[b.rank], xs[b.rank].clone()
        b.true("takes it", custom.should_custom_ar(x))
        b.true("odd bytes", not custom.should_custom_ar(x.view(-1)[:5]))
        b.true("strided", not custom.should_custom_ar(x[:, :2]))
        b.true("no size named", custom.max_size == 8 << 20)  # nobody has looked here
        b.true("large", not custom.should_custom_ar(x.new_empty(1 << 23)))
        small = make(group, torch.device("cpu"), x.nbytes - 16)
        b.true("the engine's size", not small.should_custom_ar(x))
        small.close()
        with custom.capture():
            got = custom.custom_all_reduce(x)
        b.same("sum", got, torch.stack(xs).float().sum(0).bfloat16(), 0.02)
        b.same("out of place", x, kept)
        custom.close()
        b.true("closed", not custom.should_custom_ar(x))


@check
def communicator_of_sglang(b):
    """Its proposed interface: modes, states, and every collective."""
    gloo(b)
    group = dist.new_group(backend="gloo")
    comm = sglang.StrettoCommunicator(b.n, group=group)
    xs = b.draw(2 * b.n, 4)
    x, total = xs[b.rank], torch.stack(xs).sum(0)
    b.true("both", comm.get_all_reduce_mode(x) is sglang.AllReduceMode.BOTH)
    b.true("odd", comm.get_all_reduce_mode(x.view(-1)[:3]) is None)
    b.same("out of place", comm.all_reduce(x, inplace=False), total)
    y = x.clone()
    b.true("in place", comm.all_reduce(y, inplace=True) is y)
    b.same("its sum", y, total)
    out = torch.empty(2 * b.n * b.n, 4)
    b.true("into", comm.all_gather_into_tensor(x, out=out) is out)
    b.same("gathered", out, torch.cat(xs))
    parts = comm.all_gather(x, out_list=[torch.empty_like(x) for _ in xs])
    b.same("list", torch.stack(parts), torch.stack(xs))
    b.same("part", comm.reduce_scatter_tensor(x), total.chunk(b.n)[b.rank])
    b.same(
        "of a list", comm.reduce_scatter(list(x.chunk(b.n))), total.chunk(b.n)[b.rank]
    )
    whole = comm.gather(x, 0, dim=1)
    b.true("gather", (whole is None) == (b.rank != 0))
    if whole is not None:
        b.same("gather", whole, torch.cat(xs, 1))
    with comm.change_state(False):
        b.raises("disabled", RuntimeError, "disabled", comm.all_reduce, x)
    b.true("enabled again", not comm.disabled)
    comm.close()


class Cuda:
    """What stands for vLLM's communicator: it says that it was asked."""

    def __init__(self, cpu_group, device=None, device_group=None, unique_name=""):
        self.cpu_group, self.device = cpu_group, torch.device(device)
        self.unique_name = unique_name
        self.world_size = dist.get_world_size(cpu_group)
        self.rank_in_group = dist.get_rank(cpu_group)
        self.ended = 0

    def all_reduce(self, input_):
        return "theirs"

    all_gather = reduce_scatter = all_gatherv = reduce_scatterv = lambda self, *given: (
        "theirs"
    )

    def destroy(self):
        self.ended += 1


@check
def verbs_over_vllm(b):
    """Our verbs before vLLM's own class: ours where they can be, else its."""
    gloo(b)
    group = dist.new_group(backend="gloo")
    made = type("Both", (vllm_engine.OverCuda, Cuda), {})
    cpu = made(group, "cpu", unique_name="tp:0")
    b.true("no GPU", cpu.all_reduce(torch.ones(4)) == "theirs")
    real, vllm_engine._ours = vllm_engine._ours, lambda group, device: True
    try:
        comm = made(group, "cpu", unique_name="tp:0")
    finally:
        vllm_engine._ours = real
    xs = b.draw(b.n * b.n, 3)
    x, kept, total = xs[b.rank], xs[b.rank].clone(), torch.stack(xs).sum(0)
    b.same("all_reduce", comm.all_reduce(x), total)
    b.same("strided", comm.all_reduce(x.t()), total.t())
    b.same("its input stays", x, kept)
    b.true("complex", comm.all_reduce(x.cfloat()) == "theirs")
    b.true("nothing", comm.all_reduce(x[:0]) == "theirs")
    b.same("all_gather", comm.all_gather(x), torch.cat(xs, -1))
    b.same("custom_all_gather", comm.custom_all_gather(x), torch.cat(xs))
    part = total.chunk(b.n)[b.rank]
    b.same("reduce_scatter", comm.reduce_scatter(x, 0), part)
    b.same("custom_reduce_scatter", comm.custom_reduce_scatter(x), part)
    b.true("no whole rows", comm.custom_reduce_scatter(x[:1]) is None)
    b.true("no whole parts", comm.reduce_scatter(x[:1], 0) == "theirs")
    sizes = [r + 1 for r in range(b.n)]
    mine = x[: sizes[b.rank]]
    rows = torch.cat([y[:s] for y, s in zip(xs, sizes, strict=True)])
    b.same("all_gatherv", comm.all_gatherv(mine, 0, sizes), rows)
    b.same("of a list", comm.all_gatherv([mine, mine * 2], 0, sizes)[1], rows * 2)
    some = [0, *sizes[1:]]
    b.true("no rows", comm.all_gatherv(x[: some[b.rank]], 0, some) == "theirs")
    cut = total[: sum(sizes)].split(sizes)[b.rank]
    b.same("reduce_scatterv", comm.reduce_scatterv(x[: sum(sizes)], 0, sizes), cut)
    comm.destroy()
    b.true("both ended", comm.ended == 1)
    b.true("theirs again", comm.all_reduce(x) == "theirs")
