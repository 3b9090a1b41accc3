"""Ranks that change while nobody restarts: replaced, gone, and come; real processes."""

import sys
import time

import pytest
from tests.host.meeting.test_join import free_port, secret_file
from tests.waiting import until as wait_until

pytestmark = [pytest.mark.host, pytest.mark.timeout(60)]
CHANGE = """
import numpy as np
from dataclasses import replace
from stretto.runtime.calls.communicator import Communicator
from stretto.fabric.messages import STANDBY, WATCHER
def place(address, rank=1, size=2):
    return find_place(rank, size, address)
def rank(r, size, address='job'):
    m = join(place(address, r, size), deadline_s=20.0, stays_open=True)
    say('met', m.standing.identity, m.generation)
    return m
def beside(wish, address='job'):
    m = join(place(address), deadline_s=20.0, wish=wish)
    say('met', m.standing.identity, m.generation)
    return m
def propose(m, order, after):
    m.standing.propose(order, after=after)
    return m.current()
def standbys(m, n):
    until = time.monotonic() + 10
    while len(m.standing.standbys) < n and time.monotonic() < until:
        time.sleep(0.001)
    return m.standing.standbys
def replaced(m):
    before, until = m.world.group.generation, time.monotonic() + 10
    order = list(m.standing.roster_in(before))
    bad, = m.world.fault.blamed
    while m.generation == before:  # else what another rank proposed has begun
        if spare := m.standing.standbys:
            order[bad] = spare[0]
            break
        assert time.monotonic() < until, 'nobody stands by'
        time.sleep(0.001)
    return order
def talk(m, w):
    parts = w.exchange({'rank': w.rank, 'pid': os.getpid()}, tag='talk')
    say('talked', time.monotonic(), w.rank, w.num_ranks, m.generation,
        *(said['rank'] for said, _ in parts))
def until_gone(w):
    until = time.monotonic() + 10
    while not w.broken[0] and time.monotonic() < until:
        time.sleep(0.0005)
def add(w):
    with Communicator(w) as comm:
        say('sum', *(comm.all_reduce(np.full(3, w.rank + 1.0))))
"""
RANK = "m = rank({}, {}, {!r})\n"
STAND = "m = beside(STANDBY, {!r})\nm.standing.stand_by(30)\nw = m.current()\n"
STAND += "talk(m, w)\n"


def hear(member, word):
    """Return what a member says next, after a word."""
    said = member.hear().split()
    assert word == said[0], said
    return said[1:]


def begin(start, size, then, address="job", **variables):
    """Start ranks that meet in a world that stays open; return them."""
    code = [CHANGE + RANK.format(r, size, address) + then for r in range(size)]
    ranks = [start(one, **variables) for one in code]
    for one in ranks:
        hear(one, "met")
    return ranks


SURVIVE = """
until_gone(m.world)
time.sleep(LATE_S * (m.rank == 0))
w = propose(m, replaced(m), m.world.group.generation)
talk(m, w)
say('old', m.world.fault.blamed)
add(w)
"""


@pytest.mark.parametrize("late_s", [0.0, 0.5])
def test_a_standby_takes_the_place_of_a_rank_that_is_killed(start, late_s):
    """Who survives proposes the same, talks in the next generation, and calls there.

    One that is late finds that it has begun already.
    """
    ranks = begin(start, 3, f"LATE_S = {late_s}\n" + SURVIVE)
    standby = start(CHANGE + STAND.format("job") + "add(w)\n")
    first = int(hear(standby, "met")[1])
    ranks[1].kill()
    since = time.monotonic()
    members = [ranks[0], standby, ranks[2]]
    talked = [hear(one, "talked") for one in members]
    until = max(float(said[0]) for said in talked)
    sys.stdout.write(
        f"from the kill to an exchange in the next generation: {until - since:.4f} s\n"
    )

    expected = [[str(r), "3", str(first + 1), "0", "1", "2"] for r in range(3)]
    assert expected == [said[1:] for said in talked]
    assert until - since < 5.0
    for one in (ranks[0], ranks[2]):
        assert ["(1,)"] == hear(one, "old")
    assert [["6.0"] * 3] * 3 == [hear(one, "sum") for one in members]
    assert [("", "")] * 3 == [one.end() for one in members]


LEAVE = """
pair = m.world.split(0 if m.rank < 2 else 1)
if m.rank == 2:
    g = m.generation
    try:
        propose(m, m.standing.identities[:2], g)
    except StrettoError as e:
        say('out', type(e).__name__, m.generation - g)
    until_gone(m.world)
    say('broken', m.world.fault.blamed)
    m.close()
else:
    m.standing.follow(m.world.group.generation, 20)
    w = m.current()
    talk(m, w)
    until_gone(m.world)
    say('broken', m.world.fault.blamed)
    talk(m, pair)
    say('lost', m.world.fault.to_error())
"""


def test_a_rank_leaves_as_planned_and_those_that_stay_keep_their_groups(start):
    """The group of all is broken in words; one whose members all stay goes on."""
    ranks = begin(start, 3, LEAVE)
    assert ["CommunicatorBroken", "1"] == hear(ranks[2], "out")
    for one in ranks[:2]:
        assert ["0", "1"] == hear(one, "talked")[4:]
    assert [["(2,)"]] * 3 == [hear(one, "broken") for one in ranks]
    for one in ranks[:2]:
        assert ["0", "1"] == hear(one, "talked")[4:]
        assert "a generation of ranks has begun without rank 2" in one.hear()
    assert [("", "")] * 3 == [one.end() for one in ranks]


GROW = """
if m.rank == 0:
    w = propose(m, [*m.standing.identities, *standbys(m, 1)], m.generation)
else:
    m.standing.follow(m.world.group.generation, 20)
    w = m.current()
talk(m, w)
m.world.exchange({}, tag='old')
say('goes on')
add(w)
"""


def test_ranks_grow_by_one_and_a_watcher_sees_it(start):
    """Groups of the ranks that were there go on."""
    ranks = begin(start, 2, GROW)
    watch = "m = beside(WATCHER)\nm.standing.follow(m.generation, 30)\n"
    watch += "try:\n    m.current()\n"
    watch += "except StrettoError as e:\n    say('saw', m.num_ranks)\n"
    watcher = start(CHANGE + watch + "m.close()\n")
    hear(watcher, "met")
    standby = start(CHANGE + STAND.format("job") + "add(w)\n")
    hear(standby, "met")

    for one in (*ranks, standby):
        assert ["0", "1", "2"] == hear(one, "talked")[4:]
    for one in ranks:
        assert "goes on" == one.hear()
    assert [["6.0"] * 3] * 3 == [hear(one, "sum") for one in (*ranks, standby)]
    assert ["3"] == hear(watcher, "saw")
    assert [("", "")] * 4 == [one.end() for one in (*ranks, standby, watcher)]


def test_what_a_member_cannot_prepare_is_told_to_all_and_the_old_one_goes_on(start):
    """In the words of who could not, also where preparing raised."""
    fail = "m.standing.on_prepare = lambda asked: 1 / 0 if m.rank == 1 else ''\n"
    then = """
if m.rank == 0:
    m.world.exchange({}, tag='set')
    try:
        propose(m, m.standing.identities[::-1], m.generation)
    except StrettoError as e:
        say('not', e)
else:
    m.world.exchange({}, tag='set')
talk(m, m.world)
"""
    ranks = begin(start, 2, fail + then)

    said = ranks[0].hear()
    assert "not rank 1 cannot prepare itself: ZeroDivisionError" in said
    for one in ranks:
        assert ["0", "1"] == hear(one, "talked")[4:]
    assert [("", "")] * 2 == [one.end() for one in ranks]


@pytest.mark.parametrize("killed", [False, True])
def test_a_standby_whose_ranks_all_go_or_whose_hub_dies_is_told_so(start, killed):
    """It does not wait for ever."""
    ranks = begin(start, 2, "m.world.exchange({}, tag='go')\nsys.stdin.readline()\n")
    stand = "m = beside(STANDBY)\ntry:\n    m.standing.stand_by(30)\n"
    stand += "except StrettoError as e:\n    say('told', e)\n"
    standby = start(CHANGE + stand)
    hear(standby, "met")
    for one in ranks[:1] if killed else ranks:
        if killed:
            one.kill()
        else:
            one.process.stdin.write("\n")
            one.process.stdin.flush()

    why = "the rendezvous has ended" if killed else "all ranks are gone"
    assert f"told {why}" in standby.hear()
    assert ("", "") == standby.end()


@pytest.mark.parametrize("there", ["a", "b"])
def test_ranks_of_two_hosts_go_on_with_a_standby_of_either(start, tmp_path, there):
    """Over TCP: the relay of the other host welcomes who comes later, too.

    Rank 2 hosts it: who is killed shall not take its whole host along.
    """
    where = f"tcp://127.0.0.1:{free_port()}"
    secret = {"STRETTO_SECRET_FILE": secret_file(tmp_path)}
    ranks = []
    for r in range(4):
        code = CHANGE + RANK.format(r, 4, where) + "LATE_S = 0.0\n"
        code += SURVIVE.replace("add(w)", "")
        ranks.append(start(code, STRETTO_HOST="ab"[r // 2], **secret))
        if r == 2:  # the sockets of the hub and of its relay
            wait_until(lambda: len([*tmp_path.glob("stretto/*.sock")]) == 2)
    for one in ranks:
        hear(one, "met")
    standby = start(CHANGE + STAND.format(where), STRETTO_HOST=there, **secret)
    hear(standby, "met")
    ranks[3].kill()
    since = time.monotonic()
    members = [*ranks[:3], standby]
    talked = [hear(one, "talked") for one in members]
    until = max(float(said[0]) for said in talked)
    sys.stdout.write(
        f"from the kill to an exchange over two hosts: {until - since:.4f} s\n"
    )

    assert [["0", "1", "2", "3"]] * 4 == [said[4:] for said in talked]
    assert until - since < 5.0
    assert [["(3,)"]] * 3 == [hear(one, "old") for one in ranks[:3]]
    assert [("", "")] * 4 == [one.end() for one in members]
