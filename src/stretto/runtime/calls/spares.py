"""Who may take a place, by what members say of themselves; nothing is asked here.

A standby does not fit beside a rank that stands on the same thing, a GPU say: it may
only take that rank's own place. Who came and could not serve is not chosen again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from stretto import executors
from stretto.errors import StrettoError
from stretto.fabric.faults import name_ranks
from stretto.fabric.meeting.standing import Standing

YIELDS = "yields"
"""What a member says that has given up its place: in which generation."""
READY = "ready"
"""What a standby says: whether it may take a place. One that says nothing may not:
others hear that it is there before they hear anything from it."""
STANDS_ON = "stands_on"
"""What a member says: by executor, what of its machine one rank at most may use."""
UNFIT = "unfit"
"""What anybody says: by identity, who cannot be a rank, and why."""


def mapping(said: Any, key: str) -> dict[str, Any]:
    """Return a part of what a member says; others say it, so it may be no mapping."""
    found = said.get(key) if isinstance(said, dict) else None
    return found if isinstance(found, dict) else {}


def unfit_of(facts: dict[str, dict[str, Any]]) -> dict[str, str]:
    """Return who cannot be a rank, and why, by what any member says."""
    said = [mapping(fact, UNFIT) for fact in list(facts.values())]
    return {str(i): str(why) for one in said for i, why in one.items()}


def lost_of(standing: Standing) -> set[str]:
    """Return who is a rank and is gone, cannot serve, or has given its place up."""
    facts, now = standing.facts, standing.generation
    left = {i for i in standing.identities if facts.get(i, {}).get(YIELDS) == now}
    gone = standing.gone.keys() | standing.dismissed | unfit_of(facts).keys()
    return left | set(standing.identities) & gone


def ready_of(standing: Standing) -> list[str]:
    """Return who stands by and may take one place or another."""
    facts = standing.facts
    return [one for one in standing.standbys if why_not(one, (), facts) is None]


def spare_of(standing: Standing, leaving: Iterable[str]) -> list[str]:
    """Return who may take the places of some, all at once.

    Each fits beside the ranks that stay, and beside those named before it.
    """
    facts, leaves = standing.facts, {*leaving}
    stays = [i for i in standing.identities if i not in leaves]
    found = list[str]()
    for one in standing.standbys:
        if why_not(one, stays + found, facts) is None:
            found.append(one)
    return found


def why_not(
    one: str, beside: Sequence[str], facts: dict[str, dict[str, Any]]
) -> tuple[str, list[str]] | None:
    """Return why a standby cannot be a rank beside others, and beside which of them.

    None: it can. It need not be ready before it has said what it stands on.
    """
    said = facts.get(one, {})
    if why := unfit_of(facts).get(one):
        return f"cannot serve: {why}", []
    if not said.get(READY):
        return "warms up", []
    mine = mapping(said, STANDS_ON)
    for name, needed in _stood_on(beside, facts).items():
        if name not in mine:
            return "warms up", []
        if others := [i for i, thing in needed.items() if thing == mine[name] != ""]:
            return f"{name} {mine[name]}", others
    return None


def _stood_on(
    members: Sequence[str], facts: dict[str, dict[str, Any]]
) -> dict[str, dict[str, Any]]:
    """Return by executor what each member stands on, where it says so."""
    found: dict[str, dict[str, Any]] = {}
    for one in members:
        for name, thing in mapping(facts.get(one, {}), STANDS_ON).items():
            found.setdefault(name, {})[one] = thing
    return found


def state_of(
    one: str, identities: Sequence[str], facts: dict[str, dict[str, Any]]
) -> str:
    """Return in words whether a standby can take a place, and why it cannot."""
    found = why_not(one, identities, facts)
    if found is None:
        return "stands by"
    what, beside = found
    ranks = sorted(identities.index(i) for i in beside)
    if not ranks:
        return what
    where = f"{name_ranks(ranks)} stand{'s' * (len(ranks) == 1)} on {what}, too"
    if len(ranks) > 1:
        return f"fits no place: {where}"
    return f"stands by for {name_ranks(ranks)} alone: {where}"


def unsaid(standing: Standing) -> list[str]:
    """Return the executors of which ranks say what they stand on, and this one not."""
    said = _stood_on(standing.identities, standing.facts)
    return [name for name in said if name not in standing.told.get(STANDS_ON, {})]


def tell_opened(standing: Standing, name: str) -> None:
    """Tell what a rank stands on that has opened an executor's session."""
    if thing := executors.get(name).stands_on():
        told = standing.told.get(STANDS_ON, {})
        if told.get(name) != thing:
            standing.tell(**{STANDS_ON: {**told, name: thing}})


def tell_asked(standing: Standing) -> None:
    """Tell what one that stands by would stand on beside the ranks; or why it cannot.

    Also that it is nothing in particular: they wait for its word.
    """
    mine = dict(standing.told.get(STANDS_ON, {}))
    for name in unsaid(standing):
        try:
            mine[name] = executors.get(name).stands_on()
        except StrettoError as e:
            mine[name] = ""
            standing.tell(**{UNFIT: {standing.identity: str(e)[:1000]}})
    if mine != standing.told.get(STANDS_ON, {}):
        standing.tell(**{STANDS_ON: mine})
