"""Every order of what can happen to three ranks and a standby that train; two crashes.

A rank reduces gradients, enters the flag, commits; at the end it waits for the others.
What it does in a group ends well for it only when every rank of that generation has
come to it; once one of them is gone it may also break, for each rank by itself. Who has
heard of a break waits for the next generation. There those who are left report, and
commit or undo; who came takes the state of one of them. Any of that may break again.
The rules are the real ones (`committing`), or one that a test has planted.

A rank may also only have stopped. Its writes come late: who goes on without having seen
it ended is found writing where it must not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from stretto.runtime.calls.committing import StepReport, StepVerdict, judge

GRADIENTS, FLAG, REPORT, SHARE, END = "gradients", "flag", "report", "share", "end"
CALLS = (GRADIENTS, FLAG, REPORT, SHARE, END)
BROKEN, WAITS, DONE = "broken", "waits", "done"


@dataclass(frozen=True)
class Rank:
    """One process: its place in the job, where it is, and its model."""

    place: int
    """-1: it stands by, or was left out."""
    at: str = GRADIENTS
    step: int = 0
    model: tuple = ()
    """What was committed."""
    whole: bool = False
    """Whether its gradients of the next step are whole."""
    comes: bool = False
    """Whether it has yet to take a state."""
    is_alive: bool = True
    is_stopped: bool = False

    @property
    def report(self):
        return None if self.comes else StepReport(step=self.step, entered=self.whole)


@dataclass(frozen=True)
class State:
    """One moment."""

    ranks: tuple[Rank, ...]
    generation: int = 0
    came: frozenset = frozenset()
    """Who has come to which call of this generation: (process, call, step, rank)."""
    crashes: int = 2
    stops: int = 0


@dataclass(frozen=True)
class Rules:
    """What is walked."""

    judge: Callable[[StepReport, list[StepReport]], StepVerdict] = judge
    sees_gone: bool = True
    """Whether who is left out was seen ended before a generation begins."""
    last: int = 2
    """Steps that are made."""


def begin(*, crashes: int = 2, stops: int = 0) -> State:
    """Return the first state: ranks 0 to 2, and one that stands by."""
    ranks = (*(Rank(place) for place in range(3)), Rank(-1, at=WAITS))
    return State(ranks=ranks, crashes=crashes, stops=stops)


def put(state: State, who: int, **changes) -> State:
    """Return a state with another process."""
    ranks = list(state.ranks)
    ranks[who] = replace(ranks[who], **changes)
    return replace(state, ranks=tuple(ranks))


def is_gone(rank: Rank) -> bool:
    return not rank.is_alive or rank.is_stopped


def successors(state: State, rules: Rules) -> Iterator[State]:
    """Yield every state that may follow."""
    inside = [w for w, rank in enumerate(state.ranks) if rank.place >= 0]
    for who, rank in enumerate(state.ranks):
        if not rank.is_alive or rank.at == DONE:
            continue
        if state.crashes:
            yield replace(put(state, who, is_alive=False), crashes=state.crashes - 1)
        if state.stops and not rank.is_stopped and rank.place >= 0:
            yield replace(put(state, who, is_stopped=True), stops=state.stops - 1)
        if rank.at in CALLS and not rank.is_stopped:
            yield from _calls(state, who, rank, inside, rules)
    yield from _begun(state, inside, rules)


def _calls(state, who, rank, inside, rules) -> Iterator[State]:
    """Yield what may become of the call that a rank is in, or comes to."""
    call = rank.at, rank.step if rank.at in (GRADIENTS, FLAG) else -1
    known = {w: seen for w, *name, seen in state.came if tuple(name) == call}
    if who not in known:
        yield replace(state, came=state.came | {(who, *call, rank)})
        return
    if all(w in known for w in inside):
        yield _ended_well(state, who, [known[w] for w in inside if w != who], rules)
    others = [state.ranks[w] for w in inside]
    if rank.at == END and any(one.at == DONE for one in others):
        yield put(state, who, at=DONE)  # who has left knew that all had come
    elif any(is_gone(one) for one in others):
        yield put(state, who, at=BROKEN)


def _ended_well(state: State, who: int, others: list[Rank], rules: Rules) -> State:
    """Return the state after a call has ended well for a rank."""
    rank = state.ranks[who]
    match rank.at:
        case "gradients":
            return put(state, who, at=FLAG, whole=True)
        case "flag":
            return commit(state, who, rules)
        case "end":
            return put(state, who, at=DONE)
        case "report":
            said = [one.report for one in others if one.report is not None]
            verdict = None if rank.comes else rules.judge(rank.report, said)
            assert verdict is not StepVerdict.STOP, f"{rank} cannot go on"
            if verdict is StepVerdict.COMMIT:
                state = commit(state, who, rules)
            return put(state, who, at=SHARE, whole=False)
    if not rank.comes:
        return put(state, who, at=_next(rank.step, rules))
    source = next(one for one in others if not one.comes)
    return put(
        state, who, comes=False, step=source.step, model=source.model,
        at=_next(source.step, rules),
    )  # fmt: skip


def _next(step: int, rules: Rules) -> str:
    if step < rules.last:
        return GRADIENTS
    return END


def commit(state: State, who: int, rules: Rules) -> State:
    """Return the state after a rank has committed its step."""
    rank = state.ranks[who]
    assert rank.whole, "gradients that are not whole were committed"
    step, model = rank.step + 1, (*rank.model, rank.step)
    return put(state, who, at=_next(step, rules), step=step, model=model, whole=False)


def _begun(state: State, inside: list[int], rules: Rules) -> Iterator[State]:
    """Yield the state after the next generation has begun, if all are ready for it."""
    out = [w for w in inside if is_gone(state.ranks[w]) or state.ranks[w].at == DONE]
    stay = [w for w in inside if w not in out]
    if not stay or any(state.ranks[w].at != BROKEN for w in stay):
        return
    spare = [w for w, r in enumerate(state.ranks) if r.at == WAITS and not is_gone(r)]
    for w in out:
        place = state.ranks[w].place
        ended = (
            {"is_alive": False} if rules.sees_gone and is_gone(state.ranks[w]) else {}
        )
        state = put(state, w, place=-1, **ended)
        if spare:
            state = put(state, spare.pop(0), place=place, at=REPORT, comes=True)
    for w in stay:
        state = put(state, w, at=REPORT)
    if all(state.ranks[w].comes for w in stay):
        return  # nobody has a state: the job has ended
    yield replace(state, generation=state.generation + 1, came=frozenset())


def check(state: State) -> None:
    """Check what must hold in every state."""
    live = [r for r in state.ranks if r.is_alive and r.place >= 0 and not r.comes]
    for rank in live:
        assert rank.model == tuple(range(rank.step)), f"{rank} skipped or repeated"
    if live:
        steps = {r.step for r in live}
        assert max(steps) - min(steps) <= 1, f"they drifted apart: {live}"
        late = [r for r in live if r.step < max(steps)]
        assert all(r.whole for r in late), f"committed without {late}"
    for rank in state.ranks:  # who was left out and has only stopped writes on
        late = rank.is_alive and rank.is_stopped and rank.place < 0
        assert not late, "a rank that was left out may write in this generation"


def check_end(state: State) -> None:
    """Check that whoever is left has made all steps."""
    inside = [
        r for r in state.ranks if r.is_alive and r.place >= 0 and not r.is_stopped
    ]
    alone = all(r.comes for r in inside)  # nobody is left who has a state
    assert alone or all(r.at == DONE for r in inside), f"one waits for ever: {inside}"


def explore(first: State, rules: Rules | None = None) -> tuple[int, int]:
    """Walk all states; return how many there are, and how many ends."""
    rules = Rules() if rules is None else rules
    todo, known, ends = [first], {first}, 0
    while todo:
        state = todo.pop()
        check(state)
        after = list(successors(state, rules))
        left = (state.crashes, state.stops)
        if all((one.crashes, one.stops) != left for one in after):
            ends += 1
            check_end(state)
        for one in after:
            if one not in known:
                known.add(one)
                todo.append(one)
    return len(known), ends
