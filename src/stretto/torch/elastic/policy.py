"""What is asked of a job while it trains, and when it is done: between two steps.

A change that nobody's death asks for is prepared while the ranks train. Each step's
flag tells whether all of them have heard of the very same one; then all change after
that step. Its methods are called in the watcher thread, but for those that say so.

A loss comes first: what was planned is given up, for ranks that recover end no step,
and nobody would ever say that it is ready. Who was told to leave leaves afterwards.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from stretto.errors import MembershipError
from stretto.fabric.faults import Fault
from stretto.fabric.messages import Abandoned, Errand, Prepare, Welcome
from stretto.runtime.calls.spares import YIELDS, spare_of, unfit_of

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
        self.goes: dict[str, bool] = {}
        """Whom that change leaves out, and whether it stands by from then on."""
        self._leaving: dict[str, bool] = {}
        """Who was told to leave, and has not yet."""
        self._planned: tuple[str, ...] = ()
        self._recovers = self._has_refused = self._is_due = False
        self._order, self._lock = "", threading.Lock()
        part.on_ask, part.on_plan = self.hear, self.plan
        part.on_news = self.news

    def give_up(self) -> None:
        """Plan nothing until `resume`: somebody was lost (main thread).

        All hear at once that what was planned comes to nothing.
        """
        with self._lock:
            self._recovers = True
            attempt, self.attempt = self.attempt, 0
        if attempt:
            self._refuse_change(attempt)

    def resume(self) -> None:
        """Plan again: all go on (main thread)."""
        self._recovers = False

    def _refuse_change(self, attempt: int) -> None:
        self._world.standing.agree(attempt, "goes on without a rank that was lost")

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
            self._leaving |= dict.fromkeys(about, stays)
            self._drain()
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

    def _drain(self) -> None:
        """Propose the ranks without whoever was told to leave."""
        self._is_due = False
        self._suggest([*self._leaving], 0)

    def _drain_later(self) -> None:
        if not self._is_due:
            self._is_due = True
            self._world.later(self._drain)

    def _suggest(self, leaving: list[str], more: int) -> None:
        """Propose the ranks that follow; the first of them does it for all."""
        standing = self._world.standing
        here = [i for i in standing.identities if i not in standing.gone]
        leaving = [i for i in leaving if i in here]
        if not here or standing.identity != here[0] or not (leaving or more):
            return
        try:
            wanted = len(standing.identities) + more
            self._world.elastic.check_most(wanted, f"grow({more})")
        except MembershipError as e:
            self._refuse(str(e))
            return
        leaving = leaving[:1]  # the others stay meanwhile, and have the state
        spare = spare_of(standing, leaving)
        if len(spare) < len(leaving) + more:
            if leaving:
                self._drain_later()
            else:
                self._world.later(self._suggest, [], more)
            return
        free = iter(spare)
        order = [next(free) if i in leaving else i for i in standing.identities]
        order += [next(free) for _ in range(more)]
        standing.suggest(order, after=standing.generation, timeout_s=_PREPARE_S)

    def plan(self, asked: Prepare) -> bool:
        """Return whether a change waits for a step's end, or is refused.

        Not one that follows a loss: it leaves out who is gone, or nobody at all.
        """
        standing, order = self._world.standing, asked.identities
        goes = [i for i in standing.identities if i not in order]
        if self._world.stands_by or not standing.is_rank:
            return self._waits_for(goes, asked)
        if order == standing.identities or any(map(self.is_away, goes)):
            return False
        with self._lock:
            if not self._recovers:
                self.goes = {i: self._leaving.get(i, False) for i in goes}
                self.attempt, self._planned = asked.attempt, order
                return True
        self._refuse_change(asked.attempt)
        return True

    def _waits_for(self, goes: list[str], asked: Prepare) -> bool:
        """Return whether one that stands by is ready only when all ranks have left.

        A rank that stays waits for those who leave; of some jobs none stays.
        """
        standing = self._world.standing
        stays = len(goes) < len(standing.identities)
        if stays or standing.identity not in asked.identities:
            return False
        if all(map(self.is_away, goes)):
            return False
        self._planned = asked.identities
        self._world.later(self._agree_when_left, goes, asked)
        return True

    def _agree_when_left(self, goes: list[str], asked: Prepare) -> None:
        if self._planned != asked.identities:
            return
        if all(map(self.is_away, goes)):
            self._world.standing.agree(asked.attempt)
        else:
            self._world.later(self._agree_when_left, goes, asked)

    def has_left(self, identity: str) -> bool:
        """Return whether a rank has given its place up, in this generation."""
        standing = self._world.standing
        said = standing.facts.get(identity, {})
        return bool(said.get(YIELDS) == standing.generation)

    def is_away(self, identity: str) -> bool:
        """Return whether a rank has left, or was lost."""
        standing = self._world.standing
        lost = identity in {*standing.gone, *standing.dismissed}
        lost = lost or identity in unfit_of(standing.facts)
        return lost or self.has_left(identity)

    def news(self, news: Welcome | Abandoned) -> None:
        """Plan nothing any more: it has begun, or come to nothing.

        Whoever has yet to leave is proposed again.
        """
        standing = self._world.standing
        if isinstance(news, Welcome) or news.identities == self._planned:
            self.attempt, self._planned = 0, ()
        self._leaving = {
            i: stays for i, stays in self._leaving.items() if i in standing.identities
        }
        if self._leaving and not self._world.stands_by:
            self._drain_later()
