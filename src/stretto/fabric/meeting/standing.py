"""Who this process is in each generation of its world, and whom it watches."""

from __future__ import annotations

import math
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from stretto.errors import CollectiveTimeout, RendezvousError
from stretto.fabric.faults import Fault
from stretto.fabric.generations import said_fault
from stretto.fabric.loop import LONGEST_WAIT_S, Loop
from stretto.fabric.meeting.groups import Group, Roster, world
from stretto.fabric.meeting.last_words import LastWords
from stretto.fabric.meeting.membership import Break, MarkDeparted, Membership
from stretto.fabric.messages import (
    Abandoned,
    Errand,
    Leave,
    Prepare,
    Propose,
    Ready,
    Say,
    Verdict,
    Welcome,
)
from stretto.fabric.process import open_pidfd
from stretto.fabric.view import Event, Heard, HubEnded, Tick, WorldView
from stretto.fabric.wire import Descriptor

FENCE_S = 5.0
"""How long a process may take to end once it is told to: one of a GPU takes longest."""


class Processes:
    """Whose processes are watched, by their pidfds in the watcher's loop."""

    def __init__(self, loop: Loop, ended: Callable[[str], None]) -> None:
        self._loop, self._ended = loop, ended
        self._identity_of: dict[int, str] = {}
        self.held: tuple[Descriptor, ...] = ()

    def watch(
        self,
        welcome: Welcome,
        pidfds: tuple[Descriptor, ...],
        but: str,
        view: WorldView,
    ) -> None:
        """Watch the ranks of a generation, in place of those before."""
        order = [welcome.identities[rank] for rank in welcome.watched]
        view.has_pidfds = welcome.home in ("", *order)
        if not pidfds:
            return  # those that were watched still are
        for number in self._identity_of:
            self._loop.unwatch(number)
        pairs = zip(pidfds, order, strict=True)
        self._identity_of = {d.number: i for d, i in pairs if i != but}
        self.held = pidfds
        for number, identity in self._identity_of.items():
            self._loop.watch(number, partial(self._stirred, number, identity))

    def _stirred(self, number: int, identity: str) -> None:
        self._loop.unwatch(number)
        self._ended(identity)

    def fence(self, identities: Iterable[str]) -> str:
        """End processes of this host, and see them ended; return which could not be.

        What they map they cannot write any more.
        """
        number_of = {i: n for n, i in self._identity_of.items()}
        numbers = [number_of[i] for i in identities if i in number_of]
        for number in numbers:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(number, signal.SIGKILL)
        until = time.monotonic() + FENCE_S
        for number in numbers:
            poll = select.poll()
            poll.register(number, select.POLLIN)
            left_ms = max(0.0, until - time.monotonic()) * 1e3
            if not poll.poll(left_ms):
                return f"cannot end {self._identity_of[number][:8]} in {FENCE_S:g} s"
        return ""

    def close(self) -> None:
        """Watch nobody any more."""
        self._identity_of.clear()
        self.held = ()


class Standing:
    """What a member knows of generations; it sleeps until one begins.

    Its owner's lock is held while it is told something.
    """

    def __init__(
        self,
        identity: str,
        membership: Membership,
        news: threading.Condition,
        say: Callable[..., None],
        processes: Processes,
    ) -> None:
        self.identity = identity
        """Who this process is in every generation."""
        self.roster = Roster(rank=-1)
        """What it knows of the last generation that it is a rank of."""
        self.on_prepare: Callable[[Prepare], str | None] = lambda prepare: ""
        """Called in the watcher thread before a generation that this process is to be
        in: prepares what it needs, and returns in words why it cannot. None: it is
        ready when `agree` is called."""
        self.on_prepare_without: Callable[[Prepare], None] = lambda prepare: None
        """Called there before one that this process is not to be in."""
        self.on_ask: Callable[[Errand], None] = lambda order: None
        """Called in the watcher thread with what somebody asks of members."""
        self.on_news: Callable[[Welcome | Abandoned], None] = lambda news: None
        """Called there when a generation has begun, or was given up."""
        self.dismissed: set[str] = set()
        """Who is to be replaced although it is here: it counts as lost."""
        self.processes, self.last_words = processes, LastWords()
        self.is_closed = False
        self.parting: Fault | None = None
        """What broke the group that this process left last, if nothing followed it."""
        self._membership, self._view = membership, membership.view
        self._news, self._say = news, say
        self._first = self._view.welcome.since or self._view.welcome.generation
        self._over: Fault | None = None
        self._abandoned: dict[tuple[str, ...], Fault] = {}
        self.told: dict[str, Any] = {}
        """What this one has told of itself."""

    @property
    def generation(self) -> int:
        """Larger than that of every earlier meeting of this name on this host."""
        return self._view.welcome.generation

    @property
    def identities(self) -> tuple[str, ...]:
        """Who the ranks of this generation are."""
        return self._view.welcome.identities

    def roster_in(self, generation: int) -> tuple[str, ...]:
        """Return who the ranks of a generation were."""
        return self._view.generations.rosters[generation]

    @property
    def standbys(self) -> tuple[str, ...]:
        """Who else is here and may become a rank."""
        return self._view.standbys

    @property
    def since(self) -> int:
        """The number of the world's first generation."""
        return self._view.welcome.since

    @property
    def facts(self) -> dict[str, dict[str, Any]]:
        """By identity, what members say of themselves."""
        return self._view.facts

    @property
    def gone(self) -> dict[str, str]:
        """How members were lost; nothing for who left in order."""
        return self._view.gone

    @property
    def welcome(self) -> Welcome:
        """What began this generation."""
        return self._view.welcome

    def tell(self, **said: Any) -> None:
        """Tell all members, and those who come, more of this one."""
        self.told |= said
        self._say(Say(identity=self.identity, said=dict(self.told)))

    def ask(self, verb: str, about: Sequence[str] = (), **said: Any) -> None:
        """Errand all members for something."""
        self._say(Errand(verb=verb, about=tuple(about), said=said))

    @property
    def is_rank(self) -> bool:
        """Whether this process is a rank of this generation."""
        return self.identity in self.identities

    @property
    def is_over(self) -> bool:
        """Whether no generation follows any more."""
        return self._over is not None or self.is_closed or self._view.hub_ended

    @property
    def hub_ended(self) -> bool:
        """Whether the connection to the hub has ended."""
        return self._view.hub_ended

    @property
    def is_done(self) -> bool:
        """Whether all ranks have left in order: there is nothing more to do."""
        return all(self.gone.get(i) == "" for i in self.identities)

    @property
    def next_deadline(self) -> float | None:
        """When a `Tick` is due."""
        return self._view.next_deadline

    def world(self) -> Group:
        """Return the group of all ranks of this generation."""
        nth = self.generation - self._first
        return world(len(self.identities), self.generation, nth=nth)

    def begin(self, welcome: Welcome, held: tuple[Descriptor, ...]) -> None:
        """Take note of a generation that has begun, and watch its ranks."""
        if self.is_rank:
            rank = welcome.identities.index(self.identity)
            hosts, names = welcome.hosts, welcome.names
            self.roster = Roster(rank=rank, hosts=hosts, host_names=names)
        pidfds = held[: len(welcome.watched)]
        if len(held) > len(pidfds) and self.last_words.file is None:
            self.last_words = LastWords(held[-1])
        self.processes.watch(welcome, pidfds, self.identity, self._view)

    def notice(
        self, event: Event, held: tuple[Descriptor, ...] = ()
    ) -> list[Break | MarkDeparted]:
        """Take an event of the world; return what becomes of groups.

        Before somebody is taken for lost, we look at what was said for the hub.
        """
        found: list[Break | MarkDeparted] = []
        if isinstance(event, Tick | HubEnded) or self._view.hub_ended:
            for words in self.last_words.hear():
                if isinstance(words, Verdict):
                    found += self._membership.judge(words.group, said_fault(words))
                else:
                    found += self._take(Heard(message=words), ())
        return found + self._take(event, held)

    def _take(
        self, event: Event, held: tuple[Descriptor, ...]
    ) -> list[Break | MarkDeparted]:
        found: list[Break | MarkDeparted] = []
        for action in self._membership.on(event, time.monotonic()):
            match action:
                case Welcome():
                    self.begin(action, held)
                    self.on_news(action)
                case Prepare() if self.identity in action.identities:
                    self._prepare(action)
                case Prepare():  # of others
                    self.on_prepare_without(action)
                case Errand():
                    self.on_ask(action)
                case Abandoned(error=error, text=text, blamed=blamed):
                    fault = Fault(error=error, text=text, blamed=blamed)
                    self._abandoned[action.identities] = fault
                    self.on_news(action)
                case Break() | MarkDeparted():
                    found.append(action)
        return found

    def judge(self, verdict: Verdict) -> list[Break]:
        """Take the hub's word that ends a group, or the world."""
        fault = said_fault(verdict)
        self._over = self._over if verdict.group else fault
        return self._membership.judge(verdict.group, fault)

    def settle(self, group: str, fault: Fault) -> Fault:
        """Return the first verdict of this host on a group, where the hub is silent."""
        with self._news:
            return self.last_words.settle(group, fault)

    def leave(self, failure: str) -> Leave:
        """Return what to tell the hub when this process goes; say it here, too."""
        after = self.parting or Fault(error="", text="")
        said = Leave(
            failure=failure, error=after.error, text=after.text, blamed=after.blamed
        )
        self.last_words.say(said.told_of(self.identity))
        return said

    def close(self) -> None:
        """Give back what it holds; it hears nothing any more."""
        self.processes.close()
        self.last_words.close()
        self.is_closed = True

    def _prepare(self, prepare: Prepare) -> None:
        """Prepare for a generation, and tell the hub, unless that is said later."""
        try:
            failure = self.on_prepare(prepare)
        except Exception as e:
            failure = f"cannot prepare itself: {type(e).__name__}: {e}"[:1000]
        if failure is not None:
            self.agree(prepare.attempt, failure)

    def agree(self, attempt: int, failure: str = "") -> None:
        """Be ready for the generation that is prepared, or say why not."""
        pidfd = open_pidfd(os.getpid())
        held = () if pidfd is None else (pidfd,)
        self._say(Ready(attempt=attempt, failure=failure), held)

    def propose(
        self,
        identities: Sequence[str],
        *,
        after: int,
        timeout_s: float = 30.0,
        is_fresh: bool = False,
    ) -> None:
        """Have these members be the ranks of the generation that follows `after`.

        One member calls it; it is one proposal where several say the same. Return once
        that generation has begun, or raise why it came to nothing. `is_fresh` ends the
        groups of those that stay, too.
        """
        order = tuple(identities)
        self.suggest(order, after=after, timeout_s=timeout_s, is_fresh=is_fresh)
        self.wait(lambda: self.generation > after, timeout_s + 1.0, order)

    def suggest(
        self,
        identities: Sequence[str],
        *,
        after: int,
        timeout_s: float = 30.0,
        is_fresh: bool = False,
    ) -> None:
        """Propose these members, and wait for nothing."""
        order = tuple(identities)
        with self._news:
            self._abandoned.pop(order, None)
        if self.generation <= after:
            wanted = Propose(
                generation=after + 1,
                identities=order,
                is_fresh=is_fresh,
                timeout_s=timeout_s,
            )
            self._say(wanted)

    def follow(self, after: int, timeout_s: float | None = None) -> None:
        """Return once a generation follows `after`."""
        self.wait(lambda: self.generation > after, timeout_s)

    def stand_by(self, timeout_s: float | None = None) -> None:
        """Return once this process is a rank."""
        self.wait(lambda: self.is_rank, timeout_s)

    def wait(
        self,
        true: Callable[[], bool],
        timeout_s: float | None,
        proposed: tuple[str, ...] = (),
    ) -> None:
        """Sleep until something is true of the world; raise why it never is."""
        until = math.inf if timeout_s is None else time.monotonic() + timeout_s
        with self._news:
            while not true():
                fault = self._abandoned.get(proposed, self._over)
                if fault is not None:
                    raise fault.to_error()
                if self.is_closed or self._view.hub_ended:
                    raise RendezvousError("the rendezvous has ended; connect anew")
                left_s = max(0.0, until - time.monotonic())
                if not self._news.wait(min(left_s, LONGEST_WAIT_S)) and not left_s:
                    text = f"no generation of ranks began within {timeout_s:g} s"
                    raise CollectiveTimeout(text)
