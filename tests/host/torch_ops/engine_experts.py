"""Experts as vLLM has them on a platform: its manager over our communicators.

The calls are those of vllm/model_executor/layers/fused_moe/prepare_finalize/
naive_dp_ep.py, and those that AgRsAll2AllManager makes of its groups (vLLM 0.33.0); the
engine's modules, groups, manager and sizes of a step stand in.
"""

import sys
import types

import torch
import torch.distributed as dist
from tests.host.experts import callers
from tests.host.torch_ops.checks import check
from tests.host.torch_ops.fusions import gloo

from stretto.errors import CallError, MissingExtraError
from stretto.torch.serving import vllm, vllm_experts


class Coordinator:
    """A group as vLLM's callers see it."""

    def __init__(self, rank, size, communicator=None):
        self.rank_in_group, self.world_size = rank, size
        self.device_communicator = communicator

    def __getattr__(self, name):
        return getattr(self.device_communicator, name)


class Gathering:
    """What vLLM's AgRsAll2AllManager calls, with sizes of a step (0.33.0)."""

    sizes, groups = (), {}

    def __init__(self, cpu_group, tcp_store_group=None):
        self.rank, self.world_size = cpu_group.rank(), cpu_group.size()

    def dispatch(self, hidden_states, topk_weights, topk_ids,
                 is_sequence_parallel=False, extra_tensors=None):  # fmt: skip
        more = [] if extra_tensors is None else extra_tensors
        group = self.groups["ep" if is_sequence_parallel else "dp"]
        every = group.all_gatherv(
            [hidden_states, topk_weights, topk_ids, *more], dim=0, sizes=self.sizes
        )
        return (*every[:3], *([] if extra_tensors is None else [every[3:]]))

    def dispatch_router_logits(self, hidden_states, router_logits,
                               is_sequence_parallel=False,
                               extra_tensors=None):  # fmt: skip
        group = self.groups["ep" if is_sequence_parallel else "dp"]
        every = group.all_gatherv(
            [hidden_states, router_logits], dim=0, sizes=self.sizes
        )
        return every[0], every[1]

    def combine(self, hidden_states, is_sequence_parallel=False):
        group = self.groups["ep" if is_sequence_parallel else "dp"]
        return group.reduce_scatterv(hidden_states, dim=0, sizes=self.sizes)

    def destroy(self):
        self.world_size = 0


def engine(sizes, backend, **groups):
    """Let vLLM be importable: with groups, sizes of a step, and a configuration."""
    Gathering.sizes, Gathering.groups = sizes, groups
    parallel = types.SimpleNamespace(all2all_backend=backend)
    config = types.SimpleNamespace(parallel_config=parallel)
    where = "vllm.distributed.device_communicators"
    has = {
        "vllm": {}, "vllm.distributed": {}, where: {},
        "vllm.config": {"get_current_vllm_config_or_none": lambda: config},
        f"{where}.all2all": {"AgRsAll2AllManager": Gathering},
    }  # fmt: skip
    for name, what in has.items():
        sys.modules[name] = types.ModuleType(name)
        vars(sys.modules[name]).update(what)


def layer(comm, x, ids, weights, extra):
    """Prepare and finalise: every rank has all tokens, and its own experts."""
    got = comm.dispatch(
        x, weights, ids, is_sequence_parallel=False, extra_tensors=extra
    )
    rows, got_weights, got_ids = got[:3]
    first = callers.EXPERTS // comm.world_size * comm.rank_in_group
    last = first + callers.EXPERTS // comm.world_size
    local = torch.where((got_ids >= first) & (got_ids < last), got_ids - first, -1)
    made = callers.of_rows(rows, local, got_weights, first)
    out = torch.empty_like(x)
    comm.combine_into_output(made, out, is_sequence_parallel=False)
    return out, got[3:]


@check
def experts_of_vllm(b):
    """A manager where vLLM wants one: the layer's result is that of one rank."""
    with torch.device("cpu"):  # also where numbers are made on GPUs else
        _experts_of_vllm(b)


def _experts_of_vllm(b):
    gloo(b)
    group = dist.new_group(backend="gloo")
    sizes = [3 + 2 * r for r in range(b.n)]
    dp = Coordinator(b.rank, b.n)
    try:
        engine(sizes, "allgather_reducescatter", dp=dp, ep=dp)
        other = vllm.StrettoDeviceCommunicator(group, unique_name="dp:0")
        b.true("none for others", other.all2all_manager is None)
        comm = vllm.StrettoDeviceCommunicator(group, unique_name="ep:0",
                                              use_all2all=True)  # fmt: skip
        dp.device_communicator = other
        manager = comm.all2all_manager
        b.true("vLLM's own manager", type(manager) is Gathering)
        made = torch.Generator("cpu").manual_seed(b.rank)
        x = torch.randn(sizes[b.rank], callers.HIDDEN, generator=made)
        ids = torch.rand(len(x), callers.EXPERTS, generator=made).argsort(1)[:, :3]
        weights = torch.rand(ids.shape, generator=made)
        want = callers.dense(x, ids, weights)
        out, rest = layer(comm, x, ids, weights, None)
        b.same("the layer", out, want, 1e-4)
        b.true("three results", rest == ())
        out, rest = layer(comm, x, ids, weights, [x[:, :4].contiguous()])
        b.same("with more", out, want, 1e-4)
        b.true("a list of one", len(rest) == 1 and rest[0][0].shape == (sum(sizes), 4))
        tokens, logits = comm.dispatch_router_logits(x, weights)
        b.true("logits", tokens.shape[0] == logits.shape[0] == sum(sizes))
        engine(sizes, "pplx", dp=dp, ep=dp)
        b.raises("a backend", CallError, "all2all_backend='pplx'",
                 vllm_experts.manager_for, group)  # fmt: skip
        engine(sizes, "deepep_low_latency", dp=dp, ep=dp)
        b.raises("not there", MissingExtraError, "DeepEPLLAll2AllManager",
                 vllm_experts.manager_for, group)  # fmt: skip
        comm.destroy()
        b.true("destroyed", manager.world_size == 0)
        other.destroy()
    finally:
        for name in [n for n in sys.modules if n.split(".")[0] == "vllm"]:
            del sys.modules[name]
