"""What one rank knows of its groups: events in, broken groups out; no I/O.

Who is there, and who is gone, is the world's matter (`WorldView`); here it breaks
groups.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import assert_never

from stretto.fabric.faults import Fault, left_fault, left_out_fault, lost_fault
from stretto.fabric.meeting.groups import Group
from stretto.fabric.messages import (
    Abandoned,
    Came,
    Departed,
    Errand,
    Lost,
    Prepare,
    Say,
    Welcome,
)
from stretto.fabric.view import Event, WorldView


@dataclass(frozen=True, slots=True, kw_only=True)
class Break:
    """A group cannot go on."""

    group: str
    fault: Fault


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkDeparted:
    """A member of a group left in order."""

    group: str
    rank: int
    after: Fault | None = None
    """The fault after which it left, if there was one."""


Action = Break | MarkDeparted | Welcome | Prepare | Abandoned | Errand


@dataclass(slots=True, kw_only=True)
class Membership:
    """One rank's groups; `on` takes an event of its world and returns what changed."""

    view: WorldView
    groups: dict[str, Group] = field(default_factory=dict)
    broken: dict[str, Fault] = field(default_factory=dict)

    def hub_fault(self, what: str) -> Fault | None:
        """Return why nothing can be exchanged any more, once that is known.

        A group without the hub's rank outlives it, as far as calls that are known go.
        """
        view = self.view
        home = view.welcome.home
        if not view.hub_ended or home not in view.gone:
            return None
        host, how = view.rank_of(home), view.gone[home]
        after = view.after.get(home)
        fault = lost_fault(host, how) if how else left_fault(host, what, after=after)
        text = f"{fault.text}; it hosted the rendezvous, which {what} needs"
        return replace(fault, text=text)

    def departed(self, group: Group) -> dict[int, Fault | None]:
        """Return which ranks of a group left in order, and after which fault."""
        view = self.view
        who = self._members(group)
        return {r: view.after.get(i) for r, i in who if view.gone.get(i) == ""}

    def join(self, group: Group) -> Fault | None:
        """Watch a group from now on; return the fault it was born with, if any."""
        self.groups[group.name] = group
        if group.survives:
            return None
        fate = group.fate
        if fate.name in self.broken:
            self.broken.setdefault(group.name, self.broken[fate.name])
        for rank, identity in self._members(fate):
            if how := self.view.gone.get(identity):
                fault = lost_fault(rank, how, fate.name_ranks([rank]))
                self.broken.setdefault(group.name, fault)
        if (fault_or_none := self._left_out(group)) is not None:
            self.broken.setdefault(group.name, fault_or_none)
        return self.broken.get(group.name)

    def on(self, event: Event, now: float) -> list[Action]:
        """Take an event; return what changed."""
        actions: list[Action] = []
        for change in self.view.on(event, now):
            match change:
                case Lost(identity=identity, how=how):
                    actions += self._lose(identity, how)
                case Departed(identity=identity):
                    actions += self._lose(identity, "")
                case Fault():
                    actions += self._break(None, change)
                case Welcome():
                    actions += [*self._renew(), change]
                case Prepare() | Abandoned() | Errand():
                    actions.append(change)
                case Came() | Say():
                    pass
                case _:
                    assert_never(change)
        return actions

    def judge(self, group: str, fault: Fault) -> list[Break]:
        """Take the hub's word that ends a group, or (with none named) all of them."""
        return self._break([group] if group else None, fault)

    def _members(self, group: Group) -> Iterable[tuple[int, str]]:
        """Return the world ranks of a group, and who they are."""
        identities = self.view.generations.identities(group.members, group.generation)
        return zip(group.members, identities, strict=True)

    def _left_out(self, group: Group) -> Fault | None:
        if group.survives:
            return None
        fate = group.fate
        out = self.view.generations.left_out(fate.members, fate.generation)
        return left_out_fault(out, fate.name_ranks(out)) if out else None

    def _lose(self, identity: str, how: str) -> list[Action]:
        actions: list[Action] = []
        for group in [g for g in self.groups.values() if not g.survives]:
            for rank, member in self._members(group.fate):
                if member == identity and not how and rank in group.members:
                    after = self.view.after.get(identity)
                    mark = MarkDeparted(group=group.name, rank=rank, after=after)
                    actions.append(mark)
                elif member == identity and how:
                    fault = lost_fault(rank, how, group.fate.name_ranks([rank]))
                    actions += self._break([group.name], fault)
        return actions

    def _renew(self) -> list[Action]:
        """Break the groups that the new generation leaves members out of."""
        actions: list[Action] = []
        for group in list(self.groups.values()):
            if (fault := self._left_out(group)) is not None:
                actions += self._break([group.name], fault)
        return actions

    def _break(self, names: list[str] | None, fault: Fault) -> list[Break]:
        chosen = list(self.groups) if names is None else list(names)
        chosen += [g.name for g in self.groups.values() if g.fate.name in chosen]
        fresh = [
            name
            for name in dict.fromkeys(chosen)
            if name in self.groups and name not in self.broken
        ]
        self.broken.update(dict.fromkeys(fresh, fault))
        return [Break(group=name, fault=fault) for name in fresh]
