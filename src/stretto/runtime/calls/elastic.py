"""What a communicator is and has where its ranks may change; how is in changing.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stretto.arrays import CPU
from stretto.errors import CommunicationError, CommunicatorBroken, is_interruption
from stretto.executors import Group
from stretto.fabric.meeting.peers import PeerGroup
from stretto.runtime.calls import changing
from stretto.runtime.calls.ahead import Ahead, Readiness
from stretto.runtime.calls.changing import make_elastic
from stretto.runtime.calls.options import Elastic
from stretto.runtime.calls.runner import CallRunner
from stretto.runtime.calls.spares import tell_opened
from stretto.runtime.choice.seats import seats_of, settled_places


class ElasticRunner(CallRunner):
    """A rank's side of a group whose ranks may change, if they may."""

    replace, shrink, grow = changing.replace, changing.shrink, changing.grow
    revoke, agree = changing.revoke, changing.agree
    _channels: dict[Any, Any]

    def _make_elastic(self, group: Group, elastic: Elastic | None) -> None:
        """Take note of how ranks may change, before a session is opened."""
        self._elastic = elastic
        if elastic is not None:
            make_elastic(changing.peers_of(group), elastic)

    def _part(self, name: str, members: Sequence[int], *, comes_late: bool) -> Any:
        """Return a communicator of some ranks, which changes with this one.

        Only they call it; one that `comes_late` joins others that go on.
        """
        group = changing.peers_of(self._group).subgroup(name, members)
        group.most_ranks = len(members)
        group.opens_late = self._group.opens_late
        made = type(self)(
            group,
            executor="" if comes_late else CPU,
            profiles=self._profiles,
        )
        who = made._identities()
        if comes_late:
            made._go_on(who)
        made._who = who
        return made

    def _renew_part(self, whole: Any, name: str, members: Sequence[int]) -> None:
        """Go on with some ranks of a communicator that has changed (collective)."""
        group = changing.peers_of(self._group)
        self._forget_channels()
        group.renew_part(changing.peers_of(whole._group), name, members)
        self._serve_renewed()

    def _identities(self) -> tuple[str, ...]:
        """Return who the ranks of the group are."""
        group = changing.peers_of(self._group)
        who = changing.roster_of(group)
        return tuple(who[rank] for rank in group.group.members)

    def _forget_channels(self) -> None:
        for channel in self._channels.values():
            channel._end(retires=True)
        self._channels.clear()

    def _serve_renewed(self) -> None:
        """Serve the ranks that there are now; without newcomers that cannot."""
        try:
            self._go_on(self._identities())
        except Exception as e:
            error = self._broke(e)
            goes_on = not is_interruption(e) and self._goes_without_newcomers(e)
            if not goes_on or isinstance(e, CommunicationError):
                raise error from e.__cause__
            raise CommunicatorBroken(
                f"rank {self.rank}: who came cannot serve: {type(e).__name__}: {e}"
            ) from e
        except BaseException as e:
            raise self._broke(e) from e.__cause__

    def _goes_without_newcomers(self, error: Exception) -> bool:
        standing = changing.peers_of(self._group).standing
        return changing.give_up_newcomers(standing, self._who, error)

    def _opened(self, executor: str) -> None:
        """Tell what this rank stands on, where ranks may change."""
        group = self._group
        if isinstance(group, PeerGroup) and group.most_ranks:
            tell_opened(group.standing, executor)

    def _begin_elastic(self, *, comes_late: bool) -> None:
        """Open what others have, where it comes late; prove for other numbers."""
        who = changing.roster_of(changing.peers_of(self._group))
        ahead = Ahead(self._tell_kinds)
        try:
            if comes_late:
                self._go_on(who)
            else:
                self._sit(range(self.num_ranks))
        except BaseException:
            ahead.end()
            raise
        self._who, self._ahead = who, ahead
        ahead.begin(changing.other_layouts(self), self._profiles)

    def _sit(self, places: Sequence[int]) -> None:
        if self._elastic is not None and self._elastic.machine:
            self._places = settled_places(places)
            self.seats = seats_of(self._elastic.machine, self._places)

    @property
    def generation(self) -> int:
        """How often the ranks have changed."""
        return changing.generation(self)

    @property
    def lost(self) -> tuple[int, ...]:
        """The ranks of this generation that are gone."""
        return changing.lost(self)

    @property
    def standbys(self) -> tuple[str, ...]:
        """Who stands by and may become a rank."""
        return changing.standbys(self)

    def ready_for(self) -> dict[int, Readiness]:
        """Return for how many ranks all kinds of calls so far are proved, by what."""
        return {} if self._ahead is None else self._ahead.ready_for()

    def _tell_kinds(self, kinds: list[str], layouts: Sequence[Any]) -> None:
        group = changing.peers_of(self._group)
        if group.rank == 0:
            group.standing.tell(kinds=kinds, layouts=[list(one) for one in layouts])

    @property
    def inherited(self) -> list[Any]:
        """What the others had of `empty` when this rank came, in their order."""
        return self._session(CPU).inherited()

    def _renew(self) -> None:
        """Go on with the ranks of the generation that has begun (collective)."""
        self._forget_channels()
        changing.peers_of(self._group).renew()
        self._serve_renewed()
        if self._ahead is not None:
            self._ahead.begin(changing.other_layouts(self), self._profiles)
