"""Who comes and cannot serve is given up; the others go on as if it had not come."""

import json

import pytest
from tests.host.elastic.test_changing import JOB, hear
from tests.host.elastic.test_training import TRAIN
from tests.waiting import until

from stretto import elastic
from stretto.fabric.meeting.watching import watching

pytestmark = [pytest.mark.host, pytest.mark.timeout(90)]
SOME = """
import stretto.executors.cpu as cpu
from stretto.executors.cpu import session
how = dict(min_ranks={least}, standby=1, wait_s=2.0)
"""
ON_GPUS = """
cpu.stands_on = lambda: "GPU-{gpu}"
"""
GOES_ON = """
comm = connect({rank}, 3, **how)
wait_for(lambda: comm.standbys)
say("met", total(comm))
try:
    for _ in range({times}):
        until_lost(comm, np.zeros(100))
        comm.replace()
        show(comm)
except stretto.MembershipError as e:
    say("now", e)
comm.close()
"""
COMES = "comm = connect(None, 3, **how)\nshow(comm)\ncomm.close()\n"


def states(meeting):
    """Return what is said of those that stand by, and their pids."""
    free = [one for one in elastic.look(meeting).members if one.rank < 0]
    return [(one.state, one.said.get("pid")) for one in free]


def test_who_stands_on_what_a_rank_has_takes_that_ranks_place_alone(
    start, monkeypatch, tmp_path
):
    """As GPUs are; others' places stay empty, and whoever looks is told why."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    some, ranks = SOME.format(least=2), []
    for rank in range(3):
        goes = GOES_ON.format(rank=rank, times=2)
        ranks.append(start(JOB + some + ON_GPUS.format(gpu=rank) + goes))
    late = start(JOB + some + ON_GPUS.format(gpu=2) + COMES)
    for one in ranks:
        assert "met 6.0" == one.hear()
    where = "rank {} stands on cpu GPU-2, too"
    with watching("job") as meeting:
        said = f"stands by for rank 2 alone: {where.format(2)}"
        until(lambda: states(meeting) == [(said, late.process.pid)], 10)
        ranks.pop(1).kill()
        for nth, one in enumerate(ranks):
            assert [str(nth), "2", "1", "3.0"] == hear(one)
        said = f"stands by for rank 1 alone: {where.format(1)}"
        assert [said] == [state for state, _ in states(meeting)]
    ranks.pop(1).kill()
    assert ["0", "2", "2", "3.0"] == hear(ranks[0])
    assert ["1", "2", "2", "3.0"] == hear(late)
    assert [("", "")] * 2 == [one.end() for one in (*ranks, late)]


FAILS = """
def fails(*_):
    raise stretto.DeviceError("no memory")
"""
COMES_AND_FAILS = "session.CpuSession.__init__ = fails\n"
FAILS_BESIDE = """
renew = session.CpuSession.renew
def beside(self, kept):
    if None in kept:
        fails()
    return renew(self, kept)
session.CpuSession.renew = beside
"""


@pytest.mark.parametrize(
    ("comes", "stay"), [(True, ()), (True, (0, 2)), (False, (0, 2)), (False, (2,))]
)
@pytest.mark.parametrize("least", [2, 3])
def test_a_replacement_that_cannot_serve_is_given_up(start, comes, stay, least):
    """Whoever finds it: it, those who stay, all of them, or one that it fails beside.

    Those who stay are fewer then, if they may be; else they say why they end.
    """
    some, ranks = SOME.format(least=least) + FAILS, []
    for rank in range(3):
        more = FAILS_BESIDE * (rank in stay)
        goes = GOES_ON.format(rank=rank, times=1)
        ranks.append(start(JOB + some + more + goes))
    late = start(JOB + some + COMES_AND_FAILS * comes + COMES)
    for one in ranks:
        assert "met 6.0" == one.hear()
    ranks.pop(1).kill()
    said = [hear(one) for one in ranks]
    if least == 2:
        assert [["0", "2", "3.0"], ["1", "2", "3.0"]] == [[*s[:2], s[3]] for s in said]
    else:
        assert all("are left" in " ".join(one) for one in said)
        assert any("DeviceError: no memory" in " ".join(one) for one in said)
    assert late.process.wait(20) in (1, -9)
    assert [""] * 2 == [one.end()[0] for one in ranks]


TRAINS = "train({}, 2, {{0: (3, 1, 'backward')}}, min_ranks=1, wait_s=2.0)\n"


@pytest.mark.slow
@pytest.mark.parametrize("known", [True, False])
def test_training_goes_on_with_fewer_where_who_comes_cannot_serve(start, known):
    """Whether that is known before it is chosen, or found out when it comes."""
    some = SOME.format(least=1) + FAILS
    codes = [some + ON_GPUS.format(gpu=g) * known + TRAIN for g in (0, 1, 0)]
    codes[2] += COMES_AND_FAILS * (not known)
    ranks = [TRAINS.format(who) for who in (0, 1, None)]
    one, dies, late = [start(a + b) for a, b in zip(codes, ranks, strict=True)]
    rank, step, losses, _ = json.loads(one.hear())
    assert (0, 12, 12) == (rank, step, len(losses))
    assert -9 == dies.process.wait(20)
    said = late.end(30)
    assert late.process.returncode in ([0] if known else [1, -9]), said
