"""Links shared fairly: every flow gets as much as it can without taking from a smaller.

Rates are max-min fair: whoever could have more meets a full link, its *neck*, on which
nobody has more. Between two events rates are constant, so a flow's end is known. When
flows come and go, those whose neck is touched are filled anew; if that is unfair to
others, or they to it, these too, until it is fair to all.

A flow of weight 2 gets twice what one of weight 1 gets on the same neck. `compiled.py`
does the same, to the last bit: whoever changes one changes the other.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

__all__ = ["LinkShare", "Sharing"]


class LinkShare:
    """Bytes on their way over some links, at a rate that others change."""

    __slots__ = (
        "age", "at_most", "ends_at", "left", "links", "neck", "owner", "rate", "since",
        "weight",
    )  # fmt: skip

    def __init__(
        self,
        links: tuple[int, ...],
        nbytes: float,
        at_most: float,
        owner: object,
        weight: float = 1.0,
    ) -> None:
        self.links = links
        self.left = nbytes
        self.at_most = at_most
        """What the sender itself can do, in bytes a microsecond."""
        self.owner = owner
        self.weight = weight
        self.neck = _ITSELF
        """The full link that holds it back, unless it does so itself."""
        self.age = 0
        """Of its end, which is an event, in the order in which these are made."""
        self.rate = 0.0
        self.since = 0.0
        self.ends_at = math.inf


class Sharing:
    """All flows, and the links they are on. Rates are bytes a microsecond."""

    __slots__ = ("_capacity", "_on", "fresh", "touched")

    def __init__(self, capacity: Iterable[float]) -> None:
        self._capacity = list(capacity)
        self._on: list[dict[LinkShare, None]] = [{} for _ in self._capacity]
        # dicts, not sets: their order is that of insertion, the same in every run
        self.touched: dict[int, None] = {}
        self.fresh: dict[LinkShare, None] = {}

    def add(self, flow: LinkShare, now: float) -> None:
        """Let a flow begin; it has no rate before the next `settle`."""
        flow.since = now
        self.fresh[flow] = None
        for link in flow.links:
            self._on[link][flow] = None

    def remove(self, flow: LinkShare) -> None:
        """Take a flow off its links."""
        for link in flow.links:
            on = self._on[link]
            del on[flow]
            if on:
                self.touched[link] = None

    def settle(self, now: float) -> list[LinkShare]:
        """Give every flow its fair rate, and return those whose end has changed."""
        changed: list[LinkShare] = []
        affected: dict[LinkShare, None] = {}
        for flow in self.fresh:
            if all(len(self._on[link]) == 1 for link in flow.links):
                neck = min(flow.links, key=self._capacity.__getitem__)
                rate = min(flow.at_most, self._capacity[neck])
                flow.neck = neck if rate < flow.at_most else _ITSELF
                _set(flow, rate, now, changed)
            else:
                affected[flow] = None
        for link in self.touched:
            affected.update((f, None) for f in self._on[link] if f.neck == link)
        while affected:
            rates, necks = self._fill(affected)
            wronged = self._wronged(rates, necks)
            if not wronged:
                for flow, rate in rates.items():
                    flow.neck = necks[flow]
                    _set(flow, rate, now, changed)
                break
            affected.update(wronged)
        self.fresh.clear()
        self.touched.clear()
        return changed

    def _fill(
        self, flows: dict[LinkShare, None]
    ) -> tuple[dict[LinkShare, float], dict[LinkShare, int]]:
        """Raise the rates of some flows together, the others left as they are.

        Whoever meets a full link, its neck, or its own limit stops there.
        """
        room: dict[int, float] = {}
        count: dict[int, float] = {}
        """By link, the weights of those that have not stopped."""
        for flow in flows:
            for link in flow.links:
                if link not in room:
                    taken = 0.0  # not `sum`, which rounds otherwise since Python 3.12
                    for f in self._on[link]:
                        if f not in flows:
                            taken += f.rate
                    room[link] = max(0.0, self._capacity[link] - taken)
                count[link] = count.get(link, 0.0) + flow.weight
        rates: dict[LinkShare, float] = {}
        necks: dict[LinkShare, int] = {}
        limited = sorted(flows, key=lambda f: f.at_most / f.weight, reverse=True)
        while limited:
            if limited[-1] in rates:
                limited.pop()
                continue
            level = min((room[k] / count[k] for k in count), default=math.inf)
            if limited[-1].at_most / limited[-1].weight <= level:
                level = limited[-1].at_most / limited[-1].weight
                stopped = {limited.pop(): _ITSELF}
            else:
                full = [k for k in count if room[k] / count[k] <= level * _SAME]
                stopped = {
                    f: k
                    for k in full
                    for f in self._on[k]
                    if f in flows
                    if f not in rates
                }
            for flow, neck in stopped.items():
                rate = level * flow.weight
                rates[flow], necks[flow] = rate, neck
                for link in flow.links:
                    room[link] = max(0.0, room[link] - rate)
                    count[link] -= flow.weight
                    if count[link] < _NONE:
                        del count[link]
        return rates, necks

    def _wronged(
        self, rates: dict[LinkShare, float], necks: dict[LinkShare, int]
    ) -> dict[LinkShare, None]:
        """Return the other flows that these rates are unfair to, or that are to them.

        Fair is: whoever could have more meets a full link on which nobody has more.
        """
        wronged: dict[LinkShare, None] = {}
        links = dict.fromkeys(link for flow in rates for link in flow.links)
        for link in links:  # those of a touched neck are all among ours
            others = [f for f in self._on[link] if f not in rates]
            if not others:
                continue
            ours = [f for f in self._on[link] if f in rates]
            most = max((rates[f] / f.weight for f in ours), default=0.0)
            level = max(
                (rates[f] / f.weight for f in ours if necks[f] == link),
                default=math.inf,
            )
            total = 0.0
            for f in self._on[link]:
                total += rates.get(f, f.rate)
            is_full = total * _NEAR >= self._capacity[link]
            for flow in others:
                share = flow.rate / flow.weight
                behind = not is_full or share * _NEAR < most
                if (flow.neck == link and behind) or share > level * _NEAR:
                    wronged[flow] = None
        return wronged


def _set(flow: LinkShare, rate: float, now: float, changed: list[LinkShare]) -> None:
    if abs(rate - flow.rate) <= rate * 1e-12:
        return
    flow.left = max(0.0, flow.left - flow.rate * (now - flow.since))
    flow.since = now
    flow.rate = rate
    flow.ends_at = now + flow.left / rate if rate > 0 else math.inf
    changed.append(flow)


_ITSELF = -1
_NONE = 1e-9
"""What rounding may leave of weights when all have stopped."""
_SAME, _NEAR = 1 + 1e-12, 1 + 1e-9
