"""DeepEP's interface: programs' own sequences of calls give what one rank gives."""

from __future__ import annotations

import sys
import types

import pytest

import stretto
from stretto.errors import CallError

torch = pytest.importorskip("torch")
from tests.host.experts import callers  # noqa: E402
from tests.host.experts.callers import CHOICES, EXPERTS, HIDDEN, MOST  # noqa: E402
from tests.host.torch_ops.fusions import gloo  # noqa: E402

pytestmark = [pytest.mark.host, pytest.mark.timeout(200)]


class Bench:
    """What `gloo` asks of a bench."""

    def __init__(self, comm):
        self.comm, self.rank, self.n = comm, comm.rank, comm.num_ranks


def drawn(comm, seed, tokens=None):
    """Return tokens, distinct ids (some -1) and weights of this rank."""
    made = torch.Generator().manual_seed(100 * seed + comm.rank)
    tokens = (7, 0, 12)[(comm.rank + seed) % 3] if tokens is None else tokens
    x = torch.randn(tokens, HIDDEN, generator=made)
    ids = torch.rand(tokens, EXPERTS, generator=made).argsort(1)[:, :CHOICES]
    ids = ids.masked_fill(torch.rand(ids.shape, generator=made) < 0.2, -1)
    return x.bfloat16(), ids, torch.rand(ids.shape, generator=made)


def off(got, want):
    """Return how far a result is from another, 0 where there are no tokens."""
    if got.shape != want.shape:
        return float("inf")
    return float((got.float() - want.float()).abs().max()) if want.numel() else 0.0


def quantised(x):
    """Return fp8 rows and scales, as callers make them."""
    wide = x.float().view(len(x), HIDDEN // 128, 128)
    most = wide.abs().amax(-1).clamp(min=1e-4)
    made = (wide * (torch.full_like(most, 448) / most)[..., None]).to(
        torch.float8_e4m3fn
    )
    return made.view(x.shape), most / 448


def gradients(deep_ep, buffer, x, ids, weights):
    """Return how far Megatron's gradients are from one rank's."""
    both = []
    for spread in (True, False):
        given = x.clone().requires_grad_(), weights.clone().requires_grad_()
        if spread:
            out = callers.megatron(deep_ep, buffer, given[0], ids, given[1])
        else:
            out = callers.dense(given[0], ids, given[1])
        out.float().square().sum().backward()
        both.append([one.grad for one in given])
    names = "megatron tokens", "megatron probs"
    return {name: off(a, b) / 30 for name, a, b in zip(names, *both, strict=True)}


def all_callers(comm):
    """Return how far each caller's results are from one rank's."""
    torch.set_num_threads(1)
    gloo(Bench(comm))
    from stretto.experts import deep_ep as ours

    ours.install()
    import deep_ep
    from deep_ep.utils import EventHandle, EventOverlap

    assert deep_ep.EventOverlap is EventOverlap
    assert EventHandle is ours.EventHandle
    group = torch.distributed.new_group(backend="gloo")
    found = {}
    first = callers.vllm_buffer(deep_ep, group)
    second = callers.sglang_buffer(deep_ep, group)
    for seed, tokens in enumerate((None, None, 130, None)):  # grows, and stays
        x, ids, weights = drawn(comm, seed, tokens)
        want = callers.dense(x, ids, weights)
        rows, scales = quantised(x)
        back = (rows.float().view(len(x), HIDDEN // 128, 128) * scales[..., None]).view(
            x.shape
        )
        rough = callers.dense(back, ids, weights)
        one = {
            "vllm": off(
                callers.vllm_high_throughput(first, x, None, ids, weights), want
            ),
            "vllm fp8": off(
                callers.vllm_high_throughput(first, rows, scales, ids, weights), rough
            ),
            "sglang": off(
                callers.sglang_normal(deep_ep, second, x, ids, weights), want
            ),
        }
        if tokens is None:
            small = {
                "vllm low": (callers.vllm_low_latency, first, (False,), want),
                "vllm low fp8": (callers.vllm_low_latency, first, (True,), rough),
            }
            for name, (call, buffer, more, aim) in small.items():
                one[name] = off(call(buffer, x, ids, weights, *more), aim)
            made = callers.sglang_low_latency(second, x, ids, weights)
            one["sglang low"] = off(made, want) / 5
        for name, value in one.items():
            found[name] = max(found.get(name, 0.0), value)
        for name, value in gradients(deep_ep, first, x, ids, weights).items():
            found[name] = max(found.get(name, 0.0), value)
    first.destroy()
    return found


@pytest.mark.parametrize("num_ranks", [2])
def test_programs_calls_give_what_one_rank_gives(num_ranks):
    """vLLM's, SGLang's and Megatron's, with fp8 and without, and gradients."""
    for found in stretto.spawn(all_callers, num_ranks=num_ranks, deadline_s=60):
        assert 8 == len(found)
        assert [] == [(n, v) for n, v in found.items() if not v < 0.04]


def details(comm):
    """Return what is wrong of the rest of the normal mode."""
    torch.set_num_threads(1)
    from stretto.experts.deep_ep import Buffer

    wrong = []

    def true(what, holds):
        if not holds:
            wrong.append(what)

    buffer = Buffer(comm)
    every = [[7, r] for r in range(comm.num_ranks)]
    for on_gpu in (False, True):
        true("told", every == buffer._told((7, comm.rank), on_gpu))
    x, ids, weights = drawn(comm, 1, 9)
    per_rank, hosts, per_expert, inside, event = buffer.get_dispatch_layout(
        ids, EXPERTS
    )
    local = EXPERTS // comm.num_ranks
    there = [((ids >= 0) & (ids // local == q)).any(1) for q in range(comm.num_ranks)]
    true("inside", torch.equal(inside, torch.stack(there, 1)))
    true("per rank", torch.equal(per_rank, inside.sum(0).int()))
    true("one host", hosts is None and event.event is None)
    counted = torch.bincount(ids[ids >= 0], minlength=EXPERTS)
    true("per expert", torch.equal(per_expert, counted.int()))

    sizes = {"num_tokens_per_expert": per_expert, "topk_idx": ids}
    rows, *_, counts, handle, _ = buffer.dispatch(x, topk_weights=weights, **sizes)
    room = comm.num_ranks * 16
    wide, got_ids, _, none, roomy, _ = buffer.dispatch(
        x, topk_weights=weights, num_worst_tokens=room, **sizes
    )
    true("worst", wide.shape[0] == room and none == [] != counts)
    true("same rows", torch.equal(wide[: len(rows)], rows))
    true("none behind", bool((got_ids[len(rows) :] == -1).all()))
    try:
        buffer.dispatch(
            x, topk_weights=weights, num_worst_tokens=len(rows) - 1, **sizes
        )
        true("too few refused", False)
    except CallError as e:
        true("says how many", f"{len(rows)} rows came" in str(e))
    once, *_ = buffer.combine(wide, roomy)
    bias = torch.ones_like(x)
    twice, *_ = buffer.combine(rows, handle, bias=(bias, bias))
    true("bias", torch.equal(twice, ((once.float() + 1).bfloat16() + 1).bfloat16()))
    return wrong


def test_the_rest_of_the_normal_mode():
    """Layouts, worst cases, biases."""
    assert [[], []] == stretto.spawn(details, num_ranks=2)


def low_latency(comm):
    """Return what is wrong of the rest of the low-latency mode."""
    torch.set_num_threads(1)
    from stretto.experts.deep_ep import Buffer

    buffer, wrong = Buffer(comm, low_latency_mode=True), []
    x, ids, weights = drawn(comm, 1, 9)
    kept = x.clone()

    def true(what, holds):
        if not holds:
            wrong.append(what)

    def summed(ids, out):
        total = weights.masked_fill(ids < 0, 0).sum(1, keepdim=True)
        return off(out, kept.float() * total) < 0.05

    stats = torch.zeros(EXPERTS // comm.num_ranks, dtype=torch.int32)
    slabs, many, handle, _, hook = buffer.low_latency_dispatch(
        x, ids, MOST, EXPERTS, stats, use_fp8=False, return_recv_hook=True
    )
    x.fill_(7)  # the call has what it needs
    try:
        buffer.low_latency_combine(slabs, ids, weights, handle)
    except CallError as e:
        true("no hook", "hook() first" in str(e))
    hook()
    hook()
    true("stats", torch.equal(stats, many) and bool(many.sum()))
    mine = buffer.get_next_low_latency_combine_buffer(handle)
    mine.copy_(slabs)
    out, *_ = buffer.low_latency_combine(mine, ids, weights, handle, zero_copy=True)
    true("summed", summed(ids, out))
    fewer = ids.clone()
    fewer[:, 0] = -1
    out, *_ = buffer.low_latency_combine(mine, fewer, weights, handle)
    true("masked later", summed(fewer, out))
    status = torch.ones(comm.num_ranks, dtype=torch.int32)
    buffer.low_latency_query_mask_buffer(status)
    true("nobody is masked", not status.any())
    return wrong


def test_the_rest_of_the_low_latency_mode():
    """Hooks, statistics, buffers, masks."""
    assert [[], []] == stretto.spawn(low_latency, num_ranks=2)


def refusals(comm):
    """Return what bad calls raise, some of which rank 1 alone makes wrong."""
    torch.set_num_threads(1)
    from stretto.experts.deep_ep import Buffer, EventOverlap

    buffer, odd = Buffer(comm), comm.rank == 1
    x, ids, _ = drawn(comm, 1, 9)
    per_expert = buffer.get_dispatch_layout(ids, EXPERTS)[2]
    sizes = {"num_tokens_per_expert": per_expert, "topk_idx": ids}
    doubled, nothing = ids.clone(), torch.zeros(comm.num_ranks)
    doubled[3, :2] = 5

    def low(*more, chosen=ids, **how):
        return buffer.low_latency_dispatch(x, chosen, MOST, EXPERTS, *more, **how)

    said = []
    for work in (
        lambda: low(chosen=doubled if odd else ids, use_fp8=False),
        lambda: buffer.dispatch(x, num_tokens_per_expert=per_expert,
                                topk_idx=None if odd else ids),
        lambda: buffer.dispatch(x[:, :256] if odd else x, **sizes),
        lambda: buffer.dispatch(x.double() if odd else x, **sizes),
        lambda: buffer.low_latency_update_mask_buffer(1, True),
        lambda: low(use_ue8m0=True),
        lambda: low(None, nothing),
        lambda: low(async_finish=True, return_recv_hook=True),
        lambda: buffer.get_dispatch_layout(ids, EXPERTS + 1),
        lambda: buffer.get_local_buffer_tensor(torch.int8),
        lambda: Buffer(comm, enable_shrink=True),
        lambda: Buffer(None),
        lambda: Buffer.set_num_sms(3),
        buffer.destroy,
        buffer.get_comm_stream,
        lambda: EventOverlap().current_stream_wait(),
    ):  # fmt: skip
        try:
            work()
        except CallError as e:
            said.append(str(e))
        else:
            said.append("")
    rows, *_ = buffer.dispatch(x, **sizes)
    return said, len(rows) > 0


def test_what_cannot_be_is_refused_in_a_sentence():
    """Alike on all ranks, with whose it is; the next call works."""
    each = stretto.spawn(refusals, num_ranks=2)

    assert each[0] == each[1]
    said, works = each[0]
    assert works
    for text, part in zip(said, (
        "rank 1: dispatch: ids[3] has expert 5 twice",
        "rank 1: dispatch: want topk_idx", "rank 1 has [6, 3, 256, 2]",
        "rank 1: dispatch: x of torch.float64", "no rank is left out",
        "want use_fp8 and round_scale", "nobody counts", "want one of them",
        "a multiple of 2 ranks", "memory here is of one kind", "enable_shrink=True",
        "want a group", "set_num_sms(3)", "explicitly_destroy", "no GPU is in use",
        "want async_finish=True",
    ), strict=True):  # fmt: skip
        assert part in text


def test_slabs_on_devices_are_those_on_hosts():
    """By indices, where a host knows no sizes."""
    from stretto.experts.deep_ep import slabs

    class Kept(torch.Tensor):
        """A tensor that says that it is on a GPU."""

        is_cuda = True

    rows = torch.randn(12, 4)
    starts, counts = torch.tensor([0, 3, 3, 8]), torch.tensor([3, 0, 5])
    sent = types.SimpleNamespace(starts=starts, counts=counts, rows=rows)
    here, there = torch.zeros(3, 6, 4), torch.zeros(3, 6, 4)
    slabs.spread(sent, rows, here)
    slabs.spread(sent, rows.as_subclass(Kept), there)
    for e, count in enumerate(counts):
        assert torch.equal(here[e, :count], there[e, :count])

    back = slabs.gathered(sent, here)
    other = slabs.gathered(sent, there.as_subclass(Kept))
    assert torch.equal(rows[:8], back)
    assert torch.equal(back, other[:8])


def test_a_name_that_is_taken_is_not_taken_over(monkeypatch):
    """Who has imported DeepEP itself goes on with it."""
    from stretto.experts import deep_ep

    monkeypatch.setitem(sys.modules, "deep_ep", types.ModuleType("deep_ep"))
    with pytest.raises(CallError, match=r"'deep_ep' is .* already"):
        deep_ep.install()
