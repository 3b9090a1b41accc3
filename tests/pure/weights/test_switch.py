"""The switch protocol: all interleavings, and those that only look as good."""

import sys
from collections import deque
from dataclasses import dataclass, replace

import pytest
from tests.nightly import at_night

from stretto.weights.switch import (
    Failed,
    Fetch,
    Fetched,
    Leader,
    NextStep,
    Pull,
    RankCopies,
    Reading,
)

NUM_RANKS, CHUNKS, NEWEST, STEPS = 2, 2, 2, 3
TOLD = CHUNKS + 1
"""How far a version is whose sums were told, after all its chunks."""


class Torn(AssertionError):
    """A step that read two versions, or another than was named."""


@dataclass(frozen=True)
class World:
    """Everything there is: machines, messages on their way, memory, the trainer."""

    protocol: type
    leader: Leader
    ranks: tuple[RankCopies, ...]
    down: tuple[tuple, ...] = ((), ())
    """From the leader to each rank; its own rank, the first, hears it at once."""
    up: tuple = ()
    """From the other rank to the leader."""
    memory: tuple = ()
    """Of each rank, of each copy, the version in each chunk."""
    pulls: tuple = (None, None)
    """Of each rank: a pull, and how many chunks have come."""
    runs: tuple[tuple, ...] = ((), ())
    """Of each rank: the steps to run, and how many chunks the first has read."""
    pushed: int = 0
    made: int = TOLD
    """How far the trainer is with what it pushes."""
    alive: bool = True
    reports: tuple = ()
    """What the leader has heard of ranks, until it can compare."""
    seen: tuple = ()
    """The version that each step was named with, or read, by its number."""
    commits: tuple = ((), ())
    """Of the protocol that flips on commit: on a way of its own."""
    flipped: tuple = (0, 0)


def begin(protocol):
    copies = 1 if protocol.is_single else 2
    ranks = tuple(
        protocol.rank(rank=r, copies=(0, -1)[:copies]) for r in range(NUM_RANKS)
    )
    leader = protocol.leader(num_ranks=NUM_RANKS, is_single=protocol.is_single)
    return World(
        protocol, leader, ranks, memory=(((0,) * CHUNKS,) * copies,) * NUM_RANKS
    )


def put(some, i, value):
    return (*some[:i], value, *some[i + 1 :])


def act(world, rank, actions):
    """Let what a machine asks for happen."""
    for action in actions:
        match action:
            case Fetch() | NextStep():
                down = put(world.down, 1, (*world.down[1], action))
                world = heard(replace(world, down=down), 0, action)
            case Fetched() | Failed() if rank:
                world = replace(world, up=(*world.up, action))
            case Fetched() | Failed():
                world = world.protocol.told(world, action)
            case Pull():
                pulls = put(world.pulls, rank, (action, 0))
                world = replace(world, pulls=pulls)
            case Reading():
                runs = put(world.runs, rank, (*world.runs[rank], (action, 0)))
                world = replace(world, runs=runs)
    return world


def heard(world, rank, said):
    """Let a rank hear the leader; the leader's own does so at once."""
    made, actions = world.ranks[rank].hear(said)
    return act(replace(world, ranks=put(world.ranks, rank, made)), rank, actions)


class Ours:
    """The protocol of the room; others below differ from it in one thing."""

    is_single = False
    leader, rank = Leader, RankCopies

    @classmethod
    def after(cls, world):
        """Yield all worlds that may come next."""
        if world.alive:
            yield cls.dies(world)
            if world.made < TOLD:
                yield replace(world, made=world.made + 1)
            elif world.pushed < NEWEST:  # it is offered with its first chunk
                yield replace(world, pushed=world.pushed + 1, made=1)
        leader = world.leader
        if world.alive and world.pushed and leader.can_fetch(world.pushed):
            made, fetch = leader.fetch(world.pushed)
            yield act(replace(world, leader=made), 0, [fetch])
        if leader.steps < STEPS and leader.may_step:
            made, step = leader.step()
            yield act(replace(world, leader=made), 0, [step])
        if world.up:
            yield cls.told(replace(world, up=world.up[1:]), world.up[0])
        if world.reports:
            if cls.has_come(world, leader.wanted, TOLD):
                yield cls.judged(world)
            if not world.alive:  # its sums were not told, or did not arrive
                failed = leader.hear(Failed(0, leader.attempt))
                yield replace(world, leader=failed, reports=())
        for r in range(NUM_RANKS):
            yield from cls._rank(world, r)

    @classmethod
    def dies(cls, world):
        """Let what was pushed be gone; the sums that were told are known."""
        wanted = world.leader.wanted
        known = wanted if cls.has_come(world, wanted, TOLD) else 0
        return replace(world, alive=False, pushed=known, made=TOLD)

    @classmethod
    def told(cls, world, said):
        """Let the leader hear of a rank; that one has it all is compared first."""
        if isinstance(said, Fetched):
            reports = sorted((*world.reports, said), key=lambda one: one.rank)
            return replace(world, reports=tuple(reports))
        return replace(world, leader=world.leader.hear(said))

    @classmethod
    def judged(cls, world):
        """Let the leader take for whole what was compared with the trainer's sums."""
        for said in world.reports:
            world = replace(world, leader=world.leader.hear(said), reports=())
        return world

    @classmethod
    def has_come(cls, world, version, far):
        """Whether a version is so far at the trainer."""
        return version < world.pushed or (version == world.pushed and far <= world.made)

    @classmethod
    def _rank(cls, world, r):
        if world.down[r]:
            said, *rest = world.down[r]
            yield heard(replace(world, down=put(world.down, r, tuple(rest))), r, said)
        if world.pulls[r] is not None:
            pull, done = world.pulls[r]
            if not world.alive or cls.has_come(world, pull.version, done + 1):
                yield cls._pull(world, r)
        if world.runs[r]:
            yield cls._read(world, r)
        if world.commits[r]:
            flipped = put(world.flipped, r, world.commits[r][0])
            commits = put(world.commits, r, world.commits[r][1:])
            yield replace(world, flipped=flipped, commits=commits)

    @classmethod
    def _pull(cls, world, r):
        """Let the next chunk of a pull come; from a trainer that is dead none does."""
        pull, done = world.pulls[r]
        if world.alive:
            is_there = Ours.has_come(world, pull.version, done + 1)
            found = pull.version if is_there else pull.version - 1  # of the last push
            copy = put(world.memory[r][pull.copy], done, found)
            memory = put(world.memory, r, put(world.memory[r], pull.copy, copy))
            world = replace(world, memory=memory)
        if world.alive and done + 1 < CHUNKS:
            return replace(world, pulls=put(world.pulls, r, (pull, done + 1)))
        made, actions = world.ranks[r].pulled(pull.attempt, well=world.alive)
        after = replace(world, pulls=put(world.pulls, r, None))
        return act(replace(after, ranks=put(world.ranks, r, made)), r, actions)

    @classmethod
    def copy_of(cls, world, r, run):
        """Return what a step reads."""
        return run.copy

    @classmethod
    def _read(cls, world, r):
        """Let the first step of a rank read its next chunk; after the last it ends."""
        (run, done), *rest = world.runs[r]
        found = world.memory[r][cls.copy_of(world, r, run)][done]
        seen = dict(world.seen)
        if seen.setdefault(run.number, found) != found:
            raise Torn(f"step {run.number}: rank {r}, chunk {done}: {found}")
        runs = put(world.runs, r, ((run, done + 1), *rest))
        ends = done + 1 == CHUNKS
        world = replace(world, runs=put(runs, r, tuple(rest)) if ends else runs)
        world = replace(world, seen=still_to_read(world, seen))
        if not ends:
            return world
        made, actions = world.ranks[r].ended(run.number)
        return act(replace(world, ranks=put(world.ranks, r, made)), r, actions)


def still_to_read(world, seen):
    """Return what steps have read that are not over: so that fewer worlds differ."""
    open_ = {run.number for runs in world.runs for run, _ in runs}
    open_ |= {said.number for said in world.down[1] if isinstance(said, NextStep)}
    return tuple(sorted((n, v) for n, v in seen.items() if n in open_))


class OneCopy(Ours):
    is_single = True


def walk(protocol):
    """Return how many worlds there are, and those that end before all steps ran."""
    first = begin(protocol)
    known, queue, stuck = {first}, deque([first]), []
    while queue:
        world = queue.popleft()
        ahead = list(protocol.after(world))
        ran = world.leader.steps == STEPS and not any(world.runs)
        if not ahead and not ran:
            stuck.append(world)
        for one in ahead:
            if one not in known:
                known.add(one)
                queue.append(one)
    return len(known), stuck


@pytest.mark.parametrize(("steps", "least"), [(2, 1000), at_night(3, 2000)])
def test_no_interleaving_tears_a_step_and_none_is_stuck(monkeypatch, steps, least):
    """Two ranks, chunks and versions, some steps, a trainer that dies anywhere.

    Also in the midst of a push, of which ranks read what has been made.
    """
    monkeypatch.setattr(sys.modules[__name__], "STEPS", steps)
    count, stuck = walk(Ours)

    assert count > least
    assert not stuck


def test_with_one_copy_nothing_is_torn_and_a_dead_trainer_stops_it():
    """What ends early has stopped, and says so; it does not wait for ever."""
    count, stuck = walk(OneCopy)

    assert count > 500
    assert stuck
    assert all(w.leader.has_stopped and not w.alive for w in stuck)


class Eager(RankCopies):
    """Does not wait until the steps that read a copy have ended."""

    def free(self, fetch):
        return next(i for i, v in enumerate(self.copies) if v != fetch.keep)


class WithoutLease(Ours):
    rank = Eager


class FlipsWhenWhole(Ours):
    """Each rank reads the newest that it has whole; the step's message says nothing."""

    @classmethod
    def copy_of(cls, world, r, run):
        copies = world.ranks[r].copies
        return copies.index(max(copies))


class FlipsOnCommit(Ours):
    """Who has it whole on all ranks says so to each; steps read what was said last."""

    @classmethod
    def judged(cls, world):
        after = super().judged(world)
        if after.leader.current > world.leader.current:
            commits = tuple((*c, after.leader.current) for c in world.commits)
            after = replace(after, commits=commits)
        return after

    @classmethod
    def copy_of(cls, world, r, run):
        copies = world.ranks[r].copies
        return (
            copies.index(world.flipped[r]) if world.flipped[r] in copies else run.copy
        )


class Resuming(Leader):
    """Goes on with the old version when the trainer has died."""

    def hear(self, said):
        return replace(super().hear(said), has_stopped=False)


class Hopeful(RankCopies):
    """Takes its copy for what it was before a pull that failed."""

    def hear(self, said):
        if isinstance(said, NextStep) and said.version not in self.copies:
            return self, (Reading(said.number, said.version, 0),)
        return super().hear(said)


class Resumes(OneCopy):
    leader, rank = Resuming, Hopeful


class Separate(Leader):
    """Does not pause all ranks for a fetch: each pauses by itself."""

    @property
    def may_step(self):
        return not self.has_stopped


class PausesApart(OneCopy):
    leader, rank = Separate, Hopeful


class ReadsAhead(Ours):
    """Does not wait until the trainer has made what is read, nor for its sums."""

    @classmethod
    def has_come(cls, world, version, far):
        return True


@pytest.mark.parametrize(
    "protocol",
    [WithoutLease, FlipsWhenWhole, FlipsOnCommit, Resumes, PausesApart, ReadsAhead],
)
def test_protocols_that_look_clean_are_torn(protocol):
    """Each differs in one thing from ours, and the walk finds a torn step."""
    with pytest.raises(Torn):
        walk(protocol)


def test_late_words_of_an_earlier_fetch_count_for_nothing():
    """A rank that was slow cannot make a later version look whole."""
    leader, _ = Leader(num_ranks=1).fetch(1)
    leader = leader.hear(Failed(0, 1))
    leader, _ = leader.fetch(2)

    assert leader == leader.hear(Fetched(0, 1))
    assert 2 == leader.hear(Fetched(0, 2)).current


def test_a_version_that_is_there_is_not_pulled_again():
    """A fetch that failed elsewhere is repeated; who has it says so at once."""
    rank, actions = RankCopies(rank=1, copies=(0, 4)).hear(Fetch(3, 4, 0))

    assert (Fetched(1, 3),) == actions
    assert rank.pulling is None


def test_what_was_wrong_is_pulled_anew():
    """It is not taken for what is there already, and nothing else is forgotten."""
    rank = RankCopies(rank=0, copies=(5, -1))
    rank, (pull,) = rank.hear(Fetch(1, 6, 5))
    rank, (told,) = rank.pulled(1, well=True)
    assert (pull.copy, told) == (1, Fetched(0, 1))
    assert rank.hear(Fetch(2, 6, 5))[1] == (Fetched(0, 2),)

    rank, copy = rank.forget(6)

    assert (copy, rank.copies) == (1, (5, -1))
    assert rank.hear(Fetch(2, 6, 5))[1] == (Pull(2, 6, 1),)
    assert rank.forget(7) == (rank, -1)
