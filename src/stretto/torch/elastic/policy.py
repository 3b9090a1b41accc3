"""What is asked of a job while it trains, and when it is done: between two steps.

A change that nobody's death asks for is prepared while the ranks train. Each step's
flag tells whether all of them have heard of the very same one; then all change after
that step. Its methods are called in the watcher thread, but for those that say so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stretto.errors import MembershipError
from stretto.fabric.faults import Fault
from stretto.fabric.messages import Abandoned, Errand, Prepare, Welcome
from stretto.runtime.calls.changing import spare_of

if TYPE_CHECKING:
    from stretto.torch.elastic.world import ElasticWorld


_PREPARE_S = 60.0


class Planned:
    """What this rank knows of what is asked."""

    def __init__(self, part: ElasticWorld) -> None:
        """Hear what is asked from now on."""
        self._world = part
        self.attempt = 0
        """The change that this rank has heard of, and that waits for a step's end."""
        self.leaving: dict[str, bool] = {}
        """Who is to leave, and whether it stands by from then on."""
        self._order, self._has_refused = "", False
        part.on_ask, part.on_plan = self.hear, self.plan
        part.on_news = self.news

    def forget(self) -> None:
        """Plan nothing: somebody was lost (main thread)."""
        self.attempt = 0

    def hear(self, order: Errand) -> None:
        """Take what somebody asks."""
        standing = self._world.standing
        about = [i for i in order.about if i in standing.identities]
        if self._has_refused:  # that was of another order
            self._has_refused = False
            standing.tell(refused="")
        self._order = str(order.said.get("order", ""))
        if order.verb == "drain" and about:
            stays = bool(order.said.get("stays"))
            self.leaving |= dict.fromkeys(about, stays)
            self._suggest(about, 0)
        elif order.verb == "grow" and not self._world.stands_by:
            many = order.said.get("n")
            self._suggest([], many if type(many) is int else 0)
        elif order.verb == "replace" and about:
            if not self._world.somebody_is_whole({*about}):
                who = standing.identities.index(about[0])
                self._refuse(f"nobody but rank {who} has the state")
                return
            standing.dismissed.update(about)
            self._break(about)

    def _refuse(self, why: str) -> None:
        """Say why what was asked is not done, until something else is asked."""
        self._has_refused = True
        self._world.standing.tell(refused=why, order=self._order)

    def _break(self, about: list[str]) -> None:
        """End the step: who is late in it is replaced."""
        comm, standing = self._world.comm, self._world.standing
        if comm is None or standing.identity in about:
            return
        ranks = [standing.identities.index(i) for i in about]
        text = f"rank {ranks[0]} is late, and is replaced by order"
        self._world.break_(Fault(error="PeerLost", text=text, blamed=tuple(ranks)))

    def _suggest(self, leaving: list[str], more: int) -> None:
        """Propose the ranks that follow; the first of them does it for all."""
        standing = self._world.standing
        here = [i for i in standing.identities if i not in standing.gone]
        if not here or standing.identity != here[0]:
            return
        try:
            wanted = len(standing.identities) + more
            self._world.elastic.check_most(wanted, f"grow({more})")
        except MembershipError as e:
            self._refuse(str(e))
            return
        spare = spare_of(standing)
        if len(spare) < len(leaving) + more:
            self._world.later(self._suggest, leaving, more)
            return
        free = iter(spare)
        order = [next(free) if i in leaving else i for i in standing.identities]
        order += [next(free) for _ in range(more)]
        standing.suggest(order, after=standing.generation, timeout_s=_PREPARE_S)

    def plan(self, asked: Prepare) -> bool:
        """Return whether a change waits for a step's end: nobody was lost."""
        standing = self._world.standing
        goes = [i for i in standing.identities if i not in asked.identities]
        lost = [i for i in goes if i in standing.gone or i in standing.dismissed]
        if self._world.stands_by or lost or not standing.is_rank:
            return False
        self.attempt = asked.attempt
        return True

    def news(self, news: Welcome | Abandoned) -> None:
        """Plan nothing any more: it has begun, or come to nothing."""
        self.attempt = 0
        if isinstance(news, Welcome):
            here = self._world.standing.identities
            self.leaving = {i: s for i, s in self.leaving.items() if i in here}
