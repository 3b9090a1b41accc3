"""Collectives among some ranks: members get what the oracle says, a relay nothing."""

import numpy as np
import pytest

import stretto
from stretto.errors import CallError, CollectiveMismatch
from stretto.program import collectives
from stretto.program.collectives import Operator, Shape
from stretto.program.lang import algorithm, reduce
from stretto.testing import draw, expected, largest_error, tolerance

pytestmark = [pytest.mark.host, pytest.mark.timeout(120)]

MEMBERS, RELAY, ROOT = (0, 2, 3), 1, 2


def relayed(name):
    """Return a maker of algorithms among the members, of which rank 1 is none."""
    return algorithm(f"{name}/relayed", members=MEMBERS)


@relayed("all_gather")
def all_gather(ranks):
    """Everything is laid down at the relay, and taken from there."""
    room = ranks[RELAY].scratch("room", 3)
    for r in ranks.members:
        room[r.place] = r.input[:]
    for r in ranks.members:
        r.output[:] = room[:]


@relayed("all_reduce")
def all_reduce(ranks):
    """The relay adds up."""
    room = ranks[RELAY].scratch("room", 3)
    room[:] = reduce(r.input[:] for r in ranks.members)
    for r in ranks.members:
        r.output[:] = room[:]


@relayed("reduce_scatter")
def reduce_scatter(ranks):
    """The relay adds up."""
    room = ranks[RELAY].scratch("room", 3)
    room[:] = reduce(r.input[:] for r in ranks.members)
    for r in ranks.members:
        r.output[:] = room[r.place]


@relayed("all_to_all")
def all_to_all(ranks):
    """The relay sorts."""
    room = ranks[RELAY].scratch("room", 9)
    for r in ranks.members:
        room[3 * r.place : 3 * r.place + 3] = r.input[:]
    for r in ranks.members:
        for q in ranks.members:
            r.output[q.place] = room[3 * q.place + r.place]


@relayed("broadcast")
def broadcast(ranks, root=ROOT):
    """The relay hands it round."""
    room = ranks[RELAY].scratch("room", 3)
    room[:] = ranks[root].input[:]
    for r in ranks.members:
        r.output[:] = room[:]


@relayed("reduce")
def reduce_(ranks, root=ROOT):
    """The relay adds up."""
    room = ranks[RELAY].scratch("room", 3)
    room[:] = reduce(r.input[:] for r in ranks.members)
    ranks[root].output[:] = room[:]


@relayed("gather")
def gather(ranks, root=ROOT):
    """The relay collects."""
    room = ranks[RELAY].scratch("room", 3)
    for r in ranks.members:
        room[r.place] = r.input[:]
    ranks[root].output[:] = room[:]


@relayed("scatter")
def scatter(ranks, root=ROOT):
    """The relay hands out."""
    room = ranks[RELAY].scratch("room", 3)
    room[:] = ranks[root].input[:]
    for r in ranks.members:
        r.output[:] = room[r.place]


PINS = {
    "all_gather": all_gather,
    "all_reduce": all_reduce,
    "all_to_all": all_to_all,
    "broadcast": broadcast,
    "gather": gather,
    "reduce": reduce_,
    "reduce_scatter": reduce_scatter,
    "scatter": scatter,
}
DIVIDED = ("reduce_scatter", "scatter", "all_to_all")


class Checks:
    """Makes calls on one rank and collects what is wrong."""

    def __init__(self, comm):
        self.comm, self.wrong = comm, []
        self.rng = np.random.default_rng(0)

    def case(self, verb, count, dtype, op, words):
        """Make one call, and the same again; compare with the oracle."""
        comm, rank = self.comm, self.comm.rank
        kind = collectives.get(verb)
        params = {"root": ROOT} if kind.rooted else {}
        shape = Shape(num_ranks=comm.num_ranks, params={**params, "members": MEMBERS})
        size = count * len(MEMBERS) if verb in DIVIDED else count
        whole = [draw(self.rng, size, dtype, op) for _ in range(comm.num_ranks)]
        inputs = [
            x if kind.input_runs(shape, q) else x[:0] for q, x in enumerate(whole)
        ]
        counts = (count,) * kind.num_parts(shape)
        want = expected(verb, shape, inputs, dtype=dtype, op=op, counts=counts)[rank]
        options = dict(params) | {"dtype": dtype, "algorithm": PINS[verb]}
        if kind.reduces:
            options["op"] = op
        if words:
            options["algorithm"] = PINS[verb], words
        told = f"rank {rank}: {verb} of {count} {dtype} {op.value} {words}"
        for turn in range(3):
            x = whole[rank].copy()
            if verb == "scatter" and rank != ROOT:
                options["out"] = np.zeros(count, x.dtype)
            got = getattr(comm, verb)(x, **options)
            if shape.place(rank) is None:
                kept = np.array_equal(x, whole[rank])
                self.note(got is None and kept, f"{told}: a relay got {got}")
                continue
            if not kind.output_runs(shape, rank):
                self.note(got is None, f"{told}: got {got}")
                continue
            error = largest_error(np.ravel(got), want, dtype)
            self.note(error <= tolerance(dtype, 4), f"{told} {turn}: error {error}")

    def note(self, ok, told):
        """Keep what is wrong."""
        self.wrong += [] if ok else [told]

    def refused(self, call, text):
        """Expect a refusal, on this rank as on all."""
        try:
            call()
        except CallError as e:
            self.note(text in str(e), str(e))
        else:
            self.note(False, f"{text}: nothing raised")


def every_verb(comm):
    checks = Checks(comm)
    for verb in PINS:
        for count, dtype, op, words in (
            (257, "float32", Operator.SUM, ""),
            (5, "bfloat16", Operator.AVG, "push packets"),
            (1, "int16", Operator.MAX, "push bulk"),
            (40, "float64", Operator.SUM, "pull bulk"),
            (0, "float32", Operator.SUM, ""),
        ):
            checks.case(verb, count, dtype, op, words)
    return checks.wrong


def parts_of_their_own(comm):
    """The unequal forms: counts are the members'; who only relays passes nothing."""
    checks, place = Checks(comm), {0: 0, 2: 1, 3: 2}.get(comm.rank)
    counts = (3, 0, 5)
    x = np.arange(8, dtype=np.float32)
    pieces = np.split(x, np.cumsum(counts)[:-1])
    mine = np.empty(0, np.float32) if place is None else pieces[place]
    for given in (counts, None):
        got = comm.all_gather_v(mine, given, algorithm=all_gather)
        checks.note(got is None if place is None else np.array_equal(got, x), got)
    got = comm.reduce_scatter_v(x, counts, op="avg", algorithm=reduce_scatter)
    checks.note(got is None if place is None else np.array_equal(got, mine), got)
    got = comm.gather_v(mine, counts, root=ROOT, algorithm=gather)
    checks.note(np.array_equal(got, x) if comm.rank == ROOT else got is None, got)
    got = comm.scatter_v(
        x if comm.rank == ROOT else None,
        counts,
        root=ROOT,
        dtype="float32",
        algorithm=scatter,
    )
    checks.note(got is None if place is None else np.array_equal(got, mine), got)
    matrix = np.arange(9).reshape(3, 3)
    own = 0 if place is None else matrix[place].sum()
    got = comm.all_to_all_v(
        np.full(own, place, np.float32), matrix, algorithm=all_to_all
    )
    want = None if place is None else np.repeat(np.arange(3), matrix[:, place])
    checks.note(got is None if place is None else np.array_equal(got, want), got)
    return checks.wrong


def refusals(comm):
    checks, x = Checks(comm), np.ones(6, np.float32)
    for call, text in (
        (lambda: comm.reduce(x, root=1, algorithm=reduce_), "root=1 is not a member"),
        (lambda: comm.reduce_scatter(np.ones(4), algorithm=reduce_scatter), "3 ranks"),
        (
            lambda: comm.all_to_all(
                np.ones((3, 3)), split=1, concat=0, algorithm=all_to_all
            ),
            "axes that move, by an algorithm among (0, 2, 3)",
        ),
        (
            lambda: comm.all_to_all_v(x, [1, 2, 3], algorithm=all_to_all),
            "want 9 numbers",
        ),
        (
            lambda: comm.all_reduce(
                x, algorithm=(all_reduce, "push bulk zero_copy blocks=1")
            ),
            "want 'staged' in it",
        ),
    ):
        checks.refused(call, text)
    comm.all_reduce(x, algorithm=all_reduce)
    return checks.wrong


def one_is_mistaken(comm):
    """Rank 3 thinks that all take part."""
    pin = "all_reduce/one_shot" if comm.rank == 3 else all_reduce
    try:
        comm.all_reduce(np.ones(6, np.float32), algorithm=pin)
    except CollectiveMismatch:
        return True
    except stretto.StrettoError as e:
        return "rank 3" in str(e)
    return False


def all_of_it(comm):
    parts = every_verb, parts_of_their_own, refusals, one_is_mistaken
    return [part(comm) for part in parts]


@pytest.fixture(scope="module")
def found():
    """What four ranks found; starting them takes longer than all their calls."""
    return stretto.spawn(all_of_it, num_ranks=4)


def test_members_get_the_result_and_relays_nothing(found):
    """Every verb in several types and schedules, and the unequal forms."""
    assert [[[], []]] * 4 == [by_part[:2] for by_part in found]


def test_what_makes_no_sense_among_some_ranks_is_refused(found):
    """On every rank alike, before anything is sent."""
    assert [[]] * 4 == [by_part[2] for by_part in found]


def test_who_is_a_member_is_a_part_of_the_call(found):
    """A rank that calls among all meets ranks that call among some, and is told."""
    assert [True] * 4 == [by_part[3] for by_part in found]
