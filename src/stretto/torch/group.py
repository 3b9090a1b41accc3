"""A process group of torch.distributed whose collectives are stretto's.

One class for every device: CPU and CUDA tensors take the same way. A call that may
block (`opts.asyncOp` is False) runs in the caller's thread and returns None. Others
return a Work: on the CPU one of the group's queue, on GPUs one of its streams.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch

from stretto.errors import CallError, MissingExtraError, StrettoError
from stretto.torch import calls
from stretto.torch.base import GroupBase, profiling
from stretto.torch.call_streams import in_order
from stretto.torch.faults import as_torch, both_families, refusal
from stretto.torch.known_places import STARTED
from stretto.torch.meeting import seconds
from stretto.torch.options import OPERATORS, given, operator_of
from stretto.torch.untraced import untraced
from stretto.torch.works import Done


def create(opts: Any, options: Any) -> StrettoGroup:
    """Make a group, for `torch.distributed`, which calls this (collective)."""
    return StrettoGroup(opts, options)


@untraced
class StrettoGroup(GroupBase):
    """The ranks of a group, as torch.distributed sees them."""

    # Collectives that combine.

    def allreduce(
        self, tensors: Any, opts: Any = None, *, op: Any = None, timeout: Any = None
    ) -> Any:
        """Combine everybody's tensor, in place."""
        again, places = None, self._places
        try:
            (tensor,) = tensors
            number, wait = hash(opts.reduceOp), not opts.asyncOp
            # Told by what is asked alone: all ranks are to take the same stream.
            now = wait or (tensor.is_cuda and tensor.nbytes <= self._short)
            if now and places and not self._calls:
                again = places.get((tensor.data_ptr(), number))
            name = OPERATORS[number]
        except (AttributeError, IndexError, RuntimeError, TypeError, ValueError):
            return self._all_reduce_rarely(tensors, given(opts, reduceOp=op))
        if not now and tensor.is_cuda and not profiling():
            if self._begin is not None:
                work = self._begin(self, tensor, number)
                if work is not None:
                    return work
            return self._start_all_reduce(tensor, number, opts)
        if now and not profiling():
            try:
                if again is not None and again(tensor):
                    return None if wait else in_order([tensor])
                with self._lock:
                    if self._calls:
                        self._queue.finish()
                    self._comm.all_reduce(tensor, name)
                    if tensor.is_cuda:
                        self._known_places.learn(tensor, number)
                return None if wait else in_order([tensor])
            except (CallError, MissingExtraError):
                pass  # copied, or left to others, if that helps
            except StrettoError as e:
                raise as_torch(e) from e.__cause__
        again = "allreduce", tensors, opts
        return self._do(again, opts, tensors, calls.all_reduce, tensor, name)

    def _start_all_reduce(self, tensor: Any, number: int, opts: Any) -> Any:
        """Start a sum on a GPU: known by its place, as one that blocks is."""
        again = self._places.get((tensor.data_ptr(), STARTED + number))
        name, streams = OPERATORS[number], self._streams
        try:
            with self._lock:
                if self._calls:
                    self._queue.finish()
                if again is not None:
                    work = streams.repeat(again, tensor)
                    if work is not None:
                        return work
                call = functools.partial(self._beside.all_reduce, tensor, name)
                work = streams.beside(call, [tensor])
                if not work.captured:
                    side = streams.side_of(tensor)
                    self._known_places.learn(tensor, number, self._pin, side)
                return work
        except (CallError, MissingExtraError):  # copied, or left to others
            known = "allreduce", [tensor], opts
            return self._do(known, opts, [tensor], calls.all_reduce, tensor, name)
        except StrettoError as e:
            raise as_torch(e) from e.__cause__

    def _all_reduce_rarely(self, tensors: Any, opts: Any) -> Any:
        tensors = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
        again, op = ("allreduce", tensors, opts), operator_of(opts.reduceOp)
        return self._do(again, opts, tensors, calls.all_reduce_each, tensors, op)

    def allreduce_coalesced(self, tensors: Any, opts: Any = None) -> Any:
        """Combine everybody's tensors, in place."""
        opts, tensors = given(opts), list(tensors)
        again, op = ("allreduce_coalesced", tensors, opts), operator_of(opts.reduceOp)
        return self._do(again, opts, tensors, calls.all_reduce_each, tensors, op)

    def reduce(self, tensors: Any, opts: Any = None, op: Any = None, **say: Any) -> Any:
        """Combine everybody's tensor at the root."""
        opts = given(say.get("root", opts), reduceOp=op)
        tensors = _listed(tensors)
        again, op = ("reduce", tensors, opts), operator_of(opts.reduceOp)
        root = opts.rootRank
        return self._do(again, opts, tensors, calls.reduce, *_one(tensors), root, op)

    def reduce_scatter(self, outs: Any, ins: Any, opts: Any = None, **say: Any) -> Any:
        """Combine everybody's lists; rank r gets the r-th tensor."""
        opts = given(say.get("op", opts))
        if isinstance(outs, torch.Tensor):
            outs, ins = [outs], [ins]
        again, op = ("reduce_scatter", outs, ins, opts), operator_of(opts.reduceOp)
        (out,), (parts,) = outs, ins
        held = [out, *parts]
        return self._do(
            again, opts, held, calls.reduce_scatter, out, parts, op, results=[out]
        )

    def reduce_scatter_single(self, out: Any, x: Any, opts: Any = None) -> Any:
        """Combine everybody's tensor; rank r gets the r-th part."""
        opts = given(opts)
        again, op = ("reduce_scatter_single", out, x, opts), operator_of(opts.reduceOp)
        return self._do(
            again,
            opts,
            [out, x],
            calls.reduce_scatter_single,
            out,
            x,
            op,
            results=[out],
        )

    def reduce_scatter_single_coalesced(
        self, outs: Any, ins: Any, opts: Any = None
    ) -> Any:
        """Combine everybody's tensors; rank r gets the r-th part of each."""
        opts, outs, ins = given(opts), list(outs), list(ins)
        again = "reduce_scatter_single_coalesced", outs, ins, opts
        op, call = operator_of(opts.reduceOp), calls.reduce_scatter_each
        return self._do(again, opts, [*outs, *ins], call, outs, ins, op, results=outs)

    # Collectives that move.

    def broadcast(self, tensors: Any, opts: Any = None, **say: Any) -> Any:
        """Give everybody the root's tensor."""
        opts, tensors = given(say.get("root", opts)), _listed(tensors)
        again = "broadcast", tensors, opts
        root = opts.rootRank
        return self._do(again, opts, tensors, calls.broadcast, *_one(tensors), root)

    def allgather(self, outs: Any, ins: Any, opts: Any = None) -> Any:
        """Give everybody everybody's tensor, each in a tensor of a list."""
        opts = given(opts)
        if isinstance(ins, torch.Tensor):
            outs, ins = [outs], [ins]
        again = "allgather", outs, ins, opts
        (mine,), (x,) = outs, ins
        return self._do(
            again, opts, [x, *mine], calls.all_gather, mine, x, results=mine
        )

    def allgather_coalesced(self, outs: Any, ins: Any, opts: Any = None) -> Any:
        """Give everybody everybody's list: that of rank r in `outs[r]`."""
        opts, ins = given(opts), list(ins)
        again = "allgather_coalesced", outs, ins, opts
        columns = [[mine[i] for mine in outs] for i in range(len(ins))]
        flat = [t for mine in outs for t in mine]
        call = _each_list
        return self._do(again, opts, [*ins, *flat], call, columns, ins, results=flat)

    def all_gather_single(self, out: Any, x: Any, opts: Any = None) -> Any:
        """Give everybody everybody's tensor, one after another in one."""
        opts = given(opts)
        again, call = ("all_gather_single", out, x, opts), calls.all_gather_single
        return self._do(again, opts, [out, x], call, out, x, results=[out])

    def all_gather_single_coalesced(self, outs: Any, ins: Any, opts: Any = None) -> Any:
        """Give everybody everybody's tensors, those of one place in one."""
        opts, outs, ins = given(opts), list(outs), list(ins)
        again = "all_gather_single_coalesced", outs, ins, opts
        held, call = [*outs, *ins], calls.all_gather_each
        return self._do(again, opts, held, call, outs, ins, results=outs)

    def gather(self, outs: Any, ins: Any, opts: Any = None, **say: Any) -> Any:
        """Give the root everybody's tensor, each in a tensor of a list."""
        opts = given(say.get("root", opts))
        if isinstance(ins, torch.Tensor):
            outs, ins = [outs] if outs else [], [ins]
        again = "gather", outs, ins, opts
        mine, (x,) = list(outs[0]) if outs else [], ins
        call, root = calls.gather, opts.rootRank
        return self._do(again, opts, [x, *mine], call, mine, x, root, results=mine)

    def scatter(self, outs: Any, ins: Any, opts: Any = None, **say: Any) -> Any:
        """Give rank r the r-th of the root's tensors."""
        opts = given(say.get("root", opts))
        if isinstance(outs, torch.Tensor):
            outs, ins = [outs], [ins] if ins else []
        again = "scatter", outs, ins, opts
        (out,), parts = outs, list(ins[0]) if ins else []
        call, root = calls.scatter, opts.rootRank
        return self._do(
            again, opts, [out, *parts], call, out, parts, root, results=[out]
        )

    def all_to_all_single(
        self, out: Any, x: Any, out_splits: Any, in_splits: Any, opts: Any = None
    ) -> Any:
        """Give rank r its rows of everybody's tensor."""
        opts = given(opts)
        again = "all_to_all_single", out, x, out_splits, in_splits, opts
        args = out, x, out_splits or (), in_splits or ()
        call = calls.all_to_all_single
        return self._do(again, opts, [out, x], call, *args, results=[out])

    def alltoall(self, outs: Any, ins: Any, opts: Any = None) -> Any:
        """Give rank r the r-th of everybody's tensors."""
        opts, outs, ins = given(opts), list(outs), list(ins)
        again, held = ("alltoall", outs, ins, opts), [*outs, *ins]
        return self._do(again, opts, held, calls.all_to_all, outs, ins, results=outs)

    def barrier(self, opts: Any = None, timeout: timedelta | None = None) -> Any:
        """Return when everybody has come, and what was started here has ended."""
        opts = given(opts, timeout=timeout)
        limit = seconds(opts.timeout)
        run = functools.partial(self._run_barrier, limit)
        if torch.cuda.is_initialized() and not torch.cuda.is_current_stream_capturing():
            self._streams.synchronize()
            where = opts.device
            on_gpu = where is not None and torch.device(where).type == "cuda"
            torch.cuda.current_stream(where if on_gpu else None).synchronize()
        elif opts.asyncOp:
            return self._queue.start(run, [])
        with self._lock, both_families():
            self._queue.finish()
            run()
        return Done() if opts.asyncOp else None

    def _run_barrier(self, limit: float | None) -> None:
        comm = self._comm
        if limit is None:
            comm.barrier()
            return
        usual = comm.deadline_s
        comm.deadline_s = limit
        try:
            comm.barrier()
        finally:
            comm.deadline_s = usual

    # Older names, which torch up to 2.12 calls, and C++ up to 2.13.

    _allgather_base = all_gather_single
    _reduce_scatter_base = reduce_scatter_single
    alltoall_base = all_to_all_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    # Between two ranks.

    def send(self, tensors: Any, dst: int, tag: int = 0) -> Any:
        """Start to send a tensor."""
        (tensor,) = tensors
        if self._transfers.serve(tensor, tag):
            return self._transfers.send(tensor, dst)
        return self._transfers.send_by(self._pass_on, tensor, dst, tag)

    def recv(self, tensors: Any, src: int, tag: int = 0) -> Any:
        """Start to receive a tensor."""
        (tensor,) = tensors
        if self._transfers.serve(tensor, tag):
            return self._transfers.recv(tensor, src)
        return self._transfers.recv_by(self._pass_on, "recv", tensor, src, tag)

    def recv_anysource(self, tensors: Any, tag: int = 0) -> Any:
        """Start to receive what comes first."""
        (tensor,) = tensors
        if self._transfers.are_answered:
            return self._transfers.recv(tensor, (self._rank + 1) % self._size)
        self._transfers.check_any_source(tensor)
        return self._transfers.recv_by(self._pass_on, "recv_anysource", tensor, tag)

    recvAnysource = recv_anysource  # noqa: N815 - C++ calls it so

    def _start_coalescing(self, device: Any) -> None:
        """Begin to make calls that are waited for at once: each runs as it comes."""

    def _end_coalescing(self, device: Any) -> Any:
        """Return what all calls since `_start_coalescing` are waited for by."""
        if torch.device(device).type == "cuda":
            return self._streams.all_so_far(device)
        return self._queue.start(lambda: None, [])


def _each_list(comm: Any, columns: Sequence[Sequence[Any]], ins: Sequence[Any]) -> None:
    for outs, x in zip(columns, ins, strict=True):
        calls.all_gather(comm, outs, x)


_each_list.__name__ = "all_gather"


def _listed(tensors: Any) -> list[Any]:
    return [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)


def _one(tensors: Sequence[Any]) -> Sequence[Any]:
    if len(tensors) != 1:
        raise refusal(f"{len(tensors)} tensors; want one: each rank has one device")
    return tensors
