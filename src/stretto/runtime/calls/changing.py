"""Communicators whose ranks change: somebody's place is taken, or ranks go, or come.

A generation begins where its ranks have agreed (`Standing`); then their communicators,
the same objects as before, exchange what is new and go on. Who is left out of it has
been seen gone before anybody is ready: it ended, it said goodbye, or it was ended.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeAlias

from stretto import topology
from stretto.errors import (
    CallError,
    CommunicationError,
    CommunicatorBroken,
    MembershipError,
)
from stretto.fabric.faults import Fault, name_ranks
from stretto.fabric.meeting.peers import PeerGroup
from stretto.fabric.meeting.standing import Standing
from stretto.fabric.messages import Prepare
from stretto.fabric.notices import notify
from stretto.runtime.calls.ahead import RankLayout, nearest, seated
from stretto.runtime.calls.options import Elastic, waited
from stretto.runtime.calls.spares import (
    UNFIT,
    YIELDS,
    lost_of,
    ready_of,
    spare_of,
    state_of,
    unfit_of,
    why_not,
)

_PAUSE_S = 0.05
_VERDICT_S = 1.0
"""How long it may take until all hear of a loss."""
Order: TypeAlias = tuple[str, ...]


def make_elastic(peers: PeerGroup, elastic: Elastic) -> None:
    """Let the group of all ranks be one whose ranks change."""
    peers.most_ranks = max(elastic.max_ranks, peers.num_ranks)
    if elastic.machine and peers.most_ranks > topology.load(elastic.machine).num_ranks:
        raise CallError(
            f"{peers.most_ranks} ranks on {elastic.machine} (machine of Elastic); want "
            "a machine of so many places"
        )
    standing = peers.standing
    standing.on_prepare = lambda prepare: see_gone(standing, prepare)


def other_layouts(self: Any) -> tuple[RankLayout, ...]:
    """Return which ranks there may come to be, and where; what is nearest first."""
    now, most = self.num_ranks, self._group.most_ranks
    least = max(1, self._elastic.least(self._first_ranks))
    sizes = sorted(range(least, most + 1), key=lambda n: (abs(n - now), n))
    if self._places:
        return seated(sizes, self._elastic.machine, self._places)
    return nearest(sizes, self.hosts)


def see_gone(standing: Standing, prepare: Prepare) -> str:
    """See that who is left out can write nothing any more; return why not, if so.

    It has left in order, or has said goodbye to this generation, or it is ended here
    and now. On other hosts what connects it with them is closed before they go on. One
    that stands by, and was a rank once, ends nobody: ranks may wait with that.
    """
    if not standing.is_rank:
        return ""
    gone, facts, now = standing.gone, standing.facts, standing.generation
    goes = [i for i in standing.identities if i not in prepare.identities]
    bye = [i for i in goes if facts.get(i, {}).get(YIELDS) == now or gone.get(i) == ""]
    return standing.processes.fence(i for i in goes if i not in bye)


def replace(self: Any, *, within_s: float | None = None) -> Any:
    """Go on with a standby in the place of each rank that was lost (collective).

    All that are left call it; who stood by becomes a rank in its `connect`. Memory of
    `empty` stays. Without a standby, once they were waited for, the ranks become fewer
    if `min_ranks` allows it; else this is a `MembershipError`.
    """
    elastic, wait_s = _elastic(self, "replace", within_s)
    if wait_s is None:
        wait_s = elastic.wait_s if elastic.standby else 0.0
    waits_until, least = time.monotonic() + wait_s, elastic.least(self._first_ranks)

    def choose(standing: Standing) -> Order | None:
        return _filled(standing, least, waits_until)

    return change(self, choose, wait_s + self.deadline_s)


def _filled(standing: Standing, least: int, waits_until: float) -> Order | None:
    """Return the ranks with standbys in the places of the lost; None: wait for some."""
    lost = lost_of(standing)
    spare = spare_of(standing, lost)
    if len(spare) < len(lost):
        if time.monotonic() < waits_until:
            return None
        _check_least(least, standing, len(spare))
    free = iter(spare)
    filled = (next(free, None) if i in lost else i for i in standing.identities)
    return tuple(i for i in filled if i is not None)


def replace_early(
    peers: PeerGroup, elastic: Elastic, num_ranks: int, deadline_s: float
) -> bool:
    """Begin a generation without who was lost while all connected, and wait for it.

    Those who stand by take their places, as by `replace`. Return whether there is one:
    else nobody was lost.
    """
    standing, before = peers.standing, peers.group.generation
    if standing.is_over or standing.identity in unfit_of(standing.facts):
        return False
    if standing.generation == before and not lost_of(standing):
        return False
    wait_s, now = elastic.wait_s if elastic.standby else 0.0, time.monotonic()
    standing.on_prepare = lambda prepare: see_gone(standing, prepare)
    while standing.generation == before:
        order = _filled(standing, elastic.least(num_ranks), now + wait_s)
        _begin(standing, order, before, now + wait_s + deadline_s)
    return True


def shrink(self: Any, *, within_s: float | None = None) -> Any:
    """Go on without the ranks that were lost (collective); ranks may be renumbered."""
    _, wait_s = _elastic(self, "shrink", within_s)

    def choose(standing: Standing) -> Order:
        _check_least(self._elastic.least(self._first_ranks), standing, 0)
        lost = lost_of(standing)
        return tuple(i for i in standing.identities if i not in lost)

    return change(self, choose, self.deadline_s if wait_s is None else wait_s)


def grow(self: Any, n: int = 1, *, within_s: float | None = None) -> Any:
    """Go on with so many more ranks, of those that stand by (collective)."""
    (more,) = self._read("grow", n=n)
    elastic, wait_s = _elastic(self, "grow", within_s)
    elastic.check_most(self.num_ranks + more, f"rank {self.rank}: grow({more})")
    wait_s = elastic.wait_s if wait_s is None else wait_s
    until = time.monotonic() + wait_s

    def choose(standing: Standing) -> Order | None:
        spare = spare_of(standing, ())
        if len(spare) >= more:
            return (*standing.identities, *spare[:more])
        if time.monotonic() < until:
            return None
        raise MembershipError(
            f"rank {self.rank}: grow({more}): {len(spare)} stand by, want {more}: "
            "start more with `stretto standby`"
        )

    return change(self, choose, wait_s + self.deadline_s)


def revoke(self: Any, why: str = "") -> None:
    """Break this communicator on all ranks: whoever is in a call of it leaves that."""
    (why,) = self._read("revoke", why=why)
    _check_open(self, "revoke")
    said = f"rank {self.rank} revoked this communicator{why and ': '}{why}"[:1000]
    if isinstance(self._group, PeerGroup):
        self._group.declare(Fault(error="CommunicatorBroken", text=said))
    else:
        self._broke(CommunicatorBroken(said))


def agree(self: Any, flag: bool = True) -> bool:
    """Return whether all ranks that are left say so; the same on each of them.

    All of them call it, also of a communicator that has broken.
    """
    (flag,) = self._read("agree", flag=flag)
    _check_open(self, "agree")
    if not isinstance(self._group, PeerGroup):
        return all(part["flag"] for part, _ in self._group.exchange({"flag": flag}))
    said = self._group.survey("agree", {"flag": flag})
    return all(one["flag"] for one in said if one is not None)


# How a change is made.


def change(
    self: Any, choose: Callable[[Standing], Order | None], within_s: float
) -> Any:
    """Propose what is chosen until a generation begins, and go on with it.

    `choose` returns who shall be the ranks, or None while it waits for somebody. What
    another rank proposes is as good.
    """
    _check_open(self, "change")
    peers = peers_of(self._group)
    standing, until = peers.standing, time.monotonic() + within_s
    self._wait_started()
    while True:
        before = peers.group.generation
        if standing.generation == before:
            order = choose(standing)
            if order == standing.identities and not peers.broken[0]:
                return self
            _begin(standing, order, before, until)
        if standing.generation == before:
            continue
        try:
            self._renew()
        except CommunicationError:
            is_past = standing.generation > peers.group.generation
            goes_on = is_past or lost_of(standing)
            if standing.is_over or not goes_on or time.monotonic() > until:
                raise
            continue  # one more was lost meanwhile, and the others may be further
        return self


def give_up_newcomers(
    standing: Standing, before: Sequence[str], error: Exception
) -> bool:
    """Return whether all go on without who came, as it cannot serve: all hear why.

    Those who stay did without it `before`. Not where somebody was lost meanwhile.
    """
    came = [i for i in standing.identities if i not in before]
    if not came or not before or standing.is_over:
        return False
    failed = standing.generation

    def hears() -> bool:
        return bool(lost_of(standing)) or standing.generation > failed

    if isinstance(error, CommunicationError):
        with suppress(CommunicationError):
            standing.wait(hears, _VERDICT_S)
    if not hears() and not standing.is_over:
        why = f"{type(error).__name__}: {error}"[:1000]
        here = {*standing.identities, *standing.standbys}
        known = {i: w for i, w in standing.told.get(UNFIT, {}).items() if i in here}
        standing.tell(**{UNFIT: known | dict.fromkeys(came, why)})
        with suppress(CommunicationError):
            standing.wait(hears, _VERDICT_S)
        stays = [i for i in standing.identities if i not in came]
        if stays[0] == standing.identity:
            who = name_ranks(standing.identities.index(i) for i in came)
            notify(f"{who}, who came in place of others, cannot serve: {why}")
    return hears()


def _begin(standing: Standing, order: Order | None, before: int, until: float) -> None:
    """Propose ranks; return when a generation has begun, or one may choose anew."""
    known = len(standing.gone), len(standing.standbys), dict(standing.facts)

    def is_new() -> bool:
        now = len(standing.gone), len(standing.standbys), standing.facts
        return standing.generation > before or now != known

    left_s = max(0.1, until - time.monotonic())
    try:
        if order is not None:
            standing.propose(order, after=before, timeout_s=left_s)
            return
    except CommunicationError:
        if standing.is_over or time.monotonic() > until:
            raise
    try:  # somebody else has proposed, or somebody has gone, or is yet to come
        standing.wait(is_new, _PAUSE_S)
    except CommunicationError:
        if standing.is_over or time.monotonic() > until:
            raise


def _check_least(least: int, standing: Standing, spare: int) -> None:
    lost = lost_of(standing)
    ranks = [r for r, i in enumerate(standing.identities) if i not in lost]
    least = max(1, least)
    if len(ranks) + spare < least:
        who = "nobody stands by" if not spare else f"{spare} stand by"
        raise MembershipError(
            f"{name_ranks(ranks)} of {len(standing.identities)} are left and {who}; "
            f"want at least {least} (min_ranks){_why_so_few(standing)}"
        )


def _why_so_few(standing: Standing) -> str:
    """Return in words how ranks were lost, and why those that are here take none."""
    facts, identities = standing.facts, standing.identities
    unfit, gone = unfit_of(facts), standing.gone
    said = []
    for rank, one in enumerate(identities):
        how = f"cannot serve: {unfit[one]}" if one in unfit else gone.get(one, "")
        said += [f"rank {rank} {how}"] if how else []
    free = [i for i in standing.standbys if why_not(i, identities, facts)]
    said += [f"one that came {state_of(i, identities, facts)}" for i in free]
    return "".join(f"; {one}" for one in said)


def peers_of(group: Any) -> PeerGroup:
    """Return a group as one of a meeting."""
    if not isinstance(group, PeerGroup):
        raise CallError(f"no meeting is behind a {type(group).__name__}")
    return group


def roster_of(group: PeerGroup) -> tuple[str, ...]:
    """Return who the ranks of a group of all are."""
    return group.standing.roster_in(group.group.generation)


def generation(self: Any) -> int:
    """Return how often the ranks have changed."""
    group = self._group
    if not isinstance(group, PeerGroup):
        return 0
    return group.group.generation - group.standing.since


def lost(self: Any) -> tuple[int, ...]:
    """Return the ranks of this generation that are gone."""
    group = self._group
    if not isinstance(group, PeerGroup):
        return ()
    who = roster_of(group)
    gone = group.standing.gone
    return tuple(r for r, world in enumerate(group.group.members) if who[world] in gone)


def standbys(self: Any) -> tuple[str, ...]:
    """Return who stands by and may become a rank."""
    group = self._group
    return tuple(ready_of(group.standing)) if isinstance(group, PeerGroup) else ()


def _check_open(self: Any, what: str) -> None:
    if self._closed:
        raise CallError(f"rank {self.rank}: {what}: this communicator is closed")


def _elastic(
    self: Any, what: str, within_s: float | None
) -> tuple[Elastic, float | None]:
    """Return how ranks may change, and how long this call may wait, if it says so."""
    if within_s is not None:
        within_s = waited(f"rank {self.rank}: {what}", within_s, "within_s")
    _check_open(self, what)
    if self._elastic is None:
        raise CallError(
            f"rank {self.rank}: {what}: the ranks of this communicator stay as they "
            "came; want connect(elastic=stretto.Elastic(...)), and not a part of it"
        )
    return self._elastic, within_s
