"""DeepEP's `Buffer`: its normal mode; `LowLatency` has the other one's calls.

What queues and their sizes are for there is not here: rows have places that follow from
ids, so memory is made by the first call of a kind, and any number of tokens fits. In
the normal mode ranks tell one another how many they have, and errors, before rows go.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stretto.errors import CallError
from stretto.experts.deep_ep.low_latency import LowLatency
from stretto.experts.deep_ep.utils import Config, EventHandle, EventOverlap, wait_for
from stretto.experts.tensors import returned_weights
from stretto.torch.serving.joining import Joined, joined

__all__ = ["Buffer", "Handle"]

_LEAST_TOKENS = 64
_TYPES = (torch.bfloat16, torch.float16, torch.float32)
Event = EventOverlap
Received = tuple[Any, Tensor | None, Tensor | None, Any, "Handle | None", Event]
"""Rows (and scales), ids, weights, counts of experts, what a combine needs, an event.
"""


@dataclass(frozen=True)
class Handle:
    """What a dispatch leaves for its combine, and for dispatches of gradients."""

    ep: Any
    sent: Any
    topk_idx: Tensor
    topk_weights: Tensor


class Buffer(LowLatency):
    """Dispatch and combine of the ranks of a group, as DeepEP's class has them."""

    num_sms: int = 20

    def __init__(
        self, group: Any, num_nvl_bytes: int = 0, num_rdma_bytes: int = 0,
        low_latency_mode: bool = False, num_qps_per_rank: int = 24,
        allow_nvlink_for_low_latency_mode: bool = True, allow_mnnvl: bool = False,
        explicitly_destroy: bool = False, enable_shrink: bool = False, comm: Any = None,
    ) -> None:  # fmt: skip
        """Join the group's ranks (collective)."""
        if group is None or comm is not None:
            raise CallError(
                "Buffer: want a group of torch.distributed; mpi4py has none"
            )
        if enable_shrink:
            raise CallError(
                "Buffer: enable_shrink=True; want False: a rank that does not come is "
                "named at the deadline, and is not left out"
            )
        found = joined(group)
        if found is None:
            raise CallError(
                "Buffer: the group spans several hosts; want init_process_group("
                "'stretto'), whose groups may"
            )
        super().__init__(found.comm)
        self._joined: Joined | None = found
        self.group, self.rank = group, found.comm.rank
        self.group_size = found.comm.num_ranks
        self.num_nvl_bytes, self.num_rdma_bytes = num_nvl_bytes, num_rdma_bytes
        self.low_latency_mode = low_latency_mode
        self.explicitly_destroy, self.enable_shrink = explicitly_destroy, False

    def destroy(self) -> None:
        """Give the communicator back."""
        if not self.explicitly_destroy:
            raise CallError("destroy: want Buffer(..., explicitly_destroy=True)")
        left, self._joined = self._joined, None
        if left is not None:
            self.forget()
            left.leave()

    @staticmethod
    def is_sm90_compiled() -> bool:
        """Return True: kernels are compiled for the GPU that is there."""
        return True

    @staticmethod
    def set_num_sms(new_num_sms: int) -> None:
        """Let kernels of the normal mode that are made from now on have so many blocks.

        All ranks say the same.
        """
        if new_num_sms < 2 or new_num_sms % 2:
            raise CallError(
                f"set_num_sms({new_num_sms}); want an even number, 2 or more"
            )
        Buffer.num_sms = new_num_sms

    @staticmethod
    def capture() -> Event:
        """Return an event of the current stream."""
        return EventOverlap(EventHandle())

    @staticmethod
    def get_dispatch_config(num_ranks: int) -> Config:
        """Return a config, for any number of ranks."""
        return Config(Buffer.num_sms)

    get_combine_config = get_dispatch_config

    def get_comm_stream(self) -> Any:
        """Return the stream of calls: the current one."""
        if not torch.cuda.is_initialized():
            raise CallError(
                "get_comm_stream: no GPU is in use; calls on CPUs have none"
            )
        return torch.cuda.current_stream()

    def get_local_buffer_tensor(
        self, dtype: torch.dtype, size: Any = None, offset: int = 0,
        use_rdma_buffer: bool = False,
    ) -> Tensor:  # fmt: skip
        """Refuse: there is no one buffer of bytes."""
        raise CallError(
            "get_local_buffer_tensor: memory here is of one kind of calls each; want "
            "get_next_low_latency_combine_buffer, or tensors of one's own"
        )

    def get_dispatch_layout(
        self, topk_idx: Tensor, num_experts: int, previous_event: Any = None,
        async_finish: bool = False, allocate_on_comm_stream: bool = False,
    ) -> tuple[Tensor, Tensor | None, Tensor, Tensor, Event]:  # fmt: skip
        """Return tokens per rank, host and expert, who gets which, and an event."""
        wait_for(previous_event)
        n = self.group_size
        if num_experts < 1 or num_experts % n:
            raise CallError(
                f"get_dispatch_layout: num_experts={num_experts}; want a multiple of "
                f"{n} ranks"
            )
        valid, chosen = topk_idx >= 0, topk_idx.clamp(min=0)
        per_expert = torch.zeros(num_experts, dtype=torch.int32, device=topk_idx.device)
        per_expert.index_add_(0, chosen.view(-1), valid.view(-1).int())
        owners = torch.where(valid, chosen // (num_experts // n), n)
        inside = topk_idx.new_zeros((len(topk_idx), n + 1), dtype=torch.bool)
        inside = inside.scatter_(1, owners, True)[:, :n].contiguous()
        per_host = None
        if hosts := self.comm.hosts:
            which = torch.tensor(hosts, device=inside.device)
            parts = [inside[:, which == host] for host in range(max(hosts) + 1)]
            per_host = torch.stack([part.any(1).sum() for part in parts]).int()
        per_rank = inside.sum(0, dtype=torch.int32)
        return per_rank, per_host, per_expert, inside, self.ended(async_finish)

    def dispatch(
        self, x: Any, handle: Handle | None = None,
        num_tokens_per_rank: Tensor | None = None,
        num_tokens_per_rdma_rank: Tensor | None = None,
        is_token_in_rank: Tensor | None = None,
        num_tokens_per_expert: Tensor | None = None, topk_idx: Tensor | None = None,
        topk_weights: Tensor | None = None, expert_alignment: int = 1,
        num_worst_tokens: int = 0, config: Config | None = None,
        previous_event: Any = None, async_finish: bool = False,
        allocate_on_comm_stream: bool = False,
    ) -> Received:  # fmt: skip
        """Give tokens to their ranks (collective); see DeepEP's docs for arguments.

        `x` is rows, or fp8 rows and their float32 scales (on CPUs). A handle of another
        dispatch stands for its routing. Rows come in order of ranks and their tokens.
        """
        wait_for(previous_event)
        plain = x[0] if isinstance(x, tuple) else x
        if handle is not None:
            g = handle.ep.geometry
            sizes = g.num_experts, g.top_k, plain.shape[1]
            ep = self._normal(x, sizes, g.max_tokens)
            sent = ep.plain_dispatch(_detached(x), handle.topk_idx, handle.topk_weights)
            rows, *_ = _came(sent, 0)
            return rows, None, None, None, None, self.ended(async_finish)
        num_experts, k, hidden, most = self._agreed(
            x, plain, topk_idx, num_tokens_per_expert
        )
        if num_worst_tokens:
            most = max(most, -(-num_worst_tokens // self.group_size))
        ep = self._normal(x, (num_experts, k, hidden), most)
        assert topk_idx is not None, "agreed"
        if topk_weights is None:
            topk_weights = torch.ones(
                topk_idx.shape, dtype=torch.float32, device=topk_idx.device
            )
        sent = ep.plain_dispatch(_detached(x), topk_idx, topk_weights.detach())
        rows, ids, weights = _came(sent, num_worst_tokens)
        counts: list[int] = []
        if not num_worst_tokens:
            many = expert_alignment
            counts = [-(-count // many) * many for count in sent.counts_host()]
        made = Handle(ep, sent, topk_idx, topk_weights)
        return rows, ids, weights, counts, made, self.ended(async_finish)

    def combine(
        self, x: Tensor, handle: Handle, topk_weights: Tensor | None = None,
        bias: Any = None, config: Config | None = None, previous_event: Any = None,
        async_finish: bool = False, allocate_on_comm_stream: bool = False,
    ) -> tuple[Tensor, Tensor | None, Event]:  # fmt: skip
        """Give each token the sum of its ranks' rows, without weights (collective).

        `topk_weights`, of each row that came, are summed alike (on CPUs). Biases are
        added to the sum in float32.
        """
        wait_for(previous_event)
        ep, sent = handle.ep, handle.sent
        out = ep.plain_combine(_fitted(x.detach(), sent.rows.shape[0]), sent, None)
        for one in bias if isinstance(bias, tuple) else (bias,):
            if one is not None:
                out = (out.float() + one.float()).to(out.dtype)
        weights = None
        if topk_weights is not None:
            if ep.on_gpu:
                raise CallError("combine: topk_weights on GPUs; want None, or CPUs")
            many = sent.received.ids.shape[0]
            given = topk_weights.detach().float()[:many].contiguous()
            weights = returned_weights(ep, sent.received, given)
        return out, weights, self.ended(async_finish)

    # What ranks have to be told.

    def _agreed(
        self, x: Any, plain: Tensor, topk_idx: Tensor | None, per_expert: Tensor | None
    ) -> tuple[int, int, int, int]:
        """Return sizes, and the most tokens of a rank; raise what any rank refuses."""
        why, words = "", (0, 0, 0, 0, 0)
        if topk_idx is None or per_expert is None:
            why = "want topk_idx and num_tokens_per_expert, or a handle"
        elif plain.dim() != 2 or topk_idx.dim() != 2 or len(plain) != len(topk_idx):
            why = (
                f"x of shape {tuple(plain.shape)} and topk_idx of "
                f"{tuple(topk_idx.shape)}; want rows and choices of as many tokens"
            )
        elif not isinstance(x, tuple) and plain.dtype not in _TYPES:
            why = f"x of {plain.dtype}; want bfloat16, or fp8 rows and their scales"
        elif per_expert.numel() % self.group_size:
            why = f"{per_expert.numel()} experts; want a multiple of {self.group_size}"
        else:
            kind = -1 if isinstance(x, tuple) else plain.element_size()
            words = (per_expert.numel(), topk_idx.shape[1], plain.shape[1], kind,
                     plain.shape[0])  # fmt: skip
        every = self._told((not why, *words), plain.is_cuda)
        if not all(one[0] for one in every):
            said = self.comm.all_gather_object(why)
            at, text = next((r, text) for r, text in enumerate(said) if text)
            raise CallError(f"rank {at}: dispatch: {text}")
        for rank, one in enumerate(every):
            if one[1:5] != every[0][1:5]:
                names = "experts, choices, hidden, bytes of an element (-1: fp8)"
                raise CallError(
                    f"dispatch: rank {rank} has {one[1:5]} and rank 0 "
                    f"{every[0][1:5]}; want the same {names} on every rank"
                )
        num_experts, k, hidden = every[0][1:4]
        return num_experts, k, hidden, max(one[5] for one in every)

    def _told(self, words: tuple[int, ...], on_gpu: bool) -> list[list[int]]:
        if on_gpu:
            return [list(one) for one in self.comm.all_gather_object(list(words))]
        every = self.comm.all_gather(np.array(words, np.int64))
        found: list[list[int]] = every.reshape(self.group_size, -1).tolist()
        return found

    def _normal(self, x: Any, sizes: tuple[int, int, int], tokens: int) -> Any:
        """Return experts of a kind that have room for so many tokens of a rank."""
        how: dict[str, Any] = {"layout": "token"}
        if isinstance(x, tuple):
            how |= {"dtype": "bfloat16", "quantise": "fp8_128"}
        else:
            how["dtype"] = str(x.dtype).removeprefix("torch.")
        if (x[0] if isinstance(x, tuple) else x).is_cuda:
            how |= {"device": "cuda", "blocks": Buffer.num_sms}
        room = max(_LEAST_TOKENS, 1 << (tokens - 1).bit_length())
        return self.experts(sizes, room, how)


def _detached(x: Any) -> Any:
    if isinstance(x, tuple):
        return tuple(one.detach() for one in x)
    return x.detach()


def _fitted(x: Tensor, many: int) -> Tensor:
    """Return so many rows: what is behind those that came is not read."""
    if x.shape[0] >= many or not x.is_cuda:
        return x[:many]
    whole = x.new_empty((many, *x.shape[1:]))
    whole[: x.shape[0]] = x
    return whole


def _came(sent: Any, room: int) -> tuple[Any, Tensor, Tensor]:
    """Return what came: rows (and scales), ids and weights; `room`: of so many rows."""
    parts = [sent.rows, sent.ids, sent.weights]
    if sent.scales is not None:
        parts.append(sent.scales)
    many = 0 if room and sent.rows.is_cuda else int(sent.sources.sum())
    if room and many > room:  # a GPU's counts are not waited for
        raise CallError(
            f"dispatch: {many} rows came; want num_worst_tokens, {room}, of as many"
        )
    if not room:
        parts = [one[:many] for one in parts]
    elif parts[0].shape[0] != room:
        parts = [_roomy(one, room) for one in parts]
    rows, ids, weights, *scales = parts
    if room:  # nothing came into what is behind
        behind = torch.arange(room, device=ids.device) >= sent.sources.sum()
        ids = ids.masked_fill(behind[:, None], -1)
    weights = weights.masked_fill(ids < 0, 0.0)
    return (rows, scales[0]) if scales else rows, ids.long(), weights


def _roomy(one: Tensor, room: int) -> Tensor:
    if one.shape[0] > room:
        return one[:room]
    whole = one.new_zeros((room, *one.shape[1:]))
    whole[: one.shape[0]] = one
    return whole
