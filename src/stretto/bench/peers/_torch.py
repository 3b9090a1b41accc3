"""What the peers inside PyTorch share: a process group's calls on tensors."""

from __future__ import annotations

import importlib.util
from functools import partial
from pathlib import Path
from typing import Any

from stretto.bench.contender import CallBuffer, Contender, PreparedCall, Setup
from stretto.bench.timing import Call, in_turn
from stretto.bench.workload.cases import WINDOW, CallCase
from stretto.errors import CallError, MissingExtraError

_UNSIGNED = ("uint16", "uint32", "uint64")


def require_torch() -> Any:
    """Return PyTorch."""
    if importlib.util.find_spec("torch") is None:
        raise MissingExtraError("no PyTorch: pip install torch")
    import torch

    return torch


def start_group(setup: Setup, backend: str, name: str) -> Any:
    """Return a new process group of all ranks (collective)."""
    require_torch()
    import torch.distributed as dist

    if not dist.is_available() or not dist.is_backend_available(backend):
        raise MissingExtraError(f"this PyTorch was built without {backend}")
    if not dist.is_initialized():
        meet = Path(setup.meet) / f"torch-{name}"
        dist.init_process_group(
            backend,
            init_method=f"file://{meet}",
            rank=setup.rank,
            world_size=setup.num_ranks,
        )
        return dist.group.WORLD
    return dist.new_group(backend=backend)


def as_tensor(buffer: CallBuffer, dtype: str) -> Any:
    """Return a buffer's memory as a tensor."""
    if buffer.tensor is not None:
        return buffer.tensor
    torch = require_torch()
    if buffer.host is None:
        raise CallError("memory on a GPU that is no tensor's; want --buffer torch")
    if dtype == "bfloat16":
        return torch.from_numpy(buffer.host).view(torch.bfloat16)
    if dtype in _UNSIGNED:
        raise CallError(f"PyTorch does not combine {dtype}")
    return torch.from_numpy(buffer.host)


class TorchPeer(Contender):
    """A process group. PyTorch reduces in place, so there its input is its output."""

    NEEDS = ("torch", "pip install torch")

    def __init__(self, group: Any, *, settle: Call | None = None) -> None:
        import torch.distributed as dist

        self._dist, self._group, self._settle = dist, group, settle
        self._rank = dist.get_rank(group)

    def prepare(self, case: CallCase, x: CallBuffer, out: CallBuffer) -> PreparedCall:
        """Bind a case to buffers."""
        note = ""
        if case.collective in ("all_reduce", "reduce") and x is not out:
            out, note = x, "in place"
        source, target = (as_tensor(b, case.dtype) for b in (x, out))
        call = self._call(case, source, target)
        return PreparedCall(call=call, x=x, out=out, note=note, settle=self._settle)

    def start(self, case: CallCase, x: CallBuffer, out: CallBuffer) -> Call:
        """Return what starts a call and gives its work."""
        call = self.prepare(case, x, out).call
        if isinstance(call, partial):
            return partial(call, async_op=True)
        raise CallError(f"PyTorch starts no {case.test}")

    def close(self) -> None:
        """End the group."""
        if self._dist.is_initialized() and self._group is self._dist.group.WORLD:
            self._dist.destroy_process_group()

    def _op(self, case: CallCase) -> Any:
        names = {"prod": "PRODUCT"}
        return getattr(self._dist.ReduceOp, names.get(case.op, case.op.upper()))

    def _call(self, case: CallCase, x: Any, out: Any) -> Call:
        dist, group = self._dist, self._group
        match case.collective:
            case "p2p":
                return self._between(case, x, out)
            case "barrier":
                return partial(dist.barrier, group=group)
            case "all_reduce":
                return partial(dist.all_reduce, x, op=self._op(case), group=group)
            case "reduce":
                op = self._op(case)
                return partial(dist.reduce, x, dst=case.root, op=op, group=group)
            case "broadcast":
                return partial(dist.broadcast, out, src=case.root, group=group)
            case "all_to_all":
                return self._all_to_all(case, x, out)
            case "permute":
                return self._permute(case, x, out)
        if case.unequal:
            raise CallError(f"PyTorch has no {case.test}")
        match case.collective:
            case "all_gather":
                return partial(dist.all_gather_into_tensor, out, x, group=group)
            case "reduce_scatter":
                op = self._op(case)
                return partial(dist.reduce_scatter_tensor, out, x, op=op, group=group)
            case "gather":
                parts = list(out.chunk(case.num_ranks)) if out.numel() else None
                return partial(dist.gather, x, parts, dst=case.root, group=group)
            case "scatter":
                parts = list(x.chunk(case.num_ranks)) if x.numel() else None
                return partial(dist.scatter, out, parts, src=case.root, group=group)
        raise CallError(f"PyTorch has no {case.test}")

    def _all_to_all(self, case: CallCase, x: Any, out: Any) -> Call:
        single, group = self._dist.all_to_all_single, self._group
        if not case.unequal:
            return partial(single, out, x, group=group)
        matrix = case.matrix()
        receives, sends = matrix[:, self._rank].tolist(), matrix[self._rank].tolist()
        return partial(single, out, x, receives, sends, group=group)

    def _permute(self, case: CallCase, x: Any, out: Any) -> Call:
        dist, n, rank = self._dist, case.num_ranks, self._rank
        transfers = [
            dist.P2POp(dist.isend, x, (rank + 1) % n, self._group),
            dist.P2POp(dist.irecv, out, (rank - 1) % n, self._group),
        ]

        def call() -> None:
            for work in dist.batch_isend_irecv(transfers):
                work.wait()

        return call

    def _between(self, case: CallCase, x: Any, out: Any) -> Call:
        dist, group, rank = self._dist, self._group, self._rank
        side = case.side(rank)
        if side is None:
            return lambda: None
        peer, first = side
        if case.test in ("bw", "bibw"):
            return self._window(peer, x, out, first, both=case.test == "bibw")
        send = partial(dist.send, x, peer, group=group)
        recv = partial(dist.recv, out, peer, group=group)
        return in_turn(send, recv) if first else in_turn(recv, send)

    def _window(self, peer: int, x: Any, out: Any, first: bool, *, both: bool) -> Call:
        dist, group = self._dist, self._group
        ack = x.new_zeros(1)

        def call() -> None:
            started = []
            if first or both:
                started += [dist.isend(x, peer, group=group) for _ in range(WINDOW)]
            if not first or both:
                started += [dist.irecv(out, peer, group=group) for _ in range(WINDOW)]
            for work in started:
                work.wait()
            if first:
                dist.recv(ack, peer, group=group)
            else:
                dist.send(ack, peer, group=group)

        return call
