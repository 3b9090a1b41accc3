"""What the calls of one rank in a group stand on, and how they come to be made.

Sessions, what is known, what was chosen, the fault that broke it, and which thread is
inside. It holds state; call.py is the road that a call takes over it.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from stretto import executors
from stretto.arrays import CPU
from stretto.compiler.plan import settled_hosts
from stretto.errors import CallError, CommunicationError, CommunicatorBroken
from stretto.executors import Group, Session
from stretto.program.collectives import Array
from stretto.runtime.calls.ahead import Ahead
from stretto.runtime.calls.known import KnownCall, KnownCalls
from stretto.runtime.calls.requests.arguments import odd, read
from stretto.runtime.calls.requests.request import Caller
from stretto.runtime.calls.tuning import tuned_first
from stretto.runtime.calls.work import CallThread
from stretto.runtime.choice.bits import bits_in
from stretto.runtime.choice.measured import Measured
from stretto.runtime.choice.question import NO_SEATS
from stretto.runtime.choice.select import Pin, members_of_pin
from stretto.runtime.choice.selector import Selector
from stretto.watch import tell_why

OWNER = "owner"


class Claim:
    """A thread's word that it uses a communicator."""

    __slots__ = ("thread",)

    def __init__(self) -> None:
        self.thread = threading.get_ident()


class CallRunner:
    """One rank's side of a group: of a communicator, or of a channel of two ranks."""

    def __init__(
        self,
        group: Group,
        *,
        executor: str = CPU,
        profiles: Measured | None = None,
        alone: bool = False,
    ) -> None:
        """Open the executor's session (collective); "": the first call opens its own.

        `alone`: a peer may not have come yet when that is opened.
        """
        self.rank = group.rank
        """This process's number in the group."""
        self.num_ranks = group.num_ranks
        """How many processes there are in the group."""
        self.hosts = settled_hosts(executors.hosts_of(group), group.num_ranks)
        """The host of each rank, numbered as they come; empty: all are on one."""
        self.seats = NO_SEATS
        """Where the ranks sit, on a part of the machine that `Elastic` names."""
        self._places: tuple[int, ...] = ()
        self._first_ranks = group.num_ranks
        """How many there were at the start."""
        self._group = group
        self._sessions: dict[str, Session] = {}
        self._profiles = profiles or Measured()
        self._calls = KnownCalls()
        self._usual: dict[Any, KnownCall] = self._calls
        """That table, or an empty one while anything is unusual."""
        self._known: dict[Any, KnownCall] = self._calls
        """What calls look themselves up in: empty, too, while somebody is inside."""
        self._launches: dict[tuple[Any, ...], Any] = {}
        """By kinds of calls: what was chosen, proved and bound for them."""
        self._shared: dict[Any, Any] = {}
        """What launches share that all ranks made together, by its key."""
        self._selectors: dict[str, Selector] = {}
        """By executor: what chooses."""
        self._worker: CallThread | None = None
        """The thread of started calls, begun by the first that needs it."""
        self._side_stream: Any = None
        self._who: tuple[str, ...] = ()
        """Who the ranks are, where they may change; and by session, for whom it was
        renewed last."""
        self._rosters: dict[str, tuple[str, ...]] = {}
        self._ahead: Ahead | None = None
        """Proves what it calls for other numbers of ranks."""
        self._alone = alone
        self._fault: BaseException | None = None
        self._closed = self._is_busy = self._suspended = False
        self._aside: list[Session] = []
        """The sessions whose memory is given back."""
        self._rows: dict[int, tuple[Array, Array]] = {}
        """By their number: this rank's counts, and those of all ranks."""
        self._inside: dict[str, Claim] = {}
        """Who has taken the long way, and is not through: one at most."""
        group.on_break.append(self._choose_table)
        # a rank that is elsewhere hears of it at its next call
        if executor:
            self._session(executor)

    @property
    def bits(self) -> str:
        """What an all_reduce promises of its bits where it is not told: `any` at first.

        Or what STRETTO_BITS says to rank 0. With `invariant`, an element's bits do not
        depend on how many lie beside it. All ranks set it alike; parts begin with it.
        """
        return self._profiles.bits

    @bits.setter
    def bits(self, given: str) -> None:
        """Change it, for calls from now on."""
        bits = bits_in(given, f"rank {self.rank}: bits")
        self._profiles = replace(self._profiles, bits=bits)
        self._calls.clear()

    def _caller(self, verb: str, dtype: str | None, pin: Pin = None) -> Caller:
        return Caller(
            rank=self.rank,
            num_ranks=self.num_ranks,
            verb=verb,
            dtype=dtype,
            members=() if pin is None else members_of_pin(pin),
        )

    def _session(self, executor: str) -> Session:
        """Return the executor's session, opening it at the first use (collective)."""
        session = self._sessions.get(executor)
        if session is None:
            module = executors.get(executor)
            try:
                unavailable = module.unavailable(self._group)
                if unavailable is None:
                    session = module.open_session(self._group)
                    self._sessions[executor] = session
                    self._opened(executor)
                    if self._profiles.tune and not self._alone:
                        self._profiles = tuned_first(
                            self._group, executor, self._profiles
                        )
            except BaseException as e:
                raise self._broke(e) from e.__cause__
            if session is None:  # on all ranks alike; what is open goes on
                assert unavailable is not None
                raise unavailable
        return session

    def _opened(self, executor: str) -> None:
        """Take note that an executor's session has been opened."""

    def _read(self, verb: str, **given: Any) -> list[Any]:
        """Return the values of arguments, in that order."""
        where = f"rank {self.rank}: {verb}"
        return [read(where, name, one) for name, one in given.items()]

    # Who is inside.

    def _ready(self, what: str) -> None:
        """Wait for calls started before; refuse when nothing can be called."""
        self._ready_to(what)
        if self._suspended:
            raise CallError(
                f"rank {self.rank}: {what}: this communicator is suspended; want "
                "resume() first, on all ranks"
            )

    def _ready_to(self, what: str) -> None:
        """Do the same for what may also be asked while it is suspended."""
        self._wait_started()
        if self._fault is not None:
            raise CommunicatorBroken(
                f"rank {self.rank}: {what}: this communicator was broken by an earlier "
                f"fault, {type(self._fault).__name__}: {self._fault}; outputs are "
                f"undefined: close it and connect anew"
            ) from self._fault
        if self._closed:
            raise CallError(
                f"rank {self.rank}: {what}: this communicator is closed; connect anew"
            )
        if self._group.broken[0]:
            raise self._broke(self._group.fail((), f"rank {self.rank}: {what}"))

    def _enter(self, what: str, claim: Claim) -> None:
        """Be the one thread that uses this communicator, until the claim is given up.

        Calls that are known take another way, as long as nobody is on this one: there
        the executor sees to it.
        """
        self._ready(what)
        first = self._inside.setdefault(OWNER, claim)
        self._known = {}
        inside = 0 if first is claim else first.thread
        for session in () if inside else tuple(self._sessions.values()):
            inside = inside or session.inside()
        if inside:
            raise CallError(
                f"rank {self.rank}: {what}: {_thread(inside)} is inside this "
                f"communicator; one thread at a time may use it: give each one of its "
                f"own, by split(0)"
            )

    def _choose_table(self) -> None:
        """While anything is unusual every call goes the long way, and hears why."""
        odd = self._is_busy or self._closed or self._fault or self._suspended
        self._usual = {} if odd else self._calls
        self._known = {} if self._inside else self._usual
        if self._group.broken[0]:  # also just now
            self._usual = self._known = {}

    def _broke(self, error: BaseException) -> BaseException:
        """Remember the first fault; nothing works after it. Return what to raise."""
        if isinstance(error, CallError) and not self._group.broken[0]:
            return error
        if self._fault is None:
            tell_why(error)
            self._fault = error
            self._calls.clear()
            self._choose_table()
            if not isinstance(error, CommunicationError):
                self._group.abandon(f"raised {type(error).__name__}: {error}"[:1000])
        return error

    def _hear(self) -> None:
        """Raise what a launch that nobody waited for has met."""
        for session in self._sessions.values():
            try:
                session.check()
            except (CallError, CommunicationError) as e:
                raise self._broke(e) from None

    def _check_fault(self, name: str) -> None:
        if self._fault is not None or self._closed or self._suspended:
            self._ready(name)

    def _set_busy(self, busy: bool) -> None:
        """Send every call the long way while started calls are under way."""
        self._is_busy = busy
        self._choose_table()

    def _wait_started(self) -> None:
        """Return when every call that was started has ended."""
        if self._worker is not None and not self._worker.is_me:
            self._worker.wait_idle()

    def _go_on(self, now: Sequence[str]) -> None:
        """Serve the group's new ranks (collective); who comes opens what others have.

        `now`: who they are. A session knows for whom it was renewed last.
        """
        group, is_new = self._group, not self._who
        said: dict[str, Any] = {}
        if not is_new:
            said = {"open": [*self._sessions], **self._profiles.said()}
            said |= {"place": self._places[self.rank] if self._places else self.rank}
            said |= {"room": group.most_ranks, "first": self._first_ranks}
        parts = [part["renew"] for part, _ in group.exchange({"renew": said})]
        first: Any = next((part for part in parts if part), {"open": [CPU]})
        if group.most_ranks:  # sessions have room for all who came, as all have it
            rooms = [part["room"] for part in parts if part] or [group.most_ranks]
            group.most_ranks = max(*rooms, group.num_ranks)
        self._first_ranks = int(first.get("first", self._first_ranks))
        if is_new:
            self._profiles = Measured.of(first)
        goes_on = not is_new
        for name in first["open"]:
            session = self._sessions.get(name)
            if session is not None and session.renews:
                kept = kept_ranks(self._rosters.get(name, self._who), now)
                goes_on &= session.renew(kept)
            else:
                if session is not None:
                    self._sessions.pop(name).retire()
                goes_on = False
                self._session(name)
            self._rosters[name] = tuple(now)
        for name in [name for name in self._sessions if name not in first["open"]]:
            self._sessions.pop(name).retire()  # others could not open it
        if not goes_on:
            self._launches.clear()
            self._shared.clear()
        self._who = (*now,)  # another object each time: prepared calls know by it
        self.rank, self.num_ranks = group.rank, group.num_ranks
        self.hosts = settled_hosts(executors.hosts_of(group), group.num_ranks)
        self._sit([part.get("place", -1) for part in parts])
        self._calls.clear()
        self._rows.clear()
        self._aside, self._suspended = [], False
        self._fault = None
        self._choose_table()

    def _sit(self, places: Sequence[int]) -> None:
        """Take note of where the ranks sit; -1 has come, and takes the first free."""

    def _end(self, *, retires: bool = False) -> None:
        """Wait for started calls, then give sessions and the group back.

        `retires`: other ranks follow.
        """
        if self._worker is not None:
            self._worker.stop()
        if self._ahead is not None:
            self._ahead.end()
        self._closed = True
        self._choose_table()
        self._calls.clear()
        self._launches.clear()
        self._shared.clear()
        for session in self._sessions.values():
            (session.retire if retires else session.close)()
        self._sessions.clear()
        self._group.close()


def kept_ranks(before: Sequence[str], now: Sequence[str]) -> tuple[int | None, ...]:
    """Return which rank each of the ranks was, by their identities."""
    was = {identity: rank for rank, identity in enumerate(before)}
    return tuple(was.get(identity) for identity in now)


def looked_up(calls: CallRunner, key: tuple[Any, ...]) -> KnownCall | None:
    """Return the call that is known by its arrays, if there is one."""
    try:
        return calls._known.get(key)
    except TypeError:
        raise odd(calls.rank, key) from None


def _thread(ident: int) -> str:
    """Return the words for a thread, in a sentence about it."""
    if ident == threading.get_ident():
        return "this thread (by a signal's handler, or a started call)"
    names = [t.name for t in threading.enumerate() if t.ident == ident]
    return f"thread {names[0]!r}" if names else "another thread"
