"""Send and receive: who does it, for which tensors.

A sender does not know whether the receiver asks for any source, so all transfers of one
kind go one way. On GPUs they are stretto's: NCCL, too, knows neither tags nor any
source. On the CPU they are Gloo's, unless the group's options say otherwise.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from stretto.torch.fallback import say_once
from stretto.torch.faults import both_families, refusal
from stretto.torch.meeting import seconds
from stretto.torch.standins import Alone
from stretto.torch.untraced import untraced
from stretto.torch.works import Chained, GroupWork

PassOn = Callable[..., Any]


class GroupTransfers:
    """The transfers of one group."""

    def __init__(self, comm: Callable[[], Any], who: str) -> None:
        self._comm = comm
        self._ours = who == "stretto"

    def serve(self, tensor: Any, tag: int) -> bool:
        """Return whether a transfer of this tensor is ours; both sides agree."""
        if tensor.is_cuda or self.are_answered:
            return True
        return self._ours and tag == 0 and tensor.is_cpu

    @property
    def are_answered(self) -> bool:
        """Whether nobody else takes part in them."""
        return isinstance(self._comm(), Alone)

    def check_any_source(self, tensor: Any) -> None:
        """Raise when what comes from any source cannot be received."""
        if tensor.is_cuda or self._ours:
            where = "on a GPU" if tensor.is_cuda else 'with transfers="stretto"'
            raise refusal(f"recv from any source, {where}; want a source that is named")

    def send(self, tensor: Any, dst: int) -> Any:
        """Start to send."""
        x = tensor.detach().resolve_conj().resolve_neg().contiguous()
        with both_families():
            return StartedTransfer(self._comm().send_async(x, dst), [x])

    def recv(self, tensor: Any, src: int) -> Any:
        """Start to receive."""
        mine = tensor.detach()
        out = (
            mine
            if mine.is_contiguous()
            else torch.empty_like(mine, memory_format=torch.contiguous_format)
        )
        with both_families():
            work = StartedTransfer(self._comm().recv_async(out, src), [out], source=src)
        return work if out is mine else Chained(work, lambda: mine.copy_(out))

    def send_by(self, pass_on: PassOn, tensor: Any, dst: int, tag: int) -> Any:
        """Let the fallback send."""
        self._say("send", tensor)
        x = tensor.detach().resolve_conj().resolve_neg().contiguous()
        return pass_on(("send", [x], dst, tag), tensor.device, say=False)

    def recv_by(self, pass_on: PassOn, verb: str, tensor: Any, *args: int) -> Any:
        """Let the fallback receive."""
        self._say(verb, tensor)
        mine = tensor.detach()
        if mine.is_contiguous():
            return pass_on((verb, [mine], *args), tensor.device, say=False)
        out = torch.empty_like(mine, memory_format=torch.contiguous_format)
        work = pass_on((verb, [out], *args), tensor.device, say=False)
        return Chained(work, lambda: mine.copy_(out))

    def _say(self, verb: str, tensor: Any) -> None:
        if tensor.is_cpu:
            text = "by Gloo, which knows tags and any source"
            say_once(verb, text, level=logging.INFO)


@untraced
class StartedTransfer(GroupWork):
    """A transfer by the communicator that was started."""

    def __init__(self, work: Any, tensors: list[Any], *, source: int = -1) -> None:
        dist.Work.__init__(self)
        self._work = work
        self._tensors = tensors
        self._source = source

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Return when it has ended; on GPUs the caller's stream waits instead."""
        limit = seconds(timeout) if timeout else None
        with both_families():
            self._work.wait(limit)
        return True

    def is_completed(self) -> bool:
        """Return whether it has ended, well or not."""
        return bool(self._work.is_done)

    def get_future(self) -> Any:
        """Return a Future that is completed when the transfer is waited for: now."""
        self.wait()
        device = self._tensors[0].device
        devices = [device] if device.type == "cuda" else []
        future = torch.futures.Future(devices=devices)
        future.set_result(list(self._tensors))
        return future

    def source_rank(self) -> int:
        """Return who sent."""
        return self._source
