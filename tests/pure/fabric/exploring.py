"""Every order in which the messages of a small world can come, with crashes anywhere.

Three members and the hub; each link keeps its order. A state is left by delivering the
first message of a link, by a crash, or by the hub's deadline. The machines are the real
ones; what a member does of its own accord is a policy: it says when it is ready, and
where a rank is gone it proposes a generation without it, with the standby in its place.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field, replace

from stretto.fabric import view as seen
from stretto.fabric.events import Closed, Drop, Heard, Send, Tick
from stretto.fabric.faults import Fault
from stretto.fabric.messages import (
    RANK,
    STANDBY,
    Abandoned,
    Came,
    Departed,
    Hello,
    Lost,
    Prepare,
    Propose,
    Ready,
    Verdict,
    Welcome,
)
from stretto.fabric.view import WorldView
from stretto.fabric.world import World

CLOSED, DROPPED = "closed", "dropped"
FIRST = 7
"""The number of the first generation."""


@dataclass(frozen=True)
class Node:
    """A member: what it believes, what it waits for, and the links to and from it."""

    identity: str
    up: tuple = ()
    down: tuple = ()
    is_alive: bool = True
    is_over: bool = False
    """Whether it has been told that the world has ended."""
    view: WorldView | None = None
    plan: tuple = ()
    """The ranks that it shall propose of its own accord once it is welcome."""
    wants: tuple = ()
    """What it has proposed, and not heard of again."""
    prepared: int = 0
    """The attempt that it is ready for, and has not heard of again."""
    failing: bool = False
    """Whether it cannot prepare itself."""
    told: tuple = ()
    """What it heard that all must hear, in order."""

    @property
    def generation(self):
        return 0 if self.view is None else self.view.welcome.generation


@dataclass(frozen=True)
class State:
    """One moment of a world."""

    hub: World
    nodes: tuple
    crashes: int
    hub_is_alive: bool = True
    agreed: frozenset = frozenset()
    """Who has said to be ready for which attempt."""
    steps: tuple = field(default=(), compare=False)

    def key(self):
        hub = self.hub
        change = hub._change
        return (
            self.crashes,
            self.hub_is_alive,
            self.agreed,
            hub.generation,
            tuple(hub.generations.rosters.items()),
            tuple(hub.gone.items()),
            hub.over,
            tuple(hub._members),
            tuple(hub._identity_of.items()),
            change and (change.wanted, change.attempt, frozenset(change.ready)),
            tuple((replace(n, view=None), _key_of(n.view)) for n in self.nodes),
        )


def _key_of(view):
    if view is None:
        return None
    return (
        tuple(view.generations.rosters),
        view.welcome,
        tuple(view.gone.items()),
        view.standbys,
        view.hub_ended,
        tuple(view._suspects),
        view._orphan_until is not None,
    )


def fork(machine):
    """Return a machine that goes its own way: what it holds is copied, not shared."""
    names = getattr(type(machine), "__slots__", None) or vars(machine)
    twin = copy.copy(machine)
    for name in names:
        held = getattr(machine, name)
        if isinstance(held, dict | set):
            setattr(twin, name, held.copy())
        elif name in ("_change", "_arrivals", "generations") and held is not None:
            setattr(twin, name, fork(held))
    return twin


def begin(plans=(), failing=(), *, ranks=2, crashes=2, world=World, home=-1):
    """Return the first state: members A, B, C say hello; C stands by if 2 are ranks."""
    hub = world(
        ranks,
        deadline=10.0,
        timeout_s=10.0,
        generation=FIRST,
        host_rank=home,
        stays_open=True,
    )
    nodes = []
    for number, identity in enumerate("ABC"):
        is_rank = number < ranks
        hello = Hello(
            identity=identity,
            wish=RANK if is_rank else STANDBY,
            rank=number if is_rank else -1,
            num_ranks=ranks,
            pid=number,
            host="h/h",
            version="1",
            start_s=9.0,
            within_s=9.0,
        )
        plan = tuple(dict(plans).get(identity, ()))
        nodes.append(
            Node(identity, up=(hello,), plan=plan, failing=identity in failing)
        )
    return State(hub=hub, nodes=tuple(nodes), crashes=crashes)


def put(state, number, **changes):
    """Return a state with another node at a place."""
    nodes = list(state.nodes)
    nodes[number] = replace(nodes[number], **changes)
    return replace(state, nodes=tuple(nodes))


def told_by_hub(state, event, now=0.0):
    """Return the state after the hub has taken an event; check who agreed."""
    hub = fork(state.hub)
    before = hub.generation, hub.is_complete
    actions = hub.on(event, now)
    state = replace(state, hub=hub)
    if before[1] and hub.generation != before[0]:
        assert hub.generation == before[0] + 1
        order = hub.generations.rosters[hub.generation]
        lacking = {i for i in order if (i, hub._attempts) not in state.agreed}
        assert not lacking, f"{lacking} did not agree to {order}"
    for action in actions:
        node = state.nodes[action.link]
        if node.is_alive:
            said = DROPPED if isinstance(action, Drop) else action.message
            assert isinstance(action, Drop | Send)
            state = put(state, action.link, down=(*node.down, said))
    return state


def successors(state):
    """Return every state that may follow, and what happened."""
    found = []
    for number, node in enumerate(state.nodes):
        if node.up and state.hub_is_alive:
            said, rest = node.up[0], node.up[1:]
            event = (
                Closed(link=number)
                if said == CLOSED
                else Heard(link=number, message=said)
            )
            after = told_by_hub(put(state, number, up=rest), event)
            found.append((f"hub hears {node.identity}", after))
        if node.down and node.is_alive:
            found.append((f"{node.identity} hears", hear(state, number)))
        if node.is_alive and state.crashes:
            after = replace(state, crashes=state.crashes - 1)
            after = put(after, number, is_alive=False, down=(), up=(*node.up, CLOSED))
            if state.hub.host_rank == number:
                after = end_hub(after)
            found.append((f"{node.identity} dies", after))
    return found


def at_rest(state):
    """Return what the hub's deadline does where nothing else moves."""
    if state.hub_is_alive and state.hub.next_deadline is not None:
        return [("deadline", told_by_hub(state, Tick(), state.hub.next_deadline))]
    return []


def end_hub(state):
    """Return the state after the hub's process has ended: links end, pidfds fire."""
    state = replace(state, hub_is_alive=False)
    for number, node in enumerate(state.nodes):
        if node.is_alive:
            state = put(state, number, down=(*node.down, DROPPED))
    return state


def of(said):
    """Return what must be the same for all of a message: who comes late hears more."""
    if isinstance(said, Verdict):
        return said.error, said.blamed
    if isinstance(said, Welcome):
        return said.generation, said.identities
    return said


def hear(state, number):
    """Return the state after a member has heard the first message for it."""
    node = state.nodes[number]
    said, rest = node.down[0], node.down[1:]
    state = put(state, number, down=rest)
    if said == DROPPED and (node.is_over or node.view is None):
        return put(state, number, is_over=True, up=())
    if isinstance(said, Verdict):
        return put(state, number, is_over=True, told=(*node.told, of(said)))
    if node.view is None:
        assert isinstance(said, Welcome), said
        state = put(state, number, view=WorldView(welcome=said))
        return act(state, number)
    view = fork(node.view)
    if said == DROPPED:
        changes = view.on(seen.HubEnded(), 0.0) + view.on(seen.Tick(), 9.0)
        ended = [c for c in changes if isinstance(c, Fault)]
        return put(state, number, view=view, is_over=bool(ended))
    before = node.generation
    changes = view.on(seen.Heard(message=said), 0.0)
    assert view.welcome.generation >= before
    state = put(state, number, view=view)
    for change in changes:
        state = react(state, number, change, said)
    return act(state, number)


def react(state, number, change, said):
    """Return the state after a member's policy has dealt with a change."""
    node = state.nodes[number]
    match change:
        case Prepare() as prepare if node.identity not in prepare.identities:
            return state
        case Prepare() as prepare:
            failure = "has no room" if node.failing else ""
            ready = Ready(attempt=prepare.attempt, failure=failure)
            state = put(
                state,
                number,
                up=(*node.up, ready),
                prepared=prepare.attempt,
                failing=False,
            )
            if not failure:
                agreed = state.agreed | {(node.identity, prepare.attempt)}
                state = replace(state, agreed=agreed)
            return state
        case Welcome():
            return put(state, number, prepared=0, wants=(), told=(*node.told, of(said)))
        case Abandoned() as abandoned:
            mine = abandoned.identities == node.wants
            state = put(state, number, wants=() if mine else node.wants)
            if not abandoned.text.startswith("not proposed"):
                state = put(state, number, prepared=0, told=(*node.told, of(said)))
            return state
        case Lost() | Departed():
            return put(state, number, told=(*node.told, of(said)))
    assert isinstance(change, Came)
    return state


def act(state, number):
    """Return the state after a member has proposed what it thinks is needed."""
    node = state.nodes[number]
    view = node.view
    roster = view.welcome.identities
    if node.wants or node.identity not in roster:
        return state
    wanted, plan = (), node.plan
    if any(i in view.gone for i in roster):
        spare = [i for i in view.standbys if i not in view.gone]
        order = []
        for one in roster:
            if one not in view.gone:
                order.append(one)
            elif spare:
                order.append(spare.pop(0))
        wanted = tuple(order)
    elif plan and (set(plan) <= {*roster, *view.standbys}):
        wanted, plan = plan, ()
    if not wanted or wanted == roster:
        return state
    said = Propose(
        generation=node.generation + 1,
        identities=wanted,
        is_fresh=False,
        timeout_s=5.0,
    )
    return put(state, number, up=(*node.up, said), wants=wanted, plan=plan)


def check(state):
    """Check what must hold in every state."""
    for generation in {
        g for n in state.nodes if n.view for g in n.view.generations.rosters
    }:
        beliefs = {
            n.view.generations.rosters[generation]
            for n in state.nodes
            if n.view and generation in n.view.generations.rosters
        }
        assert {state.hub.generations.rosters[generation]} == beliefs
    for node in state.nodes:
        if node.view:
            begun = list(node.view.generations.rosters)
            assert begun == list(range(begun[0], begun[-1] + 1))


def check_end(state):
    """Check what must hold where nothing moves any more."""
    live = [n for n in state.nodes if n.is_alive]
    for node in live:
        assert node.is_over or node.view is not None, f"{node.identity} was not let in"
        ended = node.is_over or node.view.hub_ended
        assert ended or not (node.wants or node.prepared), f"{node} waits for ever"
        if not ended:
            roster = node.view.welcome.identities
            assert not set(roster) & node.view.gone.keys(), f"{node} was left"
    if state.hub_is_alive:
        stories = sorted((n.told for n in live), key=len)
        for one in stories:
            whole = stories[-1]
            assert one == whole[len(whole) - len(one) :], (
                f"not all heard the same: {stories}"
            )


def explore(first):
    """Walk all states; return how many there are, how many ends, and generations."""
    todo, known, ends, generations = [first], {first.key()}, 0, set()
    while todo:
        state = todo.pop()
        check(state)
        generations.add(state.hub.generation - FIRST)
        moves = successors(state)
        if all(what.endswith("dies") for what, _ in moves):
            late = [m for m in at_rest(state) if m[1].key() != state.key()]
            moves += late
            if not late:
                ends += 1
                check_end(state)
        for _, after in moves:
            key = after.key()
            if key not in known:
                known.add(key)
                todo.append(after)
    return len(known), ends, generations
