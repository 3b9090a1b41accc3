"""From a checked request to a launch: sessions, plans, caches, faults.

A call seen before costs one dictionary look-up, one on arrays like those seen one more
(known.py). What differs in anything is checked (request.py), and served by a launch
that is known; for a new kind of call an algorithm is chosen, proved, lowered and bound
to the executor, once (choosing.py).
"""

from __future__ import annotations

import functools
import threading
from typing import Any

from stretto import executors
from stretto.arrays.operands import CPU
from stretto.calls.choosing import Chooser
from stretto.calls.fused import fuse
from stretto.calls.known import KnownCall, KnownCalls, Passed
from stretto.calls.requests.arguments import read
from stretto.calls.requests.layout import MISS, look
from stretto.calls.requests.request import Caller, Request
from stretto.calls.started import Starter
from stretto.calls.work import Work
from stretto.choice.measured import Measured
from stretto.choice.select import (
    Pin,
    members_of_pin,
)
from stretto.epilogues import Bound
from stretto.errors import CallError, CommunicationError, CommunicatorBroken
from stretto.executors import Group, Session
from stretto.plan import settled_hosts
from stretto.watch import tell_why

__all__ = ["CallRunner"]

_MOST_KINDS = 4096
OWNER = "owner"


class CallRunner:
    """The part of a communicator that runs requests."""

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
        self._group = group
        self._sessions: dict[str, Session] = {}
        self._profiles = profiles or Measured()
        self._calls = KnownCalls(self._sessions)
        self._known: dict[Any, KnownCall] = self._calls.by_arrays
        """Those known by their arrays; empty while anything is unusual."""
        self._chooser = Chooser(
            self.rank,
            self.num_ranks,
            self._sessions,
            self._profiles,
            self.hosts,
            full=self._calls.clear,
        )
        self._launches = self._chooser.launches
        self._starter = Starter(
            f"stretto-{self.rank}",
            self._sessions,
            busy=self._set_busy,
            hear=self._hear,
            alone=alone,
        )
        self._fault: BaseException | None = None
        self._closed = self._is_busy = self._is_renewed = False
        self._inside: dict[str, Claim] = {}
        """Who has taken the long way, and is not through: one at most."""
        group.on_break.append(self._choose_table)
        # a rank that is elsewhere hears of it at its next call
        if executor:
            self._session(executor)

    def _caller(self, verb: str, dtype: str | None, pin: Pin = None) -> Caller:
        return Caller(
            rank=self.rank,
            num_ranks=self.num_ranks,
            verb=verb,
            dtype=dtype,
            members=members_of_pin(pin),
        )

    def _session(self, executor: str) -> Session:
        """Return the executor's session, opening it at the first use (collective)."""
        session = self._sessions.get(executor)
        if session is None:
            module = executors.get(executor)
            try:
                unavailable = module.unavailable(self._group)
            except BaseException as e:
                raise self._broke(e) from e.__cause__
            if unavailable is not None:  # on all ranks alike; what is open goes on
                raise unavailable
            try:
                session = module.open_session(self._group)
            except BaseException as e:
                raise self._broke(e) from e.__cause__
            self._sessions[executor] = session
            session.tell_renewed(self._hear_renewed)
        return session

    def _hear_renewed(self) -> None:
        """Send the next call the long way; any thread may say so."""
        self._is_renewed = True
        self._known = {}

    def _renew(self) -> None:
        """Prepare launches on CPUs anew."""
        self._is_renewed = False
        for session in self._sessions.values():
            session.renew()
        self._calls.clear()
        for key in [key for key in self._launches if key.device == CPU]:
            del self._launches[key]

    def _read(self, verb: str, **given: Any) -> list[Any]:
        """Return the values of arguments, in that order."""
        where = f"rank {self.rank}: {verb}"
        return [read(where, name, one) for name, one in given.items()]

    # Running one request.

    def _run(
        self,
        request: Request,
        pin: Pin,
        stream: Any,
        seen: Passed | None = None,
        epilogue: Bound | None = None,
    ) -> Any:
        """Run a request; `seen` is what to know it by the next time."""
        claim = Claim()
        try:
            return self._run_inside(claim, request, pin, stream, seen, epilogue)
        finally:  # nothing is called before it is given up: a handler could break in
            if OWNER in self._inside and self._inside[OWNER] is claim:
                del self._inside[OWNER]
            self._choose_table()

    def _run_inside(
        self,
        claim: Claim,
        request: Request,
        pin: Pin,
        stream: Any,
        seen: Passed | None,
        epilogue: Bound | None,
    ) -> Any:
        self._enter(request.collective, claim)
        if self._is_renewed:
            self._renew()
        session = self._sessions.get(request.device)
        if session is None:
            session = self._session(request.device)
        fused = None
        if epilogue is not None:
            who = self._caller(request.collective, None, pin)
            if who.members:
                raise who.wrong(
                    f"an epilogue, by an algorithm among {who.members}; want one "
                    f"among all ranks"
                )
            fused = fuse(request, epilogue, who)
        spec = None if fused is None else fused.spec
        launch = self._chooser.launch(request, session, pin, spec)
        if stream is not None:
            if request.device == CPU:
                raise CallError(
                    f"rank {self.rank}: {request.collective}: stream={stream!r} with "
                    f"arrays on the CPU, where calls block; leave it out"
                )
            launch = functools.partial(launch, stream=stream)  # type: ignore[call-arg]
        call = launch
        if fused is not None:
            call = functools.partial(launch, extra=fused.extra)  # type: ignore[call-arg]
        x = None if request.x is None else request.x.flat
        out = None if request.out is None else request.out.flat
        try:
            call(x, out)
        except BaseException as e:
            raise self._broke(e) from e.__cause__
        result = request.deliver() if fused is None else fused.deliver()
        if seen is not None and epilogue is not None:
            self._calls.epilogues.learn(*seen[:3], epilogue, launch, self._broke)
        elif seen is not None:
            self._calls.learn(seen, request, session, launch, self._broke)
        return result

    def _ready(self, what: str) -> None:
        """Wait for calls started before; refuse when nothing can be called."""
        self._starter.wait_idle()
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
        usual = not (self._is_busy or self._inside or self._closed or self._fault)
        self._known = self._calls.by_arrays if usual else {}
        if self._group.broken[0] or self._is_renewed:  # also just now
            self._known = {}

    def _broke(self, error: BaseException) -> BaseException:
        """Remember the first fault; nothing works after it. Return what to raise."""
        if isinstance(error, CallError) and not self._group.broken[0]:
            return error
        if self._fault is None:
            tell_why(error)
            self._fault = error
            self._calls.clear()
            self._known = {}
            if not isinstance(error, CommunicationError):
                self._group.abandon(f"raised {type(error).__name__}: {error}"[:1000])
        return error

    def explain(
        self,
        collective: str,
        count: int,
        dtype: str = "float32",
        *,
        registered: bool = False,
        device: str = CPU,
        algorithm: Pin = None,
        **params: object,
    ) -> str:
        """Return which algorithm and schedule would serve such a call, as a pin.

        What stands on less than a proof is said after a `#`, which a pin may have.
        """
        collective, count, dtype, registered, device, algorithm = self._read(
            "explain",
            collective=collective,
            count=count,
            dtype=dtype,
            registered=registered,
            device=device,
            algorithm=algorithm,
        )
        return self._chooser.explain(
            (collective, count, dtype),
            algorithm,
            params,
            registered=registered,
            device=device,
        )

    def _again(self, key: tuple[Any, ...], x: Any, out: Any) -> Any:
        """Repeat a call that is known by its arrays or their kind, or return MISS."""
        known = self._looked_up(key)
        if known is not None and (done := known(x, out)) is not MISS:
            return done
        if self._known is not self._calls.by_arrays:
            return MISS
        seen = look(key, x, out, self._sessions)
        if seen is None or (how := self._calls.by_layout.get(seen[0])) is None:
            return MISS
        return self._calls.repeat(how, key, x, out, seen)

    def _looked_up(self, key: tuple[Any, ...]) -> KnownCall | None:
        """Return the call that is known by its arrays, if there is one."""
        try:
            return self._known.get(key)
        except TypeError:
            raise self._odd(key) from None

    def _odd(self, key: tuple[Any, ...]) -> CallError:
        """Return the error of a call by an argument that may change."""
        for given in key[3:]:
            try:
                hash(given)
            except TypeError:
                what = f"{str(given)[:60]} is a {type(given).__name__}"
                break
        else:
            what = "an argument may change"
        return CallError(
            f"rank {self.rank}: {key[0]}: {what}; want a name, a number, a tuple or "
            "None, which stay what they are"
        )

    # Calls beside the caller.

    def _start(self, name: str, call: Any, *args: Any, **options: Any) -> Work:
        """Run a method beside the caller, after those started before."""
        self._check_fault(name)
        return self._starter.start(name, call, args, options)

    def _hear(self) -> None:
        """Raise what a launch that nobody waited for has met."""
        for session in self._sessions.values():
            try:
                session.check()
            except (CallError, CommunicationError) as e:
                raise self._broke(e) from None

    def _check_fault(self, name: str) -> None:
        if self._fault is not None or self._closed:
            self._ready(name)

    def _set_busy(self, busy: bool) -> None:
        """Send every call the long way while started calls are under way."""
        self._is_busy = busy
        self._choose_table()

    def _end(self) -> None:
        """Wait for started calls, then give sessions and the group back."""
        self._starter.stop()
        self._closed = True
        self._known = {}
        self._calls.clear()
        self._launches.clear()
        for session in self._sessions.values():
            session.close()
        self._sessions.clear()
        self._group.close()


class Claim:
    """A thread's word that it uses a communicator."""

    __slots__ = ("thread",)

    def __init__(self) -> None:
        self.thread = threading.get_ident()


def _thread(ident: int) -> str:
    """Return the words for a thread, in a sentence about it."""
    if ident == threading.get_ident():
        return "this thread (by a signal's handler, or a started call)"
    names = [t.name for t in threading.enumerate() if t.ident == ident]
    return f"thread {names[0]!r}" if names else "another thread"
