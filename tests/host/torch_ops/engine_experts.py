"""Experts as vLLM has them on a platform: its `all2all_manager`, called as it does.

The calls are those of vllm/model_executor/layers/fused_moe/prepare_finalize/
naive_dp_ep.py and of AgRsAll2AllManager's groups (vLLM 0.33.0); the engine's own
modules, groups and sizes of a step stand in.
"""

import sys
import types

import torch
import torch.distributed as dist
from tests.host.experts import callers
from tests.host.torch_ops.checks import check
from tests.host.torch_ops.fusions import gloo

from stretto.errors import CallError
from stretto.torch.serving import vllm, vllm_experts


class Coordinator:
    """A group as vLLM's callers see it."""

    def __init__(self, rank, size, communicator=None):
        self.rank_in_group, self.world_size = rank, size
        self.device_communicator = communicator

    def __getattr__(self, name):
        return getattr(self.device_communicator, name)


def engine(sizes, backend, **groups):
    """Let vLLM be importable: with groups, sizes of a step, and a configuration."""
    parallel = types.SimpleNamespace(all2all_backend=backend)
    config = types.SimpleNamespace(parallel_config=parallel)
    about = types.SimpleNamespace(get_chunk_sizes_across_dp_rank=lambda: sizes)
    context = types.SimpleNamespace(dp_metadata=about)
    has = {
        "vllm": {},
        "vllm.config": {"get_current_vllm_config_or_none": lambda: config},
        "vllm.forward_context": {"get_forward_context": lambda: context},
        "vllm.distributed": {
            f"get_{name}_group": lambda one=one: one for name, one in groups.items()
        },
    }
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
    gloo(b)
    group = dist.new_group(backend="gloo")
    alone = Coordinator(0, 1)
    sizes = [3 + 2 * r for r in range(b.n)]
    dp = Coordinator(b.rank, b.n)
    try:
        engine(sizes, "allgather_reducescatter", dp=dp, tp=alone, ep=dp, pcp=alone)
        other = vllm.StrettoDeviceCommunicator(group, unique_name="dp:0")
        b.true("none for others", other.all2all_manager is None)
        comm = vllm.StrettoDeviceCommunicator(group, unique_name="ep:0",
                                              use_all2all=True)  # fmt: skip
        dp.device_communicator = other
        manager = comm.all2all_manager
        b.true("a manager", isinstance(manager, vllm_experts.GatheringManager))
        b.true("of this host", not manager.internode)
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
        b.raises("sizes", CallError, "vLLM says", comm.dispatch, x[1:], weights[1:],
                 ids[1:])  # fmt: skip
        b.raises("handles", CallError, "have none", manager.get_handle, {})
        b.true("nobody is left out", not manager.query_active_mask().any())
        engine(sizes, "pplx", dp=dp, tp=alone, ep=dp, pcp=alone)
        b.raises("a backend", CallError, "all2all_backend='pplx'",
                 vllm_experts.manager_for, group)  # fmt: skip
        comm.destroy()
        other.destroy()
    finally:
        for name in [n for n in sys.modules if n.split(".")[0] == "vllm"]:
            del sys.modules[name]
