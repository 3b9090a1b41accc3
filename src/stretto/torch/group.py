"""A process group of torch.distributed whose collectives are stretto's.

One class for every device: CPU and CUDA tensors take the same way. A call that may
block (`opts.asyncOp` is False) runs in the caller's thread and returns None. Others
return a Work: on the CPU one of the group's line, on GPUs one of its streams.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import weakref
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from stretto.errors import CallError, MissingExtraError, StrettoError
from stretto.runtime import Communicator
from stretto.torch import calls, groups
from stretto.torch.fallback import Fallback, say_once
from stretto.torch.faults import as_torch, both_families, refusal
from stretto.torch.lanes import Lanes
from stretto.torch.line import Line
from stretto.torch.meeting import meet, seconds
from stretto.torch.options import OPERATORS, Options, given, operator_of
from stretto.torch.transfers import Transfers
from stretto.torch.works import Done

__all__ = ["StrettoGroup", "create"]

_profiling = torch.autograd._profiler_enabled


def create(opts: Any, options: Any) -> StrettoGroup:
    """Make a group, for `torch.distributed`, which calls this (collective)."""
    return StrettoGroup(opts, options)


class StrettoGroup(dist.ProcessGroup):  # type: ignore[misc]
    """The ranks of a group, as torch.distributed sees them."""

    def __init__(self, opts: Any, options: Options | None = None) -> None:
        """Meet the other ranks, by the store (collective)."""
        rank, size = opts.group_rank, opts.group_size
        super().__init__(rank, size)
        if options is None:
            options = Options()
        elif not isinstance(options, Options):
            raise refusal(
                f"pg_options is a {type(options).__name__}; want stretto.torch.Options"
            )
        self._rank, self._size = int(rank), int(size)
        self._name, self._desc = str(opts.group_id), "undefined"
        self._store = opts.store
        limit = seconds(opts.timeout) or 1800.0
        self._line = Line(self._name)
        self._lock = self._line.lock
        self._calls = self._line.calls
        self._fallback = Fallback(self, opts.store, opts.timeout, self._take_timeout)
        with both_families():
            comm = meet(opts.store, rank, size, limit)
        self._away: str | None = None
        """Why all calls go to the fallback, if they do."""
        self._no_gpu: str | None = None
        """Why those on GPUs do."""
        self._communicator = comm
        if comm is None:
            self._away = "the ranks are on several hosts, which stretto does not join"
            self._comm: Any = _Gone(f"group {self._name!r}: {self._away}")
        else:
            self._comm = _Pinned(comm, options) if options.algorithms else comm
            groups.bind(self._name, comm)
        self._lanes = Lanes(self._hear)
        self._transfers = Transfers(self._comm, options.transfers)
        _living.add(self)

    def _hear(self) -> None:
        self._comm.check()

    # Collectives that combine.

    def allreduce(
        self, tensors: Any, opts: Any = None, *, op: Any = None, timeout: Any = None
    ) -> Any:
        """Combine everybody's tensor, in place."""
        try:
            (tensor,) = tensors
            name = OPERATORS[hash(opts.reduceOp)]
            wait = not opts.asyncOp
        except (AttributeError, IndexError, TypeError, ValueError):
            return self._all_reduce_rarely(tensors, given(opts, reduceOp=op))
        if wait and not _profiling():
            with self._lock:
                if self._calls:
                    self._line.finish()
                try:
                    self._comm.all_reduce(tensor, name)
                    return None
                except (CallError, MissingExtraError):
                    pass  # copied, or left to others, if that helps
                except StrettoError as e:
                    raise as_torch(e) from e.__cause__
        again = "allreduce", tensors, opts
        return self._do(again, opts, tensors, calls.all_reduce, tensor, name)

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
        if self._away is not None:
            return self._pass_on(("barrier", opts), self._fallback.devices[-1])
        limit = seconds(opts.timeout)
        run = functools.partial(self._run_barrier, limit)
        if torch.cuda.is_initialized() and not torch.cuda.is_current_stream_capturing():
            self._lanes.synchronize()
            where = opts.device
            on_gpu = where is not None and torch.device(where).type == "cuda"
            torch.cuda.current_stream(where if on_gpu else None).synchronize()
        elif opts.asyncOp:
            return self._line.start(run, [])
        with self._lock, both_families():
            self._line.finish()
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
        if self._away is None and self._transfers.serve(tensor, tag):
            return self._transfers.send(tensor, dst)
        return self._transfers.send_by(self._pass_on, tensor, dst, tag)

    def recv(self, tensors: Any, src: int, tag: int = 0) -> Any:
        """Start to receive a tensor."""
        (tensor,) = tensors
        if self._away is None and self._transfers.serve(tensor, tag):
            return self._transfers.recv(tensor, src)
        return self._transfers.recv_by(self._pass_on, "recv", tensor, src, tag)

    def recv_anysource(self, tensors: Any, tag: int = 0) -> Any:
        """Start to receive what comes first."""
        (tensor,) = tensors
        if self._away is None:
            self._transfers.check_any_source(tensor)
        return self._transfers.recv_by(self._pass_on, "recv_anysource", tensor, tag)

    recvAnysource = recv_anysource  # noqa: N815 - C++ calls it so

    def _start_coalescing(self, device: Any) -> None:
        """Begin to make calls that are waited for at once: each runs as it comes."""

    def _end_coalescing(self, device: Any) -> Any:
        """Return what all calls since `_start_coalescing` are waited for by."""
        if torch.device(device).type == "cuda":
            return self._lanes.start(lambda: None, [torch.empty(0, device=device)])
        return self._line.start(lambda: None, [])

    # How a call is run.

    def _do(
        self,
        again: tuple[Any, ...],
        opts: Any,
        tensors: list[Any],
        call: Callable[..., None],
        *args: Any,
        results: Sequence[Any] | None = None,
    ) -> Any:
        """Run a call now, or start it; `again` is how a fallback is called."""
        wait = not opts.asyncOp
        if not tensors:
            return None if wait else Done()
        first = tensors[0]
        on_gpu = first.is_cuda
        if self._leave(first):
            return self._pass_on(again, first.device)
        run: Callable[[], None] = functools.partial(call, self._comm, *args)
        if _profiling():
            run = functools.partial(_recorded, f"stretto:{call.__name__}", run)
        found = tensors if results is None else list(results)
        if type(self._comm) is _Gone:
            self._comm.refuse()
        if not wait and not on_gpu:
            return self._line.start(run, found)
        try:
            with self._lock, both_families():
                if self._calls:
                    self._line.finish()
                if wait:
                    run()
                    return None
                return self._lanes.start(run, tensors, found)
        except MissingExtraError as e:
            if not on_gpu:
                raise
            self._no_gpu = str(e)
            return self._pass_on(again, first.device)

    def _leave(self, tensor: Any) -> bool:
        """Return whether a call on such a tensor is left to the fallback."""
        if self._away is not None or tensor.layout is not torch.strided:
            return True
        return not tensor.is_cpu and (self._no_gpu is not None or not tensor.is_cuda)

    def _pass_on(self, again: tuple[Any, ...], device: Any, *, say: bool = True) -> Any:
        """Call the fallback; say so once."""
        if type(self._comm) is _Gone and self._away is None:
            self._comm.refuse()
        if say:
            on_gpu = torch.device(device).type == "cuda"
            why = self._away or (self._no_gpu if on_gpu else None)
            name = "NCCL" if on_gpu else "Gloo"
            say_once(again[0], f"by {name}: {why or 'tensors that are not dense'}")
        return self._fallback.call(again[0], device, *again[1:])

    # Names, sizes, the store.

    def rank(self) -> int:
        """Return this process's number in the group."""
        return self._rank

    def size(self) -> int:
        """Return how many processes there are in the group."""
        return self._size

    getRank, getSize = rank, size  # noqa: N815 - C++ calls them so

    def getBackendName(self) -> str:  # noqa: N802
        """Return the backend's name."""
        return "stretto"

    name = _get_backend_name = getBackendName

    def getGroupName(self) -> str:  # noqa: N802
        """Return the group's name."""
        return self._name

    def setGroupName(self, name: str) -> None:  # noqa: N802
        """Take a name, which stands for the communicator from now on."""
        if name == self._name:
            return
        if self._communicator is not None:
            groups.forget(self._name)
            groups.bind(name, self._communicator)
        self._name = name

    _set_group_name = setGroupName

    def getGroupDesc(self) -> str:  # noqa: N802
        """Return what the group is for."""
        return self._desc

    def setGroupDesc(self, desc: str) -> None:  # noqa: N802
        """Take what the group is for."""
        self._desc = desc

    _set_group_desc = setGroupDesc
    group_name = property(getGroupName)
    group_desc = property(getGroupDesc)

    def get_group_store(self) -> Any:
        """Return the group's store."""
        return self._store

    getStore = get_group_store  # noqa: N815

    @property
    def _device_types(self) -> list[Any]:
        """Return the types of devices that the group serves."""
        return list(self._fallback.devices)

    def _get_backend(self, device: Any) -> Any:
        """Return the fallback for a device: torch asks it for what we do not have."""
        return self._fallback.backend(device)

    # Time-outs and the end.

    def set_timeout(self, timeout: timedelta) -> None:
        """Take how long a late rank is waited for."""
        self._fallback.backend("cpu")._set_default_timeout(timeout)

    setTimeout = set_timeout  # noqa: N815

    def _take_timeout(self, timeout: timedelta) -> None:
        limit = seconds(timeout)
        self._fallback.take_timeout(timeout)
        if limit is not None and self._communicator is not None:
            self._communicator.deadline_s = limit

    def shutdown(self) -> None:
        """End the group: run what was started, and leave the others."""
        self._lanes.synchronize()
        self._close(f"group {self._name!r} was destroyed; make a new one")

    def abort(self) -> None:
        """End the group, whatever goes on in it."""
        why = f"group {self._name!r} was aborted; make a new one"
        self._line.discard(refusal(why))
        self._close(why)

    def _close(self, why: str) -> None:
        if isinstance(self._comm, _Gone):
            return
        groups.forget(self._name)
        try:
            self._line.close()
        finally:
            self._comm = _Gone(why)
            if self._communicator is not None:
                self._communicator.close()
            self._fallback.close()
            super().shutdown()
            _living.discard(self)

    def _forget(self) -> None:
        """Be of no use in a forked child: the ranks that met are the parent's."""
        groups.forget(self._name)
        self._comm = _Gone(
            f"group {self._name!r} belongs to the process that this one was forked "
            f"from; make a group in the child"
        )


class _Gone:
    """What stands where a communicator was: every use says why it is gone."""

    def __init__(self, why: str) -> None:
        self._why = why

    def __getattr__(self, name: str) -> Any:
        """Raise, whatever is asked."""
        self.refuse()

    def refuse(self) -> None:
        """Raise that nothing can be called here."""
        raise refusal(self._why)


class _Pinned:
    """A communicator whose collectives are run by algorithms that the user names."""

    def __init__(self, comm: Communicator, options: Options) -> None:
        self._comm = comm
        for verb, algorithm in options.algorithms.items():
            for form in (verb, f"{verb}_v"):
                method = getattr(comm, form, None)
                if method is not None:
                    setattr(self, form, functools.partial(method, algorithm=algorithm))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._comm, name)


def _each_list(comm: Any, columns: Sequence[Sequence[Any]], ins: Sequence[Any]) -> None:
    for outs, x in zip(columns, ins, strict=True):
        calls.all_gather(comm, outs, x)


_each_list.__name__ = "all_gather"


def _recorded(name: str, run: Callable[[], None]) -> None:
    with torch.autograd.profiler.record_function(name):
        run()


def _listed(tensors: Any) -> list[Any]:
    return [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)


def _one(tensors: Sequence[Any]) -> Sequence[Any]:
    if len(tensors) != 1:
        raise refusal(f"{len(tensors)} tensors; want one: each rank has one device")
    return tensors


_GRACE_S = 5.0
"""How long a process that ends waits for calls that it has started."""
_living: weakref.WeakSet[StrettoGroup] = weakref.WeakSet()


@atexit.register
def _end_all() -> None:
    """Close groups that were not destroyed, before the interpreter ends."""
    for group in list(_living):
        with contextlib.suppress(Exception):  # the others may be gone
            group._line.leave(_GRACE_S)


def _forget_all() -> None:
    for group in list(_living):
        group._forget()
    _living.clear()


os.register_at_fork(after_in_child=_forget_all)
