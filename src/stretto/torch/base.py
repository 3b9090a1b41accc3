"""What a process group is, whatever is called: its ranks, names, fallback and end.

The verbs of c10d are in `group`; each is handed to `_do` here, which runs it now, or
starts it on the CPU's queue or a stream of the GPU, or leaves it to the fallback.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from stretto.errors import MissingExtraError
from stretto.program import collectives
from stretto.runtime.calls import lacks, start_precompiling
from stretto.runtime.choice.beside import Beside
from stretto.torch import native, registry
from stretto.torch.call_queue import CallQueue
from stretto.torch.call_streams import SHORT, CallStreams, is_aside
from stretto.torch.fallback import other_backends, refuse_to_vary, say_once
from stretto.torch.faults import both_families, refusal
from stretto.torch.known_places import KnownPlaces
from stretto.torch.marks import note_marks
from stretto.torch.meeting import elsewhere, meet, seconds
from stretto.torch.options import Options
from stretto.torch.standins import GoneCommunicator, PinnedCommunicator, pins_of
from stretto.torch.transfers import GroupTransfers
from stretto.torch.untraced import untraced
from stretto.torch.works import Done

profiling = torch.autograd._profiler_enabled


@untraced
class GroupBase(dist.ProcessGroup):  # type: ignore[misc]
    """The ranks of a group, as torch.distributed sees them, but for the verbs."""

    def __init__(self, opts: Any, options: Options | None = None) -> None:
        """Meet the other ranks, by the store (collective)."""
        note_marks()
        rank, size = opts.group_rank, opts.group_size
        self._begin = native.init(self, rank, size)
        if options is None:
            options = Options()
        elif not isinstance(options, Options):
            raise refusal(
                f"pg_options is a {type(options).__name__}; want stretto.torch.Options"
            )
        first = os.environ.get("LOCAL_RANK") or str(rank)  # one of a host
        if first == "0" and torch.cuda.is_available():
            start_precompiling(int(size), *([] if self._begin else ["--torch"]))
        self._rank, self._size = int(rank), int(size)
        self._name, self._desc = str(opts.group_id), "undefined"
        self._store = opts.store
        limit = seconds(opts.timeout) or 1800.0
        self._queue = CallQueue(self._name)
        self._lock = self._queue.lock
        self._calls = self._queue.calls
        _groups.add(self)
        self._comm: Any = GoneCommunicator(f"group {self._name!r} was not made")
        self._elsewhere = elsewhere[0] if elsewhere else None
        with both_families():
            if self._elsewhere is not None:
                comm, store = self._elsewhere.join(self, opts, limit), opts.store
            else:
                comm, store = meet(opts.store, rank, size, limit)
        alone, hear = self._elsewhere is not None, self._take_timeout
        self._fallback = other_backends(
            self, comm, store, opts.timeout, hear, alone=alone
        )
        if options.bits is not None:
            comm.bits = options.bits
        self._no_gpu: str | None = lacks(comm, "cuda") or None
        """Why calls on GPUs go to the fallback, if they do."""
        self._communicator = comm
        self._stand_in: Any = None
        self._covered: tuple[Any, Any, dict[Any, Any]] = (None, None, {})
        self._known_places = KnownPlaces(comm)
        self._last_pins: tuple[Any, Mapping[str, Any], Any] | None = None
        self._pin = Beside(options.max_blocks or 0)
        self._short = 0 if options.max_blocks else SHORT
        named = dict(options.algorithms)
        self._use(PinnedCommunicator(comm, named) if named else comm, named)
        registry.bind(self._name, comm, self._queue)
        self._streams = CallStreams(self._hear)
        ours = "stretto" if self._elsewhere is not None else options.transfers
        self._transfers = GroupTransfers(lambda: self._comm, ours)

    def _hear(self) -> None:
        self._comm.check()

    def _use(self, comm: Any, named: Mapping[str, Any] | None = None) -> None:
        """Let this be what calls are made on: the communicator, or what stands for it.

        Calls are known by their places where it is the communicator itself. `named`
        are its algorithms; what is started without a name has few blocks on GPUs.
        """
        self._comm = self._beside = comm
        own = comm is self._communicator
        if type(comm) is not GoneCommunicator:
            calm = dict.fromkeys(collectives.names(), self._pin)
            self._beside = PinnedCommunicator(
                self._communicator, {**calm, **(named or {})}
            )
        self._places: dict[Any, Any] = self._known_places.calls if own else {}

    def stand_in(self, other: Any) -> Any:
        """Let something answer calls in the communicator's place; None: nothing does.

        Return what did before.
        """
        with self._lock:
            self._queue.finish()
            before, self._stand_in = self._stand_in, other
            if before is None:
                self._covered = self._comm, self._beside, self._places
            if other is None:
                self._comm, self._beside, self._places = self._covered
            else:
                self._comm, self._beside, self._places = other, other, {}
        return before

    def seat(self, rank: int, size: int, members: Sequence[int]) -> None:
        """Be this rank of the group from now on, among these of the world."""
        self._rank, self._size = rank, size
        ranks = dist.distributed_c10d._world.pg_group_ranks.get(self)
        if ranks is not None:
            ranks.clear()
            ranks.update({world: i for i, world in enumerate(members)})

    @contextlib.contextmanager
    def pinned(self, algorithms: Mapping[str, Any]) -> Iterator[None]:
        """Let this thread's calls be run by named algorithms, by collective."""
        with self._lock:
            before = self._comm, self._beside, self._places
            if (
                self._communicator is not None
                and type(before[0]) is not GoneCommunicator
            ):
                last = self._last_pins
                if last is None or last[0] is not before[0] or last[1] != algorithms:
                    named = dict(Options(algorithms=algorithms).algorithms)
                    made = (
                        PinnedCommunicator(before[0], named),
                        PinnedCommunicator(before[1], named),
                    )
                    last = self._last_pins = before[0], named, made
                (self._comm, self._beside), self._places = last[2], {}
            try:
                yield
            finally:
                self._comm, self._beside, self._places = before

    def pins(self, *, started: bool) -> dict[str, Any]:
        """Return what algorithms calls are to have, by collective."""
        return pins_of(self._beside if started else self._comm)

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
        beside = on_gpu and (not wait or is_aside(tensors))
        comm = self._beside if beside else self._comm
        run: Callable[[], None] = functools.partial(call, comm, *args)
        if profiling():
            run = functools.partial(_recorded, f"stretto:{call.__name__}", run)
        found = tensors if results is None else list(results)
        if type(self._comm) is GoneCommunicator:
            self._comm.refuse()
        if not wait and not on_gpu:
            return self._queue.start(run, found)
        try:
            with self._lock, both_families():
                if self._calls:
                    self._queue.finish()
                if wait:
                    run()
                    return None
                return self._streams.start(run, tensors, found)
        except MissingExtraError as e:
            if not on_gpu:
                raise
            self._no_gpu = str(e)
            return self._pass_on(again, first.device)

    def _leave(self, tensor: Any) -> bool:
        """Return whether a call on such a tensor is left to the fallback."""
        if tensor.layout is not torch.strided:
            return True
        return not tensor.is_cpu and (self._no_gpu is not None or not tensor.is_cuda)

    def _pass_on(self, again: tuple[Any, ...], device: Any, *, say: bool = True) -> Any:
        """Call the fallback; say so once."""
        if type(self._comm) is GoneCommunicator:
            self._comm.refuse()
        refuse_to_vary(again[0], self._communicator)
        if say:
            on_gpu = torch.device(device).type == "cuda"
            why = self._no_gpu if on_gpu else None
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
        registry.forget(self._name)
        registry.bind(name, self._communicator, self._queue)
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
        if limit is not None:
            self._communicator.deadline_s = limit

    def shutdown(self) -> None:
        """End the group: run what was started, and leave the others."""
        self._streams.synchronize()
        self._close(f"group {self._name!r} was destroyed; make a new one")

    def abort(self) -> None:
        """End the group, whatever goes on in it."""
        why = f"group {self._name!r} was aborted; make a new one"
        self._queue.discard(refusal(why))
        self._close(why)

    def _close(self, why: str) -> None:
        if isinstance(self._comm, GoneCommunicator):
            return
        registry.forget(self._name)
        try:
            self._queue.close()
        finally:
            self._use(GoneCommunicator(why))
            if self._elsewhere is not None:
                self._elsewhere.leave(self)
            self._communicator.close()
            self._fallback.close()
            super().shutdown()

    def _forget(self) -> None:
        """Be of no use in a forked child: the ranks that met are the parent's."""
        if isinstance(self._comm, GoneCommunicator):
            return
        registry.forget(self._name)
        why = (
            f"group {self._name!r} belongs to the process that this one was forked "
            f"from; make a group in the child"
        )
        self._queue.forget(refusal(why))
        self._use(GoneCommunicator(why))


def _recorded(name: str, run: Callable[[], None]) -> None:
    with torch.autograd.profiler.record_function(name):
        run()


_GRACE_S = 5.0
"""How long a process that ends waits for calls that it has started."""
_groups: weakref.WeakSet[GroupBase] = weakref.WeakSet()
"""All that exist, also what was destroyed and is not collected yet."""
_kept: list[GroupBase] = []
"""In a forked child, the parent's: Gloo's destructor waits for threads of the parent,
so there nothing of them is ever collected."""


def groups_here() -> list[GroupBase]:
    """Return the groups of this process that are open."""
    every = list(_groups)
    return [g for g in every if type(g._comm) is not GoneCommunicator]


@atexit.register
def _end_all() -> None:
    """Close groups that were not destroyed, before the interpreter ends."""
    for group in list(_groups):
        if not isinstance(group._comm, GoneCommunicator):
            with contextlib.suppress(Exception):  # the others may be gone
                group._queue.leave(_GRACE_S)


def _keep_all() -> None:
    _kept.extend(_groups)


def _forget_all() -> None:
    for group in _kept:
        group._forget()


os.register_at_fork(
    before=_keep_all, after_in_parent=_kept.clear, after_in_child=_forget_all
)
