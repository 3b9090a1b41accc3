"""The communicator: the ranks of a group, and what they can do together."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import FunctionType, TracebackType
from typing import Any

from stretto import executors
from stretto.arrays import CPU, GPU
from stretto.errors import CallError
from stretto.executors import Group, Session, comm_of
from stretto.fabric.patience import check_deadline
from stretto.runtime.calls import pacing, repeatable, suspending, verbs
from stretto.runtime.calls.choosing import selector_of
from stretto.runtime.calls.elastic import ElasticRunner
from stretto.runtime.calls.explain import estimate, explain
from stretto.runtime.calls.forms import channels, objects
from stretto.runtime.calls.forms.coalesced import coalesced
from stretto.runtime.calls.hints import argument_hint, attribute_hint
from stretto.runtime.calls.methods import started
from stretto.runtime.calls.options import Elastic
from stretto.runtime.calls.runner import OWNER, Claim
from stretto.runtime.choice.measured import Measured, agree, of_one_rank
from stretto.runtime.choice.rowrules import RowRule
from stretto.trace import Seen, record


class Communicator(ElasticRunner):
    """A group of ranks that call the same things in the same order.

    It takes NumPy arrays, tensors, and anything with DLPack or the buffer protocol.
    Calls block on the CPU and are stream-ordered on the GPU. After a lost peer or a
    timeout it is broken: every later call says so, and outputs are undefined. One
    thread at a time may use it.

    Common to all collectives: `out` receives the result; `algorithm` is a catalogue
    name, with the words of a schedule after it when wanted; `stream` is a GPU stream;
    `dtype` says that raw 16-bit integers are bfloat16, or bytes a float8. With an
    `epilogue` the call returns what that makes of the result, computed in the same
    kernel.

    An algorithm of one's own may be among some ranks, its members: n then counts them.
    All ranks call. Who only passes data on gives an array like the others', which tells
    the size and stays as it is (in the `_v` forms an empty one), and gets None.
    """

    # Each is written once, as a function of a communicator: verbs.py and forms.

    all_reduce = verbs.all_reduce
    all_gather = verbs.all_gather
    reduce_scatter = verbs.reduce_scatter
    all_to_all = verbs.all_to_all
    broadcast = verbs.broadcast
    reduce = verbs.reduce
    gather = verbs.gather
    scatter = verbs.scatter
    permute = verbs.permute
    barrier = verbs.barrier
    all_gather_v = verbs.all_gather_v
    all_to_all_v = verbs.all_to_all_v
    gather_v = verbs.gather_v
    reduce_scatter_v = verbs.reduce_scatter_v
    scatter_v = verbs.scatter_v
    all_reduce_async = started(verbs.all_reduce)
    all_gather_async = started(verbs.all_gather)
    reduce_scatter_async = started(verbs.reduce_scatter)
    all_to_all_async = started(verbs.all_to_all)
    broadcast_async = started(verbs.broadcast)
    reduce_async = started(verbs.reduce)
    gather_async = started(verbs.gather)
    scatter_async = started(verbs.scatter)
    permute_async = started(verbs.permute)
    barrier_async = started(verbs.barrier)
    all_gather_v_async = started(verbs.all_gather_v)
    all_to_all_v_async = started(verbs.all_to_all_v)
    gather_v_async = started(verbs.gather_v)
    reduce_scatter_v_async = started(verbs.reduce_scatter_v)
    scatter_v_async = started(verbs.scatter_v)
    send, send_async = channels.send, channels.send_async
    recv, recv_async = channels.recv, channels.recv_async
    all_gather_object = objects.all_gather_object
    gather_object = objects.gather_object
    broadcast_object = objects.broadcast_object
    scatter_object = objects.scatter_object
    coalesced = coalesced
    estimate = estimate
    explain = explain
    pace = pacing.pace
    repeated = repeatable.repeated
    repeated_in_place = repeatable.repeated_in_place
    repeated_into = repeatable.repeated_into
    memory, suspend, resume = suspending.memory, suspending.suspend, suspending.resume

    def __init__(
        self,
        group: Group,
        *,
        executor: str = CPU,
        profiles: Measured | None = None,
        elastic: Elastic | None = None,
        comes_late: bool = False,
    ) -> None:
        """Open the executor's session (collective), unless the group opens them late.

        What was measured on this machine, rank 0 reads for all. With `elastic` its
        ranks may change; one that `comes_late` joins others that go on.
        """
        self._make_elastic(group, elastic)
        if comes_late:
            profiles, executor = Measured(), ""
        if profiles is None:
            profiles = agree(group) if group.num_ranks > 1 else of_one_rank()
        if group.opens_late:
            executor = ""
        super().__init__(group, executor=executor, profiles=profiles)
        self._channels: dict[tuple[int, int], channels.PairRunner] = {}
        """By sender and receiver."""
        self._pace: Any = None
        """The slots that `pace` keeps to: shift, period and grid."""
        if elastic is not None:
            self._begin_elastic(comes_late=comes_late)

    def __repr__(self) -> str:
        """Return which rank of how many this is, and how it fares."""
        state = "closed" if self._closed else "broken" if self._fault else "ready"
        return f"Communicator(rank={self.rank}, num_ranks={self.num_ranks}, {state})"

    @property
    def deadline_s(self) -> float:
        """How long a rank may keep the others waiting."""
        return self._group.deadline_s

    @deadline_s.setter
    def deadline_s(self, given: float) -> None:
        """Change it, for calls from now on; GPU kernels that are bound keep theirs."""
        self._group.deadline_s = check_deadline(given, f"rank {self.rank}")

    def empty(
        self, shape: int | Sequence[int], dtype: Any = "float32", *, device: str = CPU
    ) -> Any:
        """Return uninitialised registered memory (collective, alike on every rank).

        Calls whose arrays all lie in such memory, at the same place on every rank, are
        zero-copy: peers read and write them directly. bfloat16 comes as raw uint16, a
        float8 as raw uint8.
        """
        given = self._read("empty", shape=shape, dtype=dtype, device=device)
        self._ready("empty")
        session = self._session(given.pop())
        return self._exchanging("empty", lambda: session.empty(*given))

    def _exchanging(self, what: str, work: Callable[[], Any]) -> Any:
        """Be inside, in a method that exchanges parts with the other ranks.

        They are told what exchanges are for, and of what breaks them.
        """
        claim = Claim()
        try:
            self._enter(what, claim)
            try:
                self._group.calling = what
                return work()
            except CallError:
                raise
            except BaseException as e:
                raise self._broke(e) from e.__cause__
            finally:
                self._group.calling = ""
        finally:
            if OWNER in self._inside and self._inside[OWNER] is claim:
                del self._inside[OWNER]
            self._choose_table()

    def channels(
        self,
        nbytes: int,
        *,
        blocks: int = 1,
        device: str = "cuda",
        name: str = "",
    ) -> Any:
        """Return channels to every peer for GPU kernels of your own (collective).

        Every rank gets a buffer of so many bytes, and each of `blocks` blocks a channel
        to the same block of every peer. Errors call what waits in them by `name`. See
        docs/guides/kernels.md.
        """
        nbytes, blocks, device, name = self._read(
            "channels", nbytes=nbytes, blocks=blocks, device=device, name=name
        )
        self._ready("channels")
        session = self._session(device)
        return self._exchanging(
            "channels", lambda: session.channels(nbytes, blocks=blocks, name=name)
        )

    def experts(
        self, num_experts: int, top_k: int, hidden: int, max_tokens: int, **how: Any
    ) -> Any:
        """Return experts on these ranks: dispatch and combine of tokens (collective).

        `how` is as for `stretto.experts.Experts`; see docs/guides/experts.md.
        """
        room = importlib.import_module("stretto.experts")  # it stands on this one
        return room.Experts(self, num_experts, top_k, hidden, max_tokens, **how)

    def register(self, array: Any) -> bool:
        """Let calls on a GPU array be zero-copy, as those on `empty()` (collective).

        All ranks pass arrays of one size; views of them at equal offsets are zero-copy
        too. False: somebody's memory cannot be shared; it stays staged, with the same
        results. The array is kept until `deregister` or `close`.
        """
        session = self._session_of("register", array)
        return bool(self._registering("register", lambda: session.register(array)))

    def deregister(self, array: Any) -> None:
        """Undo `register` (collective); graphs that captured calls on it are void."""
        session = self._session_of("deregister", array)
        self._registering("deregister", lambda: session.deregister(array))

    def measured(self) -> RowRule:
        """Return what was measured of calls that others depend on, on GPUs.

        Up to which size a norm belongs into the kernel of a collective, for example,
        and from which on a matmul had better go on beside it.
        """
        return selector_of(self, GPU).rows(self.num_ranks)

    def peers(self, array: Any) -> list[Any]:
        """Return every rank's array like this one, as this rank's GPU reaches them.

        For copies and kernels of your own, to and from memory of `empty()` or memory
        that was registered. Nothing is exchanged; ranks see to the order themselves.
        """
        return self._session_of("peers", array).peers(array)

    @property
    def memo(self) -> dict[Any, Any]:
        """Return what is known of calls, where others may keep what they know of them.

        By keys that begin with a number. It is emptied whenever calls must be examined
        anew, and when it is full.
        """
        return self._calls

    calls_by_place = memo

    def _session_of(self, verb: str, array: Any) -> Session:
        """Return the session that an array is for."""
        self._ready(verb)
        return self._session(self._caller(verb, None).take(array, "array").device)

    def _registering(self, verb: str, work: Callable[[], Any]) -> Any:
        """Forget known calls afterwards: they depend on what was registered."""
        try:
            return self._exchanging(verb, work)
        finally:
            self._calls.clear()

    def trace(
        self, folder: str | Path | None = None, *, steps: bool = False
    ) -> AbstractContextManager[Seen]:
        """Record this rank's calls within a block, and those of its parts.

        With `steps`, what happens inside them, too: on GPUs by kernels that write it,
        which are made for the block. With a folder they go to a file there; else they
        are the `recording` of what the block is given, at its end.
        """
        return self._tracing(folder, steps)

    @contextmanager
    def _tracing(self, folder: str | Path | None, steps: bool) -> Iterator[Seen]:
        only = comm_of(self._group)[0]
        with record(folder, steps=steps, only=only) as seen:
            if steps:
                self._forget_launches()
            yield seen
        if steps:
            self._forget_launches()

    def _forget_launches(self) -> None:
        """Prepare calls on GPUs anew: their kernels are other ones now."""
        if GPU in self._sessions:
            self._calls.clear()
            self._launches.clear()

    def check(self) -> None:
        """Raise when this communicator is broken, or a launch has met a fault."""
        self._ready_to("check")
        self._hear()
        if int(self._group.broken[0]):
            raise self._broke(self._group.fail((), f"rank {self.rank}: check"))

    def split(
        self,
        color: int | None,
        key: int | None = None,
        *,
        deadline_s: float | None = None,
    ) -> Communicator | None:
        """Return a communicator of the ranks with the same color (collective).

        They are numbered by `key`, then by their rank here. A rank whose color is None
        gets None. Without `deadline_s` its waits may last as long as those here.
        """
        if deadline_s is not None:
            deadline_s = check_deadline(deadline_s, f"rank {self.rank}: split")
        key = self.rank if key is None else key
        (key,) = self._read("split", key=key)
        if color is not None:
            (color,) = self._read("split", color=color)
        made: Communicator | None = self._exchanging(
            "split", lambda: self._divide(color, key, deadline_s)
        )
        return made

    def _divide(
        self, color: int | None, key: int, deadline_s: float | None
    ) -> Communicator | None:
        group = self._group.split(color, key)
        if group is None:
            return None
        if deadline_s is not None:
            group.deadline_s = deadline_s
        group.opens_late = self._group.opens_late
        try:
            return type(self)(group, profiles=self._profiles)
        except BaseException as e:
            group.abandon(f"raised {type(e).__name__}: {e}"[:1000], e)
            group.close()
            raise

    def refuse(self, why: str) -> BaseException:
        """Break this communicator, as a call was given what it cannot take.

        For calls of rooms above, which other ranks wait for. Return what to raise; all
        ranks raise the same.
        """
        text = f"rank {self.rank}: {why}"
        return self._broke(self._group.fail((), "", refused=text))

    def close(self) -> None:
        """Give everything back, once; started calls are waited for first."""
        if not self._closed:
            for channel in self._channels.values():
                channel._end()
            self._end()

    def __enter__(self) -> Communicator:
        """Return itself; leaving the block closes it."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close; after an exception the others are told that this rank gave up."""
        if error is not None:
            advise(error)
        if error is not None and not self._closed:
            self._group.abandon(f"raised {type(error).__name__}: {error}", error)
        self.close()


for _method in vars(Communicator).values():  # as tracebacks and refusals name them
    if isinstance(_method, FunctionType):
        _method.__qualname__ = f"Communicator.{_method.__name__}"
        _method.__annotations__.pop("self", None)


def lacks(comm: Communicator, device: str) -> str:
    """Return why a communicator cannot serve arrays of a device, or ""; for all alike.

    What only one rank lacks is found when it is first used.
    """
    return str(executors.get(device).lacks(comm.num_ranks))


def advise(error: BaseException) -> None:
    """Say beside what Python has refused how it is called here.

    A `__getattr__` would say it sooner, and make every call a quarter dearer: Python
    then looks attributes up without its caches.
    """
    if isinstance(error, AttributeError) and isinstance(error.obj, Communicator):
        name = str(error.name)
        if not name.startswith("_"):
            error.add_note(f"stretto: {attribute_hint(name, dir(error.obj))}")
        return
    classes = [one.__name__ for one in Communicator.__mro__]
    if hint := argument_hint(error, classes):
        error.add_note(f"stretto: {hint}")
