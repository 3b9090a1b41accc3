"""What is proved ahead: layouts that may follow a loss, and kinds of calls told of."""

from dataclasses import asdict
from types import SimpleNamespace

import pytest

from stretto.runtime.calls import ahead
from stretto.runtime.calls.ahead import RankLayout, for_layout, nearest, seated, told
from stretto.runtime.choice import Question
from stretto.runtime.choice.measured import Measured


def asked(collective="all_reduce", nbytes=4096, num_ranks=4, **how):
    return Question(
        executor="cpu", collective=collective, num_ranks=num_ranks, nbytes=nbytes, **how
    )


def test_on_one_host_numbers_of_ranks_alone_count():
    """The first one first."""
    assert (RankLayout(4), RankLayout(3), RankLayout(5)) == nearest((4, 3, 5), ())


@pytest.mark.parametrize("hosts", [(0, 0, 1, 1), (0, 1), (0, 1, 0, 2, 2)])
def test_every_loss_of_one_rank_or_one_host_is_among_what_follows(hosts):
    """By hand here: a rank that comes back elsewhere, or does not, and a host less."""
    sizes = range(1, len(hosts) + 1)
    found = nearest(tuple(reversed(sizes)), hosts)

    def settled(some):
        names = {}
        made = tuple(names.setdefault(h, len(names)) for h in some)
        return RankLayout(len(made), made if len(names) > 1 else ())

    want = {settled(hosts)}
    for lost in range(len(hosts)):
        want.add(settled([h for r, h in enumerate(hosts) if r != lost]))
        for where in set(hosts):
            want.add(settled([where if r == lost else h for r, h in enumerate(hosts)]))
    for gone in set(hosts):
        want.add(settled([h for h in hosts if h != gone]))
    assert want == set(found)
    assert found[0] == settled(hosts)
    assert len(found) == len(set(found))


def test_fewer_than_may_be_are_left_out_and_many_are_cut():
    """Proofs take processor time, which is the job's."""
    assert {4} == {one.num_ranks for one in nearest((4,), (0, 0, 1, 1))}
    assert 24 == len(nearest((64, 63), tuple(r // 8 for r in range(64))))


def test_sums_keep_their_size_and_parts_grow_with_the_ranks():
    """As the next call of each will."""
    there = RankLayout(8, (0,) * 4 + (1,) * 4)
    assert asked(num_ranks=8, hosts=there.hosts) == for_layout(asked(), there)
    gathered = for_layout(asked("all_gather"), there)
    assert 8192 == gathered.nbytes


def test_what_is_told_is_each_kind_in_each_layout():
    """What makes no sense is left out: it comes from others."""
    kinds = [repr(asdict(asked())), "nonsense(", repr({"no": 1})]
    fact = {
        "kinds": kinds,
        "layouts": [[4, [0, 0, 1, 1], ["", []]], [3, [], ["cpux4", [0, 1, 3]]]],
    }
    want = [asked(hosts=(0, 0, 1, 1)), asked(num_ranks=3, seats=("cpux4", (0, 1, 3)))]

    assert want == told(fact)
    assert [] == told({"kinds": kinds}) == told({})
    for layouts in ([4], [[4, "x"]], 7, [["four", [], ["", []]]], [[4, [], []]]):
        assert [] == told({"kinds": kinds, "layouts": layouts})


def test_on_a_machine_whoever_may_be_lost_has_a_layout_of_its_own():
    """All of a number of ranks, or none: a number is ready once all of it is proved."""
    found = seated((4, 3, 2, 5), "cpux5", (0, 1, 2, 4))
    by_number = {n: [one.seats for one in found if one.num_ranks == n] for n in (4, 3)}
    assert [("cpux5", (0, 1, 2, 4))] == by_number[4]
    want = {(0, 1, 2), (0, 1, 4), (0, 2, 4), (1, 2, 4)}
    assert want == {places for _, places in by_number[3]}
    whole = RankLayout(5, (), ("cpux5", (0, 1, 2, 4, 3)))
    assert [whole] == [one for one in found if one.num_ranks == 5]
    many = seated(range(16, 13, -1), "cpux16", range(16))
    assert {16, 15} == {one.num_ranks for one in many}


def test_what_is_ready_says_by_which_plan(monkeypatch):
    """And is false until each kind is proved in each layout of that number."""
    said = []
    one = ahead.Ahead(lambda *what: said.append(what))
    monkeypatch.setattr(one._workers, "give", said.append)
    one.begin(seated((3, 2), "cpux3", (0, 1, 2)), Measured())
    one.note(asked(num_ranks=3))
    assert not any(one.ready_for().values())
    said.pop()()
    ready = one.ready_for()
    assert all(ready.values())
    assert {3, 2} == set(ready)
    assert 1 == len(ready[3].by)
    assert ready[3].by[0].startswith("all_reduce of 4K: all_reduce/")
    assert 3 == len(ready[2].by)
    assert ready[2].by[1].startswith("all_reduce of 4K at (0, 2): all_reduce/")


def test_no_call_waits_until_a_thread_runs(monkeypatch):
    """It is there before the first: others wait in that for who has just come."""
    one = ahead.Ahead(lambda *what: None)
    try:
        one.begin((), Measured())
        monkeypatch.setattr(one, "_prove", lambda asked: None)
        monkeypatch.setattr("stretto.fabric.workers.start_thread", pytest.fail)
        one.note(asked(num_ranks=3))
    finally:
        one.end()


def test_nothing_is_proved_while_new_calls_are_made(monkeypatch):
    """Who proves has the interpreter's lock, at a low priority."""
    now, slept = [100.0], []

    def sleep(left_s):
        slept.append(left_s)
        now[0] += left_s
        if len(slept) == 1:  # another one meanwhile
            one.note(asked(num_ranks=2))

    clock = SimpleNamespace(monotonic=lambda: now[0], sleep=sleep)
    monkeypatch.setattr(ahead, "time", clock)
    one = ahead.Ahead(lambda *what: None)
    monkeypatch.setattr(one._workers, "give", lambda task: None)
    try:
        one.note(asked(num_ranks=3))
        one._prove(asked(num_ranks=3))
        assert now[0] == pytest.approx(100.0 + 2 * ahead._QUIET_S)
    finally:
        one.end()
