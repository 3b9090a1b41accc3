"""Programs' calls of DeepEP's interface, in the order and spelling that they make them.

Recorded on 2026-11-26 by reading; what experts do is ours, and the same for all.

- vLLM, vllm/model_executor/layers/fused_moe/prepare_finalize/deepep_ht.py and
  deepep_ll.py, 055e47c28003156421365af985d676fc921cb075; buffers as in
  vllm/distributed/device_communicators/all2all.py,
  001430048e8175c8dff1bc57e1a81a1fa75460f9.
- SGLang, python/sglang/srt/layers/moe/token_dispatcher/deepep.py,
  454e84dab2724394593c1e166acebe656b503ba7.
- Megatron-LM, megatron/core/transformer/moe/fused_a2a.py and token_dispatcher.py,
  d98e8a64ddf34856e74b24714e3bedb2f5a39553.
"""

from __future__ import annotations

import torch

EXPERTS, CHOICES, HIDDEN, MOST = 6, 3, 512, 16


def scales_of_experts():
    """Return what each expert multiplies by before its tanh."""
    return 0.5 + torch.arange(EXPERTS) / EXPERTS


def dense(x, ids, weights):
    """Return what the layer gives on one rank, in float32."""
    scales, out = scales_of_experts(), torch.zeros_like(x, dtype=torch.float32)
    for j in range(ids.shape[1]):
        made = torch.tanh(x.float() * scales[ids[:, j].clamp(min=0)][:, None])
        here = (ids[:, j] >= 0)[:, None]
        out = out + torch.where(here, made * weights[:, j, None], 0)
    return out


def of_rows(rows, ids, weights, first):
    """Return weighed sums over this rank's experts, of rows that came."""
    scales, out = scales_of_experts(), torch.zeros_like(rows, dtype=torch.float32)
    for j in range(ids.shape[1]):
        made = torch.tanh(
            rows.float() * scales[ids[:, j].clamp(min=0) + first][:, None]
        )
        here = (ids[:, j] >= 0)[:, None]
        out = out + torch.where(here, made * weights[:, j, None], 0)
    return out


def of_slabs(slabs, counts, first):
    """Return what experts make of their slabs: what is behind their rows is poison."""
    made = torch.full(slabs.shape, float("nan"), dtype=torch.bfloat16)
    for e, count in enumerate(counts.tolist()):
        rows = slabs[e, :count].float()
        made[e, :count] = torch.tanh(rows * scales_of_experts()[first + e]).bfloat16()
    return made


def vllm_buffer(deep_ep, group):
    """Return a buffer as DeepEPHTAll2AllManager makes it."""
    deep_ep.Buffer.set_num_sms(20)
    return deep_ep.Buffer(
        group=group, num_nvl_bytes=1 << 30, num_rdma_bytes=0, low_latency_mode=False,
        num_qps_per_rank=1, explicitly_destroy=True,
    )  # fmt: skip


def vllm_high_throughput(buffer, x, scales, ids, weights):
    """Prepare and finalise, both asynchronously."""
    config = buffer.get_dispatch_config(buffer.group_size)
    previous = buffer.capture()
    per_rank, per_rdma_rank, per_expert, inside, event = buffer.get_dispatch_layout(
        topk_idx=ids, num_experts=EXPERTS, previous_event=previous, async_finish=False,
        allocate_on_comm_stream=False,
    )  # fmt: skip
    rows, got_ids, got_weights, counts, handle, event = buffer.dispatch(
        x=x if scales is None else (x, scales), handle=None,
        num_tokens_per_rank=per_rank, num_tokens_per_rdma_rank=per_rdma_rank,
        is_token_in_rank=inside, num_tokens_per_expert=per_expert, topk_idx=ids,
        topk_weights=weights, expert_alignment=1, config=config,
        previous_event=previous, async_finish=True, allocate_on_comm_stream=False,
    )  # fmt: skip
    if event.event is not None:
        event.current_stream_wait()
    if scales is not None:
        rows, came = rows
        rows = rows.float().view(len(rows), HIDDEN // 128, 128) * came[:, :, None]
        rows = rows.view(len(rows), HIDDEN)
    first = EXPERTS // buffer.group_size * buffer.rank
    seen = torch.bincount(got_ids[got_ids >= 0], minlength=len(counts))
    assert seen.tolist() == counts, "counts are those of ids"
    assert not got_weights[got_ids < 0].any(), "weights of others' choices are 0"
    made = of_rows(rows, got_ids, got_weights, first).bfloat16()
    out, _, event = buffer.combine(
        x=made, handle=handle, topk_weights=None,
        config=buffer.get_combine_config(buffer.group_size),
        previous_event=buffer.capture(), async_finish=True,
        allocate_on_comm_stream=False,
    )  # fmt: skip
    if event.event is not None:
        event.current_stream_wait()
    return out


def vllm_low_latency(buffer, x, ids, weights, use_fp8):
    """Prepare and finalise, with hooks, into an output that is there."""
    slabs, counts, handle, _, hook = buffer.low_latency_dispatch(
        x, ids, MOST, EXPERTS, use_fp8=use_fp8, round_scale=False, use_ue8m0=False,
        async_finish=False, return_recv_hook=True,
    )  # fmt: skip
    hook()
    if use_fp8:
        slabs, scales = slabs
        assert slabs.is_contiguous()
        assert scales.stride(1) == 1, "scales lie by column"
        wide = slabs.float().view(*slabs.shape[:2], HIDDEN // 128, 128)
        slabs = (wide * scales.contiguous()[..., None]).view(slabs.shape)
    first = EXPERTS // buffer.group_size * buffer.rank
    out = torch.empty(x.shape, dtype=torch.bfloat16)
    _, _, hook = buffer.low_latency_combine(
        of_slabs(slabs, counts, first), ids, weights, handle, async_finish=False,
        zero_copy=False, return_recv_hook=True, out=out,
    )  # fmt: skip
    hook()
    return out


def sglang_buffer(deep_ep, group):
    """Return a buffer as DeepEPBuffer makes it, for both modes."""
    hidden_bytes, nvl, rdma = HIDDEN * 2, 0, 0
    for config in (
        deep_ep.Buffer.get_dispatch_config(group.size()),
        deep_ep.Buffer.get_combine_config(group.size()),
    ):
        nvl = max(config.get_nvl_buffer_size_hint(hidden_bytes, group.size()), nvl)
        rdma = max(config.get_rdma_buffer_size_hint(hidden_bytes, group.size()), rdma)
    hint = deep_ep.Buffer.get_low_latency_rdma_size_hint(
        MOST, HIDDEN, group.size(), EXPERTS
    )
    return deep_ep.Buffer(
        group, nvl, max(hint, rdma), low_latency_mode=True,
        num_qps_per_rank=max(20, EXPERTS // group.size()), allow_mnnvl=True,
    )  # fmt: skip


def sglang_normal(deep_ep, buffer, x, ids, weights):
    """Do both halves of a dispatch, and of a combine."""
    previous = deep_ep.Buffer.capture()
    per_rank, per_rdma_rank, per_expert, inside, previous = buffer.get_dispatch_layout(
        ids, EXPERTS, previous_event=previous, async_finish=True,
        allocate_on_comm_stream=previous is not None,
    )  # fmt: skip
    rows, got_ids, got_weights, counts, handle, event = buffer.dispatch(
        x, topk_idx=ids, topk_weights=weights, num_tokens_per_rank=per_rank,
        num_tokens_per_rdma_rank=per_rdma_rank, is_token_in_rank=inside,
        num_tokens_per_expert=per_expert, previous_event=previous, async_finish=True,
        allocate_on_comm_stream=True, expert_alignment=128, config=None,
    )  # fmt: skip
    event.current_stream_wait()
    assert all(count % 128 == 0 for count in counts)
    first = EXPERTS // buffer.group_size * buffer.rank
    made = of_rows(rows, got_ids, got_weights, first).bfloat16()
    previous = deep_ep.Buffer.capture()
    out, _, event = buffer.combine(
        made, handle, async_finish=True, previous_event=previous,
        allocate_on_comm_stream=True, config=None,
    )  # fmt: skip
    event.current_stream_wait()
    buffer.clean_low_latency_buffer(MOST, HIDDEN, EXPERTS)
    return out


def sglang_low_latency(buffer, x, ids, weights):
    """Dispatch with packed scales, and an event instead of a hook."""
    slabs, counts, handle, event, hook = buffer.low_latency_dispatch(
        x, ids, MOST, EXPERTS, use_fp8=True, async_finish=True, return_recv_hook=False,
        round_scale=True, use_ue8m0=True,
    )  # fmt: skip
    event.current_stream_wait()
    assert hook is None
    slabs, words = slabs
    exponents = (
        words.reshape(-1, 1).contiguous().view(-1).view(torch.uint8).to(torch.int32)
    )
    scales = (exponents << 23).view(torch.float32).view(*slabs.shape[:2], -1)
    wide = slabs.float().view(*slabs.shape[:2], HIDDEN // 128, 128)
    slabs = (wide * scales[..., None]).view(slabs.shape)
    first = EXPERTS // buffer.group_size * buffer.rank
    out, event, hook = buffer.low_latency_combine(
        x=of_slabs(slabs, counts, first), topk_idx=ids, topk_weights=weights,
        handle=handle, async_finish=True, return_recv_hook=False,
    )  # fmt: skip
    event.current_stream_wait()
    return out


class MegatronDispatch(torch.autograd.Function):
    """FusedDispatch: forward by ids, backward by a combine."""

    @staticmethod
    def forward(ctx, x, ids, probs, buffer, module):
        previous = module.EventOverlap(module.EventHandle())
        per_rank, per_rdma_rank, per_expert, inside, event = buffer.get_dispatch_layout(
            ids, EXPERTS, previous_event=previous, async_finish=True,
            allocate_on_comm_stream=True,
        )  # fmt: skip
        rows, got_ids, got_probs, counts, handle, after = buffer.dispatch(
            x, topk_idx=ids, topk_weights=probs, num_tokens_per_rank=per_rank,
            num_tokens_per_rdma_rank=per_rdma_rank, is_token_in_rank=inside,
            num_tokens_per_expert=per_expert, previous_event=event, async_finish=True,
            allocate_on_comm_stream=True,
        )  # fmt: skip
        after.current_stream_wait()
        ctx.buffer, ctx.handle, ctx.module = buffer, handle, module
        return rows, got_ids, got_probs, torch.tensor(counts), handle

    @staticmethod
    def backward(ctx, of_rows, of_ids, of_probs, of_counts, of_handle):
        previous = ctx.module.EventOverlap(ctx.module.EventHandle())
        of_x, of_own, after = ctx.buffer.combine(
            of_rows.contiguous(), ctx.handle, topk_weights=of_probs.float(),
            previous_event=previous, async_finish=True, allocate_on_comm_stream=True,
        )  # fmt: skip
        after.current_stream_wait()
        return of_x, None, of_own, None, None


class MegatronCombine(torch.autograd.Function):
    """FusedCombine: backward is a dispatch by the handle."""

    @staticmethod
    def forward(ctx, x, buffer, handle):
        out, _, after = buffer.combine(
            x, handle=handle, async_finish=False, previous_event=None,
            allocate_on_comm_stream=False,
        )  # fmt: skip
        assert after.event is None
        ctx.buffer, ctx.handle = buffer, handle
        return out

    @staticmethod
    def backward(ctx, grad):
        of_x, _, _, _, _, _ = ctx.buffer.dispatch(
            grad.contiguous(), handle=ctx.handle, previous_event=None,
            async_finish=False, allocate_on_comm_stream=False,
        )  # fmt: skip
        return of_x, None, None


def megatron(module, buffer, x, ids, probs):
    """The flex dispatcher's steps: what is between them has gradients of its own."""
    rows, got_ids, got_probs, counts, handle = MegatronDispatch.apply(
        x.contiguous(), ids, probs, buffer, module
    )
    assert int(counts.sum()) == int((got_ids >= 0).sum())
    first = EXPERTS // buffer.group_size * buffer.rank
    made = of_rows(rows, got_ids, got_probs, first).to(x.dtype)
    return MegatronCombine.apply(made, buffer, handle)
