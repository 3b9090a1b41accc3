"""Ways to run a plan. One protocol; each executor is a folder, found by scanning.

An executor opens a *session* for a group of ranks: it owns their staging and flags, and
turns verified plans into launchers. Executors do not know one another.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from stretto.compiler.plan import Plan, ProvedPlan
from stretto.errors import CallError, StrettoError
from stretto.program.elements import Operator, storage
from stretto.program.epilogues import Spec
from stretto.registry import Registry
from stretto.trace import CallKind, Comm

__all__ = [
    "Call",
    "Executor",
    "Group",
    "Launch",
    "SameArrays",
    "Session",
    "call_kind",
    "comm_of",
    "describe",
    "far_ranks",
    "get",
    "hosts_of",
    "names",
    "who_started",
]

Launch: TypeAlias = Callable[[Any, Any], None]
"""Run a prepared plan on (input, output); returns when done, or when enqueued.

Each is what the session's executor takes, or None: a contiguous NumPy array on the CPU,
an array on a GPU or its address there.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """What a plan is bound to: one kind of call, the same on every rank."""

    dtype: str
    op: Operator = Operator.SUM
    counts: tuple[int, ...] = ()
    """Elements of every part, as the collective's `num_parts` says."""
    epilogue: Spec | None = None
    """What is made of the result. A launch then also takes `extra=`: the epilogue's
    inputs and outputs, in their order, flat."""
    rows: tuple[int, int] = (0, 0)
    """all_to_all: elements of a part that lie together in the input and in the output,
    0 when all do. Row r of part q then lies at (r * num_ranks + q) rows."""
    aside: bool = False
    """Whether this rank's output lies over its input otherwise than plans are proved
    for: its launch works on a copy of the input. Peers do not notice."""
    beside: bool = False
    """Whether it was started, to run beside compute: for words alone. What is chosen
    then differs."""
    within: str = ""
    """What was called, in words, where this is a part of it: so that ranks that called
    different things are told so, though their parts look alike."""


_STARTED = ", started beside compute,"
"""In the words for a call that is to run so."""


def who_started(calls: Mapping[int, str]) -> str:
    """Return what to say where some ranks started what the others wait for, or "".

    `calls` are the ranks' calls, in `describe`'s words.
    """
    started = [rank for rank, text in calls.items() if _STARTED in text]
    waits = [rank for rank in calls if rank not in started]
    heads = {text.partition(" by ")[0].replace(_STARTED, "") for text in calls.values()}
    if not started or not waits or len(heads) > 1:
        return ""
    return (
        f"ranks {started} started it and ranks {waits} wait for it: use async_op on "
        f"all ranks or on none"
    )


def describe(plan: Plan, call: Call) -> str:
    """Return what a call is, in words: the same text means the same call."""
    counts = call.counts
    count = counts[0] if len(set(counts)) == 1 else ",".join(map(str, counts))
    reduces = plan.kind.reduces
    op = f" op={call.op.value}" if reduces else ""
    said = {k: v for k, v in plan.params.items() if k != "hosts"}
    params = "".join(f" {k}={v}" for k, v in said.items())
    within = f" within {call.within}" if call.within else ""
    return (
        f"{plan.collective}{params} of {count} {call.dtype}{op}{_STARTED * call.beside}"
        f"{within} by {plan.name} {plan.schedule} ({plan.digest})"
    )


def call_kind(plan: Plan, call: Call, executor: str) -> CallKind:
    """Return what a recording says of calls of a kind.

    Its bytes are those of the longest vector that a rank holds.
    """
    counts, n = call.counts, plan.num_members
    many = sum(counts)
    if len(counts) == n**2 and n > 1:
        many = max(sum(counts[r * n :][:n]) for r in range(n))
    elif plan.collective == "permute":
        many = max(counts, default=0)
    reduces = plan.kind.reduces
    return CallKind(
        collective=plan.collective,
        nbytes=many * storage(call.dtype).itemsize,
        dtype=call.dtype,
        op=call.op.value if reduces else "",
        algorithm=plan.name,
        schedule=str(plan.schedule),
        plan=plan.digest,
        executor=executor,
        text=describe(plan, call),
    )


def comm_of(group: Group) -> tuple[Comm, int]:
    """Return what a recording says of a group, and this rank's number in the world."""
    name, members, meeting = group.identity
    return Comm(name=name, members=members, meeting=meeting), members[group.rank]


class Group(Protocol):
    """The ranks of a communicator, as an executor sees them. `meeting` provides it."""

    rank: int
    num_ranks: int
    deadline_s: float
    """How long a wait may last without progress."""
    calling: str = ""
    """The method of a communicator that exchanges happen for, if it says so."""
    only_transfers: bool = False
    """Whether two ranks send and receive here, and do nothing else."""
    opens_late: bool = False
    """Whether sessions are opened by the first calls that need them."""
    most_ranks: int = 0
    """For how many ranks there is room, where it may be renewed; 0: it may not be."""

    def exchange(
        self, payload: Mapping[str, Any], fds: Sequence[int] = ()
    ) -> list[tuple[Mapping[str, Any], tuple[int, ...]]]:
        """Give everybody's payload and file descriptors to everybody (collective)."""

    @property
    def hosts(self) -> tuple[int, ...]:
        """Return the host of each rank; empty where all are on one."""
        return ()

    @property
    def identity(self) -> tuple[str, tuple[int, ...], int]:
        """Return its name, its world ranks, and of which generation they are."""
        return "group", tuple(range(self.num_ranks)), 0

    @property
    def broken(self) -> Any:
        """Return an int64 array of one element, non-zero once somebody is lost."""

    def fail(
        self,
        waiting_for: Sequence[int],
        where: str,
        *,
        mismatch: str = "",
        refused: str = "",
    ) -> Exception:
        """Break the group, on every rank, and return the error that says why.

        `mismatch` says who called what when the ranks called different things: a
        `CollectiveMismatch`. `refused` says what a call was given that it cannot take,
        where that is only found in its midst: a `CallError`. Otherwise a lost rank
        is a `PeerLost`, and ranks that are merely absent are a `CollectiveTimeout`.
        When the group is broken already, the error is that of whoever broke it.
        """

    def lose(self, rank: int, how: str, where: str = "") -> Exception:
        """Break the group because a rank cannot be reached; return the error."""
        return self.fail((rank,), f"{how}; {where}")

    def abandon(self, how: str, error: BaseException | None = None) -> None:
        """Break the group because this rank gives up; `how` follows "rank 1".

        Where it does for an `error` that blames another rank, that is what all hear.
        """
        self.fail((), how)

    @property
    def on_break(self) -> list[Callable[[], None]]:
        """Return what is called once, by any thread, when the group breaks."""
        return []

    @property
    def on_exchange(self) -> list[Callable[[int, str], None]]:
        """Return what is called with the number and name of each exchange."""
        return []

    def split(self, color: int | None, key: int = 0) -> Group | None:
        """Return the group of those with this color, ordered by key (collective)."""
        raise CallError(f"a {type(self).__name__} cannot be split")

    def subgroup(self, name: str, members: Sequence[int]) -> Group:
        """Return the group of some ranks, in that order; only they call it."""
        raise CallError(f"a {type(self).__name__} has no groups within it")

    def close(self) -> None:
        """Leave the group."""
        return


def hosts_of(group: Group) -> tuple[int, ...]:
    """Return the host of each rank of a group; one for all where it does not say."""
    return tuple(group.hosts) or (0,) * group.num_ranks


def far_ranks(group: Group) -> tuple[int, ...]:
    """Return the ranks of a group that are on other hosts than this one."""
    hosts = hosts_of(group)
    return tuple(q for q, host in enumerate(hosts) if host != hosts[group.rank])


SameArrays: TypeAlias = Callable[
    [Any, str, Any, str], Callable[[Any, Any], bool] | None
]
"""Takes `x`, what it is known by, `out`, and what that is known by; returns what tells
whether two arguments are still these. They are NumPy arrays or None, and are known by
"size" or "shape", or by "nothing". None: it cannot tell."""


class Session(Protocol):
    """One executor's memory and plans for one communicator.

    What an executor cannot do, its sessions inherit as a refusal.
    """

    renews: bool = False
    """Whether it goes on with other ranks; where not, it is opened anew for them."""
    across: bool = False
    """Whether the kernel copies between ranks' memories; alike on every rank."""
    same_arrays: SameArrays | None = None
    """Where it is compiled; otherwise whoever asks is to look himself."""

    def empty(self, shape: Sequence[int], dtype: str) -> Any:
        """Return registered memory, at the same offset on every rank (collective)."""

    def offset(self, array: Any) -> int | None:
        """Return where registered memory begins in the slab, or None; at once."""

    def offset_at(self, address: int, nbytes: int) -> int | None:
        """Return the same of memory that is known by where it lies."""

    def prepare(self, plan: ProvedPlan, call: Call) -> Launch:
        """Bind a plan to a kind of call. Nothing is exchanged."""

    def close(self) -> None:
        """Free everything."""

    def retire(self) -> None:
        """Free everything, as other ranks follow: no call made for these may hang."""
        self.close()

    def renew(self, kept: Sequence[int | None]) -> bool:
        """Go on with the group's new ranks (collective, newcomers open a session).

        `kept` has for each of them the rank that it was, or None. Returns whether
        launches that were prepared go on, too.
        """
        raise CallError("sessions of this executor are opened anew for other ranks")

    def inherited(self) -> list[Any]:
        """Return arrays of what others had registered when this rank came to them."""
        return []

    def check(self) -> None:
        """Raise what a launch that was not waited for has met."""
        return

    def repeated(
        self, launch: Launch, x: Any, out: Any, stream: int | None = None
    ) -> Callable[..., object]:
        """Return a prepared launch on these two, ready to be called.

        `stream`: on GPUs, the stream it is for; None: whichever is current then.
        """
        return functools.partial(launch, x, out)

    def inside(self) -> int:
        """Return the thread that is in a call of this session, or 0."""
        return 0

    def asked(self, ns: int) -> None:
        """Say when the next call was asked for, where that was before its start."""
        return

    def refuses(self, plan: ProvedPlan) -> str:
        """Return why a plan does not run here, alike on every rank, or ""."""
        return ""

    def register(self, array: Any) -> bool:
        """Make an array of somebody else's zero-copy (collective); False: it is not."""
        return False

    def deregister(self, array: Any) -> None:
        """Undo `register` (collective)."""
        return

    def peers(self, array: Any) -> list[Any]:
        """Return every rank's array like this one, as this rank reaches them."""
        raise CallError("peers' arrays are reached on GPUs; want one that is there")

    def channels(self, nbytes: int, *, blocks: int = 1, name: str = "") -> Any:
        """Return channels to every peer, for kernels of the user's (collective)."""
        raise CallError("channels are for kernels on GPUs; want device='cuda'")

    def prepare_counted(self, plan: ProvedPlan, gather: ProvedPlan, call: Call) -> Any:
        """Bind a plan to counts on the GPU; `call` says how large they may be.

        `gather` is an all_gather that brings everybody the counts of all ranks.
        """
        raise CallError("counts on a GPU are for calls on GPUs")

    def memory(self) -> dict[str, int]:
        """Return the bytes that this rank holds, by what they are for; at once."""
        return {}

    def keeps(self) -> str:
        """Return why this rank cannot give memory back now, or ""."""
        return "sessions of this executor give no memory back"

    def suspend(self) -> None:
        """Give back what calls work in; no rank is in a call. Registered arrays stay.

        Or what they hold is kept elsewhere. Nothing is exchanged.
        """

    def resume(self) -> None:
        """Take it again, at the same addresses (collective, as `renew`)."""

    def mark(self, stream: Any = None) -> Any:
        """Return the point that a stream has come to; without one, the current."""
        raise CallError("calls here are on no stream; they are done when they return")


class Executor(Protocol):
    """What every executor offers: a folder here, or an entry point of others'.

    What one offers beside, such as times of the simulator, is imported from it.
    """

    def unavailable(self, group: Group) -> StrettoError | None:
        """Return why a rank cannot open a session, alike on all (collective)."""

    def open_session(self, group: Group) -> Session:
        """Open a session for a group (collective), where nothing is `unavailable`."""

    def load(self, *, far: bool = False) -> None:
        """Load what the first session of a process would; of several hosts, too."""

    def stands_on(self) -> str:
        """Return the name of what one rank at most may use, as a GPU's UUID, or ""."""

    def doctor(self) -> Mapping[str, str]:
        """Return what this machine has and what is missing, by subject."""

    def trusted(self, plan: ProvedPlan, call: Call) -> str:
        """Return, in a word, what of such a call stands on less than a proof."""

    def lacks(self, num_ranks: int) -> str:
        """Return why so many ranks cannot be served, alike on every rank, or ""."""

    def between_hosts(self) -> str:
        """Return how data go from one host to another, in words."""


_executors: Registry[Executor] = Registry(
    "executor", __name__, group="stretto.executors", folders=True
)


def names() -> tuple[str, ...]:
    """Return the names of all executors, sorted."""
    return _executors.names()


def get(name: str) -> Executor:
    """Return one executor."""
    return _executors.get(name)
