"""Calls of DeepEP's low-latency mode: slabs, weights at the receiver, late receipt."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from stretto.errors import CallError
from stretto.experts.deep_ep.slabs import gathered, packed_exponents, spread
from stretto.experts.deep_ep.utils import EventHandle, EventOverlap
from stretto.experts.elements import GROUP
from stretto.experts.tensors import raw
from stretto.runtime.calls import Communicator

__all__ = ["LowLatency", "SlabHandle"]

Hook = Callable[[], None]


class SlabHandle:
    """What a low-latency dispatch leaves for its combine."""

    def __init__(self, ep: Any, room: int) -> None:
        """Have nothing that came, yet."""
        self.ep, self.room, self.sent = ep, room, None

    def slabs(self, kind: torch.dtype, device: torch.device) -> Tensor:
        """Return memory for every expert's rows."""
        g = self.ep.geometry
        shape = g.num_experts // g.num_ranks, self.room, g.hidden
        return torch.empty(shape, dtype=kind, device=device)


class LowLatency:
    """The low-latency calls of a `Buffer`, and experts that it made."""

    def __init__(self, comm: Communicator) -> None:
        """Have made none."""
        self.comm = comm
        self._made: dict[Any, Any] = {}

    def forget(self) -> None:
        """Let go of memory of all calls."""
        self._made.clear()

    def experts(
        self, sizes: tuple[int, int, int], tokens: int, how: dict[str, Any], *,
        exactly: bool = False,
    ) -> Any:  # fmt: skip
        """Return experts of a kind with room for so many tokens (then collective).

        Or for `exactly` so many, as slabs depend on it, and each token's differ.
        """
        key = sizes, exactly and tokens, tuple(sorted(how.items(), key=str))
        found = self._made.get(key)
        if found is None or found.geometry.max_tokens < tokens:
            found = self._made[key] = self.comm.experts(*sizes, tokens, **how)
            found.distinct = exactly
        return found

    @staticmethod
    def ended(async_finish: bool) -> EventOverlap:
        """Return the event of a call: its end, or none where nobody asked."""
        return EventOverlap(EventHandle() if async_finish else None)

    @staticmethod
    def get_low_latency_rdma_size_hint(
        num_max_dispatch_tokens_per_rank: int, hidden: int, num_ranks: int,
        num_experts: int,
    ) -> int:  # fmt: skip
        """Return 0: memory is made by the first call of its kind."""
        return 0

    def clean_low_latency_buffer(
        self, num_max_dispatch_tokens_per_rank: int, hidden: int, num_experts: int
    ) -> None:
        """Do nothing: no call leaves anything that another would read."""

    def low_latency_dispatch(
        self, x: Tensor, topk_idx: Tensor, num_max_dispatch_tokens_per_rank: int,
        num_experts: int, cumulative_local_expert_recv_stats: Tensor | None = None,
        dispatch_wait_recv_cost_stats: Tensor | None = None, use_fp8: bool = True,
        round_scale: bool = False, use_ue8m0: bool = False, async_finish: bool = False,
        return_recv_hook: bool = False,
    ) -> tuple[Any, Tensor, SlabHandle, EventOverlap, Hook | None]:  # fmt: skip
        """Give tokens to their experts' slabs (collective).

        With `return_recv_hook` results are there once the hook was called, or another
        call was made.
        """
        _no_times(dispatch_wait_recv_cost_stats)
        _one_way(async_finish, return_recv_hook)
        if use_ue8m0 and not (use_fp8 and round_scale):
            raise CallError(
                "low_latency_dispatch: use_ue8m0=True; want use_fp8 and round_scale, "
                "whose scales are powers of two"
            )
        hidden, most = x.shape[1], num_max_dispatch_tokens_per_rank
        if use_ue8m0 and hidden % (4 * GROUP):
            raise CallError(
                f"low_latency_dispatch: hidden={hidden} with use_ue8m0; want a "
                f"multiple of {4 * GROUP}"
            )
        quantise = ("fp8_128_pow2" if round_scale else "fp8_128") if use_fp8 else None
        how: dict[str, Any] = {
            "layout": "expert", "order": "k", "quantise": quantise,
            "dtype": str(x.dtype).removeprefix("torch."),
        }  # fmt: skip
        if x.is_cuda:
            how["device"] = "cuda"
        sizes = num_experts, topk_idx.shape[1], hidden
        ep = self.experts(sizes, most, how, exactly=True)
        given = x.detach()
        if return_recv_hook and not x.is_cuda:
            given = given.clone()  # a caller may write there before the hook
        underway = ep.start_dispatch(given, topk_idx, None, return_recv_hook)
        handle = SlabHandle(ep, most * self.comm.num_ranks)
        kind = torch.float8_e4m3fn if use_fp8 else x.dtype
        rows = handle.slabs(kind, x.device)
        counts = torch.empty(len(rows), dtype=torch.int32, device=x.device)
        scales = _scales_of(rows, use_ue8m0) if use_fp8 else None

        def receive() -> None:
            sent = handle.sent = underway.wait()
            counts.copy_(sent.counts)
            spread(sent, raw(sent.rows), raw(rows))
            if scales is not None:
                made = packed_exponents(sent.scales) if use_ue8m0 else sent.scales
                spread(sent, made, scales)
            if cumulative_local_expert_recv_stats is not None:
                cumulative_local_expert_recv_stats.add_(counts)

        hook = self._late(receive, return_recv_hook)
        whole = rows if scales is None else (rows, scales)
        return whole, counts, handle, self.ended(async_finish), hook

    def low_latency_combine(
        self, x: Tensor, topk_idx: Tensor, topk_weights: Tensor, handle: SlabHandle,
        use_logfmt: bool = False, zero_copy: bool = False, async_finish: bool = False,
        return_recv_hook: bool = False, out: Tensor | None = None,
        combine_wait_recv_cost_stats: Tensor | None = None,
    ) -> tuple[Tensor, EventOverlap, Hook | None]:  # fmt: skip
        """Give each token its experts' rows, times its weights, in order of choices.

        Rows travel as they are: `use_logfmt`, a smaller form, changes nothing, nor does
        `zero_copy`. A choice that is -1 in `topk_idx` now counts for nothing.
        """
        _no_times(combine_wait_recv_cost_stats)
        _one_way(async_finish, return_recv_hook)
        ep, sent = handle.ep, handle.sent
        if sent is None:
            raise CallError(
                "low_latency_combine: of a dispatch whose hook was not called; want "
                "hook() first"
            )
        weights = topk_weights.detach().masked_fill(topk_idx < 0, 0.0)
        underway = ep.start_combine(
            gathered(sent, x.detach()), sent, weights, return_recv_hook
        )
        made = out
        if made is None:
            made = x.new_empty((len(topk_idx), ep.geometry.hidden))
        hook = self._late(lambda: made.copy_(underway.wait()), return_recv_hook)
        return made, self.ended(async_finish), hook

    def get_next_low_latency_combine_buffer(self, handle: SlabHandle) -> Tensor:
        """Return memory for what experts make."""
        g, sent = handle.ep.geometry, handle.sent
        device = torch.device("cpu") if sent is None else sent.rows.device
        return handle.slabs(getattr(torch, g.dtype), device)

    def low_latency_update_mask_buffer(
        self, rank_to_mask: int, mask: bool = False
    ) -> None:
        """Refuse to leave a rank out."""
        if mask:
            raise CallError(
                f"low_latency_update_mask_buffer: rank {rank_to_mask}; no rank is left "
                "out here: one that does not come is named at the deadline"
            )

    def low_latency_query_mask_buffer(self, mask_status: Tensor) -> None:
        """Say that no rank is left out."""
        mask_status.zero_()

    def low_latency_clean_mask_buffer(self) -> None:
        """Do nothing: no rank is left out."""

    # Parts of both.

    @staticmethod
    def _late(receive: Callable[[], Any], asked: bool) -> Hook | None:
        """Return what receives once, or receive now."""
        left = [receive]

        def hook() -> None:
            if left:
                left.pop()()

        if asked:
            return hook
        hook()
        return None


def _scales_of(rows: Tensor, packed: bool) -> Tensor:
    """Return memory for scales of slabs: those of neighbouring rows side by side."""
    experts, room, hidden = rows.shape
    wide = hidden // (4 * GROUP if packed else GROUP)
    kind = torch.int32 if packed else torch.float32
    made = torch.empty((experts, wide, room), dtype=kind, device=rows.device)
    return made.transpose(1, 2)


def _no_times(stats: Tensor | None) -> None:
    if stats is not None:
        raise CallError(
            "..._wait_recv_cost_stats: nobody counts here how long a rank was waited "
            "for; want None"
        )


def _one_way(async_finish: bool, return_recv_hook: bool) -> None:
    if async_finish and return_recv_hook:
        raise CallError("async_finish and return_recv_hook; want one of them")
