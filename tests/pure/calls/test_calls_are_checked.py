"""Arguments are refused before anything is sent, in words that teach; known calls."""

import gc
import weakref

import numpy as np
import pytest

from stretto import executors
from stretto.compiler.plan import Schedule
from stretto.errors import (
    CallError,
    CommunicatorBroken,
    PeerLost,
    PlanError,
    UnknownNameError,
)
from stretto.program import algorithms
from stretto.program.collectives import Operator
from stretto.program.lang import algorithm, reduce
from stretto.runtime.calls import Communicator
from stretto.runtime.calls.runner import CallRunner
from stretto.runtime.choice import proved_plan
from stretto.runtime.choice.question import Question
from stretto.runtime.choice.select import Profile, Rule


class Session(executors.Session):
    """An executor's session that moves nothing and remembers what it was asked."""

    def __init__(self):
        self.prepared, self.launched, self.registered = [], [], []
        self.fault = None

    def empty(self, shape, dtype):
        array = np.empty(shape, dtype)
        self.registered.append(array)
        return array

    def offset(self, array):
        return self.offset_at(array.ctypes.data, array.nbytes)

    def offset_at(self, at, nbytes):
        for one in self.registered:
            if one.ctypes.data <= at < one.ctypes.data + one.nbytes:
                return at - one.ctypes.data
        return None

    def prepare(self, plan, call):
        self.prepared.append((plan.value, call))

        def launch(x, out):
            if self.fault is not None:
                raise self.fault
            self.launched.append((x, out))

        return launch

    def check(self):
        pass

    def close(self):
        self.prepared.clear()


class Group(executors.Group):
    """Rank 1 of 3, alone."""

    rank, num_ranks, deadline_s = 1, 3, 1.0
    broken = np.zeros(1, np.int64)


@pytest.fixture
def session(monkeypatch):
    """The session that the communicator gets."""
    one = Session()
    monkeypatch.setattr(
        CallRunner, "_session", lambda self, name: self._sessions.setdefault(name, one)
    )
    return one


@pytest.fixture
def comm(session):
    """A communicator that sends nothing."""
    return Communicator(Group(), profiles={})


X = np.ones(6)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda c: c.all_reduce(None), "all_reduce: x is None; want an array"),
        (lambda c: c.all_reduce("text"), "got a str; want a NumPy array, a tensor"),
        (lambda c: c.all_reduce(b"abc"), "a read-only bytes cannot be written"),
        (lambda c: c.all_reduce(np.array(["a"])), "elements of type <U1; want one of"),
        (lambda c: c.all_reduce(X, op="band"), "'band' makes no sense for float64"),
        (lambda c: c.all_reduce(X, out=np.ones(5)), "out has 5 elements, .* want 6"),
        (lambda c: c.all_reduce(X, out=np.ones(6, "f4")), "float32, x has float64"),
        (
            lambda c: c.all_reduce(X, dtype="bfloat16"),
            "bfloat16 for raw uint16, or a float8 for raw uint8",
        ),
        (lambda c: c.all_reduce(X[:4], out=X[2:]), "overlaps x, .16 bytes"),
        (lambda c: c.all_reduce(X, stream=3), "stream=3 with arrays on the CPU"),
        (
            lambda c: c.all_reduce(X, algorithm="all_gather/ring"),
            "for all_reduce; want",
        ),
        (lambda c: c.all_reduce(X, algorithm=3), "algorithm=3; want a name such as"),
        (
            lambda c: c.all_reduce(
                X, algorithm="all_reduce/two_shot pull bulk zero_copy"
            ),
            "is for arrays of comm.empty",
        ),
        (
            lambda c: c.all_reduce(X, algorithm="all_reduce/swing"),
            "want a power of two",
        ),
        (lambda c: c.reduce_scatter(np.ones(7)), "7, is not divisible by 3 ranks; use"),
        (lambda c: c.all_to_all(np.array(1.0)), "not divisible"),
        (lambda c: c.broadcast(X, root=3), "root=3; want a rank below 3"),
        (lambda c: c.scatter(X), "scatter: out is None; want an array"),
        (lambda c: c.permute(X, [(0, 1), (0, 2)]), "a rank is a source more than once"),
        (lambda c: c.permute(X, [(0, 9)]), "target=9; want a rank below 3"),
        (lambda c: c.all_gather_v(X, [1, 2]), "want 3 numbers, none negative"),
        (lambda c: c.all_gather_v(X, [1, 2, 3]), r"counts\[1\] is 2; x has 6"),
        (lambda c: c.reduce_scatter_v(X, [1, 2, 4]), "counts sum to 7; x has 6"),
        (lambda c: c.scatter_v(None, [1, 2, 4]), "neither out nor dtype"),
        (lambda c: c.send(X, to=1), "rank 1 with itself; want another rank"),
        (lambda c: c.recv(X, source="x"), "source='x'; want a rank below 3"),
    ],
)
def test_a_wrong_call_is_refused_with_the_reason(comm, session, call, words):
    """Who, what was given, what was wanted; and nothing was launched."""
    with pytest.raises(CallError, match=words):
        call(comm)

    assert [] == session.launched
    comm.all_reduce(X)


def test_a_wrong_name_is_answered_with_the_right_ones(comm):
    """Algorithms and operators are catalogues."""
    with pytest.raises(UnknownNameError, match="known: all_reduce/ring"):
        comm.all_reduce(X, algorithm="all_reduce/rng")
    with pytest.raises(UnknownNameError, match=r"known: .*sum"):
        comm.all_reduce(X, op="som")


@algorithm("all_reduce/part", members=(0, 2))
def part(ranks):
    """Ranks 0 and 2 exchange what they have by way of rank 1."""
    first, last = ranks.members
    room = ranks[1].scratch("room", 2)
    room[:] = reduce(first.input[:], last.input[:])
    first.output[:] = room[:]
    last.output[:] = room[:]


def test_an_algorithm_among_some_ranks_runs_only_when_it_is_named(
    comm, session, monkeypatch
):
    """One in the catalogue, too; a relay's launch gets no arrays, call after call."""
    known = {**algorithms._found(), part.name: part}
    monkeypatch.setattr(algorithms, "_found", lambda: known)
    row = Rule(
        collective="all_reduce",
        memory="staged",
        fewest=2,
        most=8,
        sizes=((1 << 30, f"{part.name} push bulk"), (1 << 30, "all_reduce/ring")),
    )
    asked = Question(
        executor="cpu", collective="all_reduce", num_ranks=3, nbytes=48, in_place=True
    )
    chosen = Profile(executor="cpu", rules=(row,)).choose(asked)

    assert part not in algorithms.of("all_reduce", 3)
    assert "all_reduce/ring" == str(chosen).split()[0]
    for pin in (part, part.name, f"{part.name} push bulk", (part, "push bulk")):
        for _ in range(3):
            x = np.ones(6)
            assert comm.all_reduce(x, algorithm=pin) is None
            assert (None, None) == session.launched[-1]
    plan, call = session.prepared[-1]
    assert (0, 2) == plan.params["members"]
    assert (6,) == call.counts
    assert part.name == comm.explain("all_reduce", 6, algorithm=part).split()[0]
    with pytest.raises(CallError, match=r"an epilogue, by an algorithm among .0, 2."):
        comm.all_reduce(np.ones(6), algorithm=part, epilogue=object())


@pytest.mark.parametrize(
    ("verb", "x", "out", "good"),
    [
        ("all_reduce", slice(0, 6), slice(0, 6), True),
        ("all_gather", slice(2, 4), slice(0, 6), True),
        ("all_gather", slice(0, 2), slice(0, 6), False),
        ("reduce_scatter", slice(0, 6), slice(2, 4), True),
        ("reduce_scatter", slice(0, 6), slice(4, 6), False),
        ("all_to_all", slice(0, 6), slice(0, 6), True),
    ],
)
def test_in_place_is_what_the_collective_says(comm, session, verb, x, out, good):
    """Own parts or the same memory; any other overlap is an error."""
    memory = np.ones(6)
    call = getattr(comm, verb)
    if not good:
        with pytest.raises(CallError, match=r"\(in place\), or no overlap"):
            call(memory[x], out=memory[out])
        return
    call(memory[x], out=memory[out])

    plan, _ = session.prepared[-1]
    assert plan.in_place


def test_the_same_call_is_prepared_once(comm, session):
    """Other arrays of the same kind share the launch; other sizes do not."""
    for _ in range(3):
        comm.all_reduce(np.ones(6))
    comm.all_reduce(np.ones(7))

    assert 2 == len(session.prepared)
    assert 4 == len(session.launched)


@pytest.mark.filterwarnings("ignore:Setting the:DeprecationWarning")  # NumPy 2.5
def test_a_call_seen_before_is_recognised_by_its_array(comm, session):
    """The launch gets the very array; a changed shape or type is noticed."""
    x = np.ones(12, np.float32)
    for _ in range(3):
        assert comm.all_reduce(x) is x
    assert all(pair[0] is x for pair in session.launched[1:])

    x.dtype = np.int32
    comm.all_reduce(x)
    assert "int32" == session.prepared[-1][1].dtype
    x.shape = (3, 4)
    assert (3, 3, 4) == comm.all_gather(x).shape


def test_an_array_like_one_seen_before_is_not_examined_again(
    comm, session, monkeypatch
):
    """Shape, type, flags and registration are all that a request looks at."""
    for make in (lambda: np.ones(6), lambda: np.ones(8)[:6]):
        comm.all_reduce(make())
        comm.all_gather_v(make(), (2, 6, 4))
    monkeypatch.setattr(comm, "_caller", None)
    for make in (lambda: np.ones(6), lambda: np.ones(8)[:6]):
        x = make()
        assert comm.all_reduce(x) is x
        assert session.launched[-1][0] is x
        assert (12,) == comm.all_gather_v(make(), [2, 6, 4]).shape

    assert 2 == len(session.prepared)


def test_an_array_that_differs_in_what_matters_is_examined(comm, session):
    """What was refused, copied or zero-copy before is so after calls that were not."""
    memory = np.ones(13)
    for _ in range(2):
        comm.all_reduce(memory[:6], out=memory[6:12])
    with pytest.raises(CallError, match=r"overlaps x, \+40 bytes"):
        comm.all_reduce(memory[:6], out=memory[5:11])
    fixed = memory[:6].copy()
    fixed.flags.writeable = False
    comm.all_reduce(np.ones(6))
    with pytest.raises(CallError, match="read-only"):
        comm.all_reduce(fixed)
    strided = memory[:12:2]
    comm.all_reduce(strided)
    assert session.launched[-1][0] is not strided
    assert session.launched[-1][0].flags.c_contiguous
    comm.all_reduce(np.ones(6, ">f8"))
    assert session.launched[-1][0].dtype.isnative

    comm.all_reduce(np.ones(1 << 18))
    comm.all_reduce(comm.empty(1 << 18, "float64"))
    assert "zero_copy" == session.prepared[-1][0].schedule.memory


def test_recognising_an_array_does_not_keep_it_alive(comm, session):
    """What is remembered of a call is no reference."""
    x = np.ones(1000)
    comm.all_reduce(x)
    comm.all_reduce(x)
    ref = weakref.ref(x)
    session.launched.clear()
    del x
    gc.collect()

    assert ref() is None


def test_registered_memory_makes_zero_copy_possible(comm, session):
    """All arrays of a call must be; a view is; one private array is enough against."""
    room, other = comm.empty(3 << 20, "float32"), comm.empty(1 << 20, "float32")
    private = np.ones(1 << 20, np.float32)
    comm.reduce_scatter(room, out=other)
    comm.reduce_scatter(room, out=private)

    memories = [plan.schedule.memory for plan, _ in session.prepared]
    assert ["zero_copy", "staged"] == memories


def test_after_a_fault_every_call_says_so(comm, session):
    """The first fault is named; nothing is sent any more."""
    comm.all_reduce(X)
    session.fault = PeerLost("rank 2 died")
    with pytest.raises(PeerLost, match="rank 2 died"):
        comm.all_reduce(X)
    session.fault = None
    launched = len(session.launched)

    for call in (lambda: comm.all_reduce(X), comm.barrier, lambda: comm.empty(3)):
        with pytest.raises(CommunicatorBroken, match="PeerLost: rank 2 died"):
            call()
    assert launched == len(session.launched)


def test_a_started_call_holds_its_error(comm, session):
    """What a call raises beside the caller is raised to whoever waits."""
    session.fault = PeerLost("rank 0 died")
    work = comm.all_reduce_async(X)

    with pytest.raises(PeerLost, match="rank 0 died"):
        work.wait(10)
    assert work.is_done
    with pytest.raises(CommunicatorBroken, match="rank 0 died"):
        comm.all_reduce_async(X)
    comm.close()


def test_results_of_ranks_without_output_are_none(comm):
    """Rank 1 gets nothing from a reduce or gather to rank 0."""
    assert comm.reduce(X, root=0) is None
    assert comm.gather(X, root=0) is None
    assert (3, 6) == comm.gather(X, root=1).shape


def test_a_rank_that_nobody_targets_gets_zeros(comm):
    """Permute fills it here, whatever was there."""
    out = np.ones(6)

    assert comm.permute(X, [(1, 0)], out=out) is out
    assert [0.0] * 6 == out.tolist()


@algorithm("all_reduce/own")
def own(ranks):
    """Not in the catalogue."""
    for r in ranks:
        for q in ranks:
            if q == 0:
                r.output[:] = q.input[:]
            else:
                r.output[:] += q.input[:]


def test_an_algorithm_of_ones_own_can_be_pinned(comm, session):
    """The object itself, with the words of a schedule when wanted."""
    comm.all_reduce(X, algorithm=(own, "push packets"))

    plan, call = session.prepared[-1]
    assert "all_reduce/own" == plan.name
    assert "push packets staged" == str(plan.schedule)
    assert ("float64", Operator.SUM, (6,)) == (call.dtype, call.op, call.counts)


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 5])
@pytest.mark.parametrize("words", ["push packets", "push bulk", "pull bulk"])
def test_a_staged_plan_in_place_serves_every_call(num_ranks, words):
    """Ranks may differ in being in place, so one plan is proved for both."""
    for name in algorithms.names():
        one = algorithms.get(name)
        params = (("pairs", ((0, num_ranks - 1),)),) if "permute" in name else ()
        if one.refuses(num_ranks) is None:
            schedule = Schedule.parse(words)

            assert proved_plan(one, num_ranks, params, schedule, True).value.in_place


def test_zero_copy_needs_an_array_of_ones_own_to_tell_where_others_lie():
    """The root of a broadcast has an output; the others have no input to pull by."""
    flat = algorithms.get("broadcast/flat")
    push, pull = (Schedule(direction=d, memory="zero_copy") for d in ("push", "pull"))

    assert proved_plan(flat, 3, (("root", 0),), push, True)
    with pytest.raises(PlanError, match="has no input of its own to tell where"):
        proved_plan(flat, 3, (("root", 0),), pull, True)
