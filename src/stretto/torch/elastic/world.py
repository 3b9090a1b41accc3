"""The ranks of a job as PyTorch's groups have them, and how they change.

All groups of a process stand on one meeting, and break together. When a generation has
begun, each goes on as the same object with the ranks that there are then.
"""

from __future__ import annotations

import atexit
import functools
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Set
from typing import Any

import torch.distributed as dist

from stretto.errors import (
    CallError,
    CommunicationError,
    CommunicatorBroken,
    MembershipError,
)
from stretto.fabric.faults import Fault
from stretto.fabric.meeting.environment import find_place
from stretto.fabric.meeting.meeting import Meeting
from stretto.fabric.meeting.standing import Standing
from stretto.fabric.messages import Abandoned, Errand, Prepare, Welcome
from stretto.runtime.calls import Communicator, Elastic, meet_elastic, open_elastic
from stretto.runtime.calls.ahead import stand_by
from stretto.runtime.calls.changing import peers_of, see_gone
from stretto.runtime.calls.joining.published import agree, own_address
from stretto.runtime.calls.spares import READY
from stretto.torch import meeting as torch_meeting
from stretto.torch.elastic.places import GroupPlace, places_of
from stretto.torch.elastic.shield import Shield

_LATER_S = 0.2
WHOLE = "whole"
"""What a rank says that has a state."""


class ElasticWorld:
    """This process's part in a job whose ranks may change."""

    def __init__(self, elastic: Elastic) -> None:
        """Meet nobody yet: the default group does, when it is made."""
        self.elastic = elastic
        self.meeting: Meeting | None = None
        self.job = ""
        """The name by which its processes find each other on a host."""
        self.comm: Communicator | None = None
        """Of all ranks; None while this process stands by."""
        self.stands_by = self.absorbs = False
        """Whether faults end the step and not the program."""
        self._places: list[list[GroupPlace]] = []
        """Of which groups every rank is, beside that of all; nothing: not yet known."""
        self.times: dict[str, float] = {}
        """When the last change was agreed to, and the lost were seen gone."""
        self._left = 0
        """The generation in which this process has given its place up, if it has."""
        self.fault: BaseException | None = None
        """What has broken the step that goes on."""
        self.on_prepare: Callable[[Prepare], str | None] = lambda prepare: ""
        """Asked in the watcher thread when all who are left out were seen gone."""
        self.on_ask: Callable[[Errand], None] = lambda order: None
        self.on_plan: Callable[[Prepare], bool] = lambda prepare: False
        """Asked there whether a change is to wait until this rank is ready for it."""
        self.on_news: Callable[[Welcome | Abandoned], None] = lambda news: None
        self._shields: list[tuple[Any, Shield]] = []
        self._is_apart = True
        """Whether any group's calls are answered here, but for a standby's."""
        self._lock = threading.RLock()

    @property
    def standing(self) -> Standing:
        """What this process is in each generation."""
        if self.meeting is None:
            raise CallError(
                "there is no job yet: call init_process_group('stretto') before, under "
                "`stretto launch`, or after stretto.torch.elastic.enable(...)"
            )
        return self.meeting.standing

    # Groups, as `stretto.torch` makes them.

    def join(self, group: Any, opts: Any, timeout_s: float) -> Shield:
        """Return what a group's calls are made on; the first group is of all ranks."""
        rank, size = int(opts.group_rank), int(opts.group_size)
        members = [int(r) for r in opts.global_ranks_in_group] or list(range(size))
        shield = Shield(str(opts.group_id), members, rank, self.absorb)
        shield.deadline_s = timeout_s
        if self.meeting is None:
            self._meet(rank, size, timeout_s)
        elif not self._shields:  # ranks of a job meet once
            _require_all(size, (self.comm or self.meeting).num_ranks)
        self._shields.append((group, shield))
        if not self.stands_by:
            self._open(shield, shield.name)
        return shield

    def leave(self, group: Any) -> None:
        """Take note that a group is closed; a new one of all has its communicator."""
        for one, shield in self._shields:
            if one is group and shield.comm is self.comm:
                shield.comm, shield.is_alone = None, True
        self._shields = [one for one in self._shields if one[0] is not group]

    @property
    def listen(self) -> str:
        """Where other hosts reach this process; nothing where there are none."""
        if self.meeting is None or not self.meeting.standing.welcome.hosts:
            return ""
        return f"{own_address(self.meeting.towards)}:0"

    @property
    def secret(self) -> bytes:
        """What all ranks know, where they met over TCP."""
        return b"" if self.meeting is None else self.meeting.secret

    def _meet(self, rank: int, size: int, timeout_s: float) -> None:
        explicit = () if "RANK" in os.environ else (rank, size)
        place, listener = agree(find_place(*explicit), timeout_s)
        _require_all(size, place.num_ranks)
        self.meeting, self.stands_by = meet_elastic(place, timeout_s, listener)
        self.job = place.job
        self.standing.tell(**{READY if self.stands_by else WHOLE: False})
        atexit.register(self._tell_failure)
        self.standing.on_ask = lambda order: self.on_ask(order)
        self.standing.on_news = lambda news: self.on_news(news)
        self._watch_changes()

    def _watch_changes(self) -> None:
        """Be asked before each generation, when it has been seen who is gone."""
        standing = self.standing

        def prepare(asked: Prepare) -> str | None:
            if self.on_plan(asked):
                return None
            agreed = time.monotonic()
            failure = see_gone(standing, asked) or self.on_prepare(asked)
            self.times = {"agreed": agreed, "fenced": time.monotonic()}
            return failure

        standing.on_prepare = prepare
        standing.on_prepare_without = self._hear_of

    def _tell_failure(self) -> None:
        """Be lost, and not gone in order, when an exception ends this process."""
        error = getattr(sys, "last_value", None)
        if error is not None and self.meeting is not None:
            self.meeting.close(f"ended with {type(error).__name__}: {error}"[:1000])

    def _hear_of(self, asked: Prepare) -> None:
        self.on_plan(asked)

    def _open(self, shield: Shield, name: str) -> None:
        """Open a group's communicator (collective)."""
        meeting = self.meeting
        assert meeting is not None, "it has met"
        if self.comm is None:
            comm = open_elastic(meeting, self.elastic, comes_late=False)
            self.comm, shield.comm = comm, comm
            self._watch_changes()
        elif len(self._shields) == 1:
            shield.comm = self.comm
        else:
            shield.comm = self.comm._part(name, shield.members, comes_late=False)
        shield.comm.deadline_s = shield.deadline_s
        shield.is_alone = False

    # Faults, and what follows.

    def absorb(self, error: BaseException) -> bool:
        """Take note of a fault; return whether the step goes on to its end alone."""
        if not self.absorbs:
            return False
        with self._lock:
            self.fault, self._is_apart = self.fault or error, True
            for _, shield in self._shields:
                shield.is_alone = True
        return True

    def break_(self, fault: Fault) -> None:
        """End what this rank is in the midst of."""
        assert self.comm is not None, "it is a rank"
        peers_of(self.comm._group).break_(fault)

    def give_up(self, why: str) -> CommunicatorBroken:
        """End what all ranks are in the midst of; return what to raise."""
        assert self.comm is not None, "it is a rank"
        text = f"rank {self.comm.rank} {why}"[:1000]
        peers_of(self.comm._group).declare(Fault(error="CommunicatorBroken", text=text))
        return CommunicatorBroken(text)

    def later(self, call: Callable[..., None], *args: Any) -> None:
        """Call something in the watcher thread, in a while."""
        assert self.meeting is not None, "it has met"
        self.meeting.soon(functools.partial(call, *args), _LATER_S)

    def rejoin(self) -> None:
        """Let all groups' calls be real again."""
        if self._is_apart:
            self._is_apart, self.fault = False, None
            for _, shield in self._shields:
                shield.is_alone = shield.comm is None

    def go_on(self, change: Callable[[Communicator], Any]) -> None:
        """Change the ranks, and have all groups go on with them (collective)."""
        assert self.comm is not None, "it is a rank"
        change(self.comm)
        self._reseat()

    def take_place(self) -> None:
        """Become a rank, in the generation that has begun with this process."""
        assert self.meeting is not None, "it has met"
        whole, group = self._shields[0][1], self.meeting.current()
        try:
            self.comm = Communicator(group, elastic=self.elastic, comes_late=True)
        except BaseException:
            group.close()  # somebody was lost just now; another generation follows
            raise
        self._watch_changes()
        self.meeting.is_held = False
        whole.comm, self.comm.deadline_s = self.comm, whole.deadline_s
        self.stands_by = False
        self._reseat()

    def let_go(self) -> None:
        """Give this rank's memory and groups back, and stay in the job."""
        assert self.meeting is not None, "it has met"
        self.meeting.is_held = self._is_apart = True
        for _, shield in self._shields:
            shield.is_alone = True
            if shield.comm is not None:
                shield.comm.close()
                shield.comm = None
        self.comm, self._left = None, self.standing.generation

    def step_back(self, left: int | None = None) -> None:
        """Stand by from now on; `left`: since which generation, if not just now."""
        self.let_go()
        if left is not None:
            self._left = left
        self.stands_by, self.fault = True, None

    def stand_by(self, ready: Callable[[], None]) -> None:
        """Return once this process is a rank, in another generation than before.

        `ready` says that it may become one.
        """
        standing = self.standing
        assert self.meeting is not None, "it has met"
        self.meeting.is_held = True
        if self._left:
            mine = {standing.identity}
            standing.wait(
                lambda: self._is_past or not self.somebody_is_whole(mine), None
            )
            if not self._is_past:
                raise MembershipError(
                    "all ranks that had a state are gone; begin anew from a checkpoint"
                )
        ready()
        try:
            stand_by(standing)
        except CommunicationError:
            if standing.is_done:  # nobody needed it
                sys.exit(0)
            raise

    @property
    def _is_past(self) -> bool:
        return self.standing.generation > self._left

    def somebody_is_whole(self, but: Set[str]) -> bool:
        """Return whether a rank is left that has a state, beside some."""
        standing = self.standing
        others = [i for i in standing.identities if i not in but]
        here = [i for i in others if i not in standing.gone]
        return any(standing.facts.get(i, {}).get(WHOLE) for i in here)

    @property
    def seat(self) -> tuple[int, int]:
        """The rank that this process has, or plays while it stands by, of how many."""
        shield = self._shields[0][1]
        return shield.rank, shield.num_ranks

    def exchange(self, said: Mapping[str, Any]) -> list[Any]:
        """Give a small part, and return all ranks' (collective)."""
        assert self.comm is not None, "it is a rank"
        parts = self.comm._group.exchange({"elastic": dict(said)})
        return [part["elastic"] for part, _ in parts]

    def close(self) -> None:
        """Leave the job in order."""
        if self.meeting is not None:
            self.meeting.close()

    def _reseat(self) -> None:
        comm = self.comm
        assert comm is not None, "it is a rank"
        ranks = tuple(range(comm.num_ranks))
        for group, shield in self._shields:
            if shield.comm is comm or shield.comm is None:
                shield.seat(ranks, comm.rank)
                group.seat(comm.rank, comm.num_ranks, ranks)
        self._reseat_parts()

    def note_places(self) -> None:
        """Learn of which groups every rank is (collective).

        A whole group may be lost at once: who takes its places hears it from others.
        """
        if len(self._shields) > 1:
            said = self.exchange({"parts": self._parts()})
            self._places = [one["parts"] for one in said]

    def _parts(self) -> list[GroupPlace]:
        return [(s.name, list(s.members)) for _, s in self._shields[1:]]

    def _reseat_parts(self) -> None:
        """Have the other groups go on, too: those of the place that this rank has.

        Whoever came learns from the others which these are.
        """
        comm = self.comm
        assert comm is not None, "it is a rank"
        parts = self._shields[1:]
        comes = any(shield.comm is None for _, shield in parts)
        said = self.exchange({"parts": self._parts(), "comes": comes,
                              "places": self._places})  # fmt: skip
        self._places = places_of(said)
        mine = self._places[comm.rank]
        for (group, shield), (name, members) in zip(parts, mine, strict=True):
            shield.seat(members, members.index(comm.rank))
            shield.name = name
            if shield.comm is None:
                shield.comm = comm._part(name, members, comes_late=True)
                shield.comm.deadline_s = shield.deadline_s
            else:
                shield.comm._renew_part(comm, name, members)
            group.seat(shield.rank, len(members), members)


def _require_all(size: int, there_are: int) -> None:
    if size != there_are:
        raise CallError(
            f"the first group has {size} ranks, the job {there_are}: where ranks may "
            "change it is the group of all"
        )


_worlds: list[ElasticWorld] = []


def enable(elastic: Elastic | None = None) -> None:
    """Let ranks change, of the groups that are made from now on.

    Under `stretto launch` this has been done, and `elastic` said there. To do it again
    changes nothing.
    """
    if _worlds:
        return
    if dist.is_initialized():
        raise CallError("enable: a group exists already; call it before the first one")
    said = Elastic.of_environment() or elastic or Elastic()
    _worlds.append(ElasticWorld(said))
    torch_meeting.elsewhere.append(_worlds[0])


def is_enabled() -> bool:
    """Return whether ranks may change here."""
    return bool(_worlds)


def stands_by() -> bool:
    """Return whether this process is no rank (yet)."""
    return bool(_worlds) and _worlds[0].stands_by


def world() -> ElasticWorld:
    """Return this process's part in the job."""
    if not _worlds:
        raise CallError(
            "the ranks of this job stay as they came: start it with `stretto launch "
            "--standby 1`, or call stretto.torch.elastic.enable() before "
            "init_process_group"
        )
    return _worlds[0]
