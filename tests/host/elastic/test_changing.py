"""Communicators whose ranks change: replaced, gone, more; no process starts anew."""

import sys
import time

import numpy as np
import pytest

pytestmark = [pytest.mark.host, pytest.mark.timeout(90)]
JOB = """
import numpy as np
import stretto
def connect(rank, size, **elastic):
    if rank is None:
        os.environ["STRETTO_STANDBY"] = "1"
    comm = stretto.connect(
        rank or 0, size, "job", deadline_s=20.0, elastic=stretto.Elastic(**elastic)
    )
    return comm
def wait_for(true):
    until = time.monotonic() + 20
    while not true() and time.monotonic() < until:
        time.sleep(0.001)
    assert true()
def until_lost(comm, x):
    try:
        while True:
            comm.all_reduce(x)
    except stretto.PeerLost:
        return comm.lost
def total(comm):
    return float(comm.all_reduce(np.full(1000, comm.rank + 1.0))[7])
def show(comm, *more):
    say("now", comm.rank, comm.num_ranks, comm.generation, total(comm), *more)
"""
REPLACED = """
def replaced(comm):
    wait_for(lambda: comm.standbys)
    say("met")
    until_lost(comm, np.zeros(100))
    comm.replace()
    show(comm)
    comm.close()
"""
STANDBY = "comm = connect(None, {}, standby=1)\nshow(comm)\ncomm.close()\n"


def begin(start, size, then, **elastic):
    """Start ranks that meet; return them."""
    said = ", ".join(f"{name}={value}" for name, value in elastic.items())
    code = [f"{JOB}comm = connect({r}, {size}, {said})\n{then}" for r in range(size)]
    return [start(one) for one in code]


def hear(one):
    """Return the words after `now` of a process's next line."""
    said = one.hear().split()
    assert "now" == said[0], said
    return said[1:]


REPLACE = """
buffer = comm.empty(100)
buffer[:] = comm.rank
wait_for(lambda: comm.standbys)
say("met", total(comm))
lost = until_lost(comm, np.zeros(1 << 16, np.float32))
same = comm.replace()
comm.all_reduce(buffer)  # zero-copy, also with who has just come
show(comm, *lost, same is comm, buffer[3])
comm.close()
"""


@pytest.mark.parametrize("killed", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_a_standby_takes_a_lost_ranks_place_in_the_same_communicator(start, killed):
    """Also that of rank 0: no rank hosts the others. Registered memory stays."""
    ranks = begin(start, 3, REPLACE, standby=1)
    come = "comm = connect(None, 3, standby=1)\n"
    come += "buffer, = comm.inherited\nbuffer[:] = comm.rank\ncomm.all_reduce(buffer)\n"
    standby = start(JOB + come + "show(comm, buffer[3])\ncomm.close()\n")
    for one in ranks:
        assert "met 6.0" == one.hear()
    ranks[killed].kill()
    since = time.monotonic()
    stay = [r for r in range(3) if r != killed]
    for r in stay:
        told = [str(killed), "True", "3.0"]
        assert [str(r), "3", "1", "6.0", *told] == hear(ranks[r])
    assert [str(killed), "3", "1", "6.0", "3.0"] == hear(standby)
    sys.stdout.write(f"replaced in {time.monotonic() - since:.3f} s\n")
    assert [("", "")] * 3 == [one.end() for one in [*(ranks[r] for r in stay), standby]]


SHRINK = """
say("met", total(comm), comm.ready_for())
x = np.zeros(1 << 16, np.float32)
until_lost(comm, x)
wait_for(lambda: comm.ready_for()[2])
comm.shrink()
show(comm)
if comm.rank == 1:
    os.kill(os.getpid(), 9)
until_lost(comm, x)
try:
    comm.shrink()
except stretto.MembershipError as e:
    say("few", e)
"""


def test_who_is_lost_while_all_connect_does_not_end_the_job(start):
    """A standby takes the place; so may one that came when that had happened."""
    dies = """
from stretto.runtime.calls import communicator
communicator.agree = lambda group: os.kill(os.getpid(), 9)
"""
    goes_on = "comm = connect(1, 2, standby=1)\nshow(comm)\nreplaced(comm)\n"
    last = start(JOB + REPLACED + goes_on)
    first = start(f"{JOB}{dies}connect(0, 2, standby=1)\n")
    standby = start(JOB + STANDBY.format(2).replace("comm.close()", "time.sleep(60)"))
    assert ["1", "2", "1", "3.0"] == hear(last)
    assert ["0", "2", "1", "3.0"] == hear(standby)
    assert -9 == first.process.wait(10)
    late = start(JOB + STANDBY.format(2))
    assert "met" == last.hear()
    standby.kill()
    assert ["1", "2", "2", "3.0"] == hear(last)
    assert ["0", "2", "2", "3.0"] == hear(late)


def test_ranks_become_fewer_until_too_few_are_left(start):
    """They are numbered anew; a refusal names who is left, and what was wanted."""
    ranks = begin(start, 3, SHRINK, min_ranks=2)
    for one in ranks:
        assert one.hear().startswith("met 6.0 {3: ")
    ranks[1].kill()
    assert ["0", "2", "1", "3.0"] == hear(ranks[0])
    assert ["1", "2", "1", "3.0"] == hear(ranks[2])
    assert "few rank 0 of 2 are left" in ranks[0].hear()
    assert "" == ranks[0].end()[1]


SUSPENDED = """
kept = comm.empty(4, "float64")
kept[:] = comm.rank
say("met", total(comm))
comm.suspend()
if comm.rank == 1:
    os.kill(os.getpid(), 9)
wait_for(lambda: comm.lost)
comm.shrink()
show(comm, comm.memory()["cpu"]["registered"] > 0, kept[0])
comm.suspend()
comm.resume()
say("again", total(comm))
comm.close()
"""


def test_ranks_that_are_lost_while_memory_is_given_back_are_left_behind(start):
    """Who goes on is suspended no more, and has what it had registered."""
    ranks = begin(start, 3, SUSPENDED, min_ranks=2)
    for one in ranks:
        assert "met 6.0" == one.hear()
    for r, was in ((0, 0), (2, 2)):
        assert [str(r // 2), "2", "1", "3.0", "True", f"{was}.0"] == hear(ranks[r])
        assert "again 3.0" == ranks[r].hear()
        assert ("", "") == ranks[r].end()


GROW = """
try:
    comm.grow(2)
except stretto.MembershipError as e:
    say("few", e)
say("met", total(comm))
comm.grow(1)
show(comm)
comm.close()
"""


@pytest.mark.slow
def test_ranks_become_more_when_somebody_stands_by(start):
    """As far as `max_ranks` says, which is room that all keep from the start."""
    ranks = begin(start, 2, GROW, max_ranks=3)
    for one in ranks:
        assert "want at most max_ranks=3" in one.hear()
        assert "met 3.0" == one.hear()
    standby = start(JOB + STANDBY.format(2).replace("standby=1", "max_ranks=3"))
    for r, one in enumerate([*ranks, standby]):
        assert [str(r), "3", "1", "6.0"] == hear(one)
        assert ("", "") == one.end()


AGREE = """
said = [comm.agree(True), comm.agree(comm.rank != 1)]
if comm.rank == 2:
    comm.revoke("it looks odd")
try:
    comm.recv(np.zeros(3), (comm.rank + 1) % 3)
except stretto.CommunicatorBroken as e:
    said.append("rank 2 revoked this communicator: it looks odd" in str(e))
if comm.rank == 0:
    os.kill(os.getpid(), 9)
said.append(comm.agree(True))
wait_for(lambda: comm.lost)
comm.shrink()
show(comm, *said)
comm.close()
"""


def test_survivors_agree_and_whoever_is_in_a_call_leaves_what_is_revoked(start):
    """Also of a communicator that has broken, and while one of them dies."""
    ranks = begin(start, 3, AGREE, min_ranks=2)
    for r, one in enumerate(ranks[1:]):
        expected = [str(r), "2", "1", "3.0", "True", "False", "True", "True"]
        assert expected == hear(one)
        assert ("", "") == one.end()


LATE = """
wait_for(lambda: comm.standbys)
say("met", total(comm))
if comm.rank == 1:
    sys.stdin.readline()
    x = comm.all_reduce(np.full(1000, 1e6))
    say("wrote")
sys.stdin.readline()
from stretto.runtime.calls import changing
def swap(standing):
    order = list(standing.identities)
    order[1] = standing.standbys[0]
    return tuple(order)
changing.change(comm, swap, 20.0)
show(comm)
comm.close()
"""


def test_who_was_only_stopped_is_gone_before_another_takes_its_place(start):
    """It is ended, and cannot write: no byte of its own reaches the next generation."""
    ranks = begin(start, 2, LATE, standby=1)
    standby = start(JOB + STANDBY.format(2))
    for one in ranks:
        assert "met 3.0" == one.hear()
    ranks[1].kill(19)
    ranks[0].process.stdin.write("\n")
    ranks[0].process.stdin.flush()
    assert ["0", "2", "1", "3.0"] == hear(ranks[0])
    assert ["1", "2", "1", "3.0"] == hear(standby)
    assert -9 == ranks[1].process.wait(1.0)
    ranks[1].process.communicate()
    assert [("", "")] * 2 == [ranks[0].end(), standby.end()]


def test_one_rank_alone_answers_as_a_group_does(monkeypatch):
    """With a meeting behind it or not; nothing is lost, so nothing changes."""
    from tests.pure.calls.test_arguments import Alone

    import stretto

    monkeypatch.delenv("RANK", raising=False)
    met = stretto.connect(0, 1, "one", elastic=stretto.Elastic(max_ranks=2, wait_s=0))
    for comm in (met, stretto.Communicator(Alone(), profiles=None)):
        assert (0, (), ()) == (comm.generation, comm.lost, tuple(comm.standbys))
        assert [True, False] == [comm.agree(True), comm.agree(False)]
    assert [met] * 2 == [met.shrink(), met.replace()]
    with pytest.raises(stretto.MembershipError, match="0 stand by, want 1"):
        met.grow(1)
    with pytest.raises(stretto.MembershipError, match="3 ranks; want at most max_r"):
        met.grow(2)
    for odd in (0, "x", None, 1.5):
        with pytest.raises(stretto.CallError, match=r"rank 0: grow: n="):
            met.grow(odd)
    for call in (met.replace, met.shrink, met.grow):
        with pytest.raises(stretto.CallError, match=r"rank 0: .*: within_s=nan"):
            call(within_s=float("nan"))
    met.revoke("enough")
    with pytest.raises(stretto.CommunicatorBroken, match=r"rank 0 revoked .*: enough"):
        met.all_reduce(np.ones(3))
    assert met.agree()
    assert met is met.replace()
    assert 2.0 == met.all_reduce(np.full(3, 2.0))[0]
    met.close()
    with pytest.raises(stretto.CallError, match="agree: this communicator is closed"):
        met.agree()


def test_ranks_that_stay_as_they_came_say_so():
    """And what Elastic does not take is refused when it is written."""
    import stretto

    with pytest.raises(stretto.CallError, match="min_ranks=-1; want a whole number"):
        stretto.Elastic(min_ranks=-1)
    with pytest.raises(stretto.CallError, match="min_ranks=3 of max_ranks=2"):
        stretto.Elastic(min_ranks=3, max_ranks=2)
    with pytest.raises(stretto.CallError, match="wait_s=nan"):
        stretto.Elastic(wait_s=float("nan"))
    with pytest.raises(stretto.CallError, match="wait_s=None"):
        stretto.Elastic(wait_s=None)
    with pytest.raises(stretto.RankFailed, match="ranks of this communicator stay"):
        stretto.spawn(_shrink, num_ranks=1)


def _shrink(comm):
    comm.shrink()
