"""Ranks that become more, after fewer, and than there were at the start."""

import pytest
from tests.host.elastic.test_changing import JOB, begin, hear

pytestmark = [pytest.mark.host, pytest.mark.timeout(90)]
BEYOND = """
def grown(comm, buffer, *steps):
    for n in steps:
        comm.grow(n, within_s=20)
        show(comm)
    comm.all_reduce(buffer)  # memory that was registered before is still
    say("sums", comm.all_reduce(np.ones(1 << 15, np.float32))[7], buffer[3])
    comm.close()
def comes(*steps):
    comm = connect(None, 4, min_ranks=2)
    show(comm)
    (buffer,) = comm.inherited
    buffer[:] = 0
    grown(comm, buffer, *steps)
def stays(comm):
    buffer = comm.empty(100)
    buffer[:] = comm.rank
    say("met", comm.all_reduce(np.ones(1 << 15, np.float32))[7])
    for _ in range(2):
        until_lost(comm, np.zeros(100))
        comm.shrink()
        show(comm)
    grown(comm, buffer, 1, 2)
"""


def test_ranks_become_more_than_they_were_where_nobody_says_how_many(start):
    """Of four two are left, then there are three, and five, for whom memory is new."""
    ranks = begin(start, 4, f"{BEYOND}stays(comm)", min_ranks=2)
    for one in ranks:
        assert "met 4.0" == one.hear()
    for lost, left in ((3, (0, 1, 2)), (1, (0, 2))):
        ranks[lost].kill()
        for nth, one in enumerate(left):
            assert [str(nth), str(len(left))] == hear(ranks[one])[:2]
    ranks = [ranks[0], ranks[2], start(f"{JOB}{BEYOND}comes(2)")]
    assert [[str(r), "3", "3", "6.0"] for r in range(3)] == [hear(r) for r in ranks]
    ranks += [start(f"{JOB}{BEYOND}comes()") for _ in range(2)]
    for r, found in enumerate(map(hear, ranks)):
        assert [str(r) if r < 3 else found[0], "5", "4", "15.0"] == found
    assert ["sums 5.0 2.0"] * 5 == [one.hear() for one in ranks]
    assert [("", "")] * 5 == [one.end() for one in ranks]


FEWER = """
def goes_on(comm, *steps):
    for step in steps:
        if step == "lose":
            until_lost(comm, np.zeros(100))
            comm.shrink()
        elif step == "fill":
            wait_for(lambda: comm.standbys)
            say("met")
            until_lost(comm, np.zeros(100))
            comm.replace()
        else:
            comm.grow(within_s=20)
        show(comm)
    comm.close()
"""
LATER = f"{JOB}{FEWER}comm = connect(None, 3{{}})\nshow(comm)\ngoes_on(comm{{}})\n"


def test_who_comes_to_fewer_ranks_knows_how_many_they_were(start):
    """It takes a place of two, and all three grow again: memory is laid out alike."""
    steps = f"{FEWER}say('met')\ngoes_on(comm, 'lose', 'fill', 'grow')"
    ranks = begin(start, 3, steps, min_ranks=2)
    for one in ranks:
        assert "met" == one.hear()
    ranks.pop(1).kill()
    assert [["0", "2", "1", "3.0"], ["1", "2", "1", "3.0"]] == [hear(r) for r in ranks]
    late = start(LATER.format(", min_ranks=2", ", 'grow'"))
    for one in ranks:
        assert "met" == one.hear()
    ranks.pop(1).kill()
    ranks.append(late)
    assert [["0", "2", "2", "3.0"], ["1", "2", "2", "3.0"]] == [hear(r) for r in ranks]
    ranks.append(start(LATER.format(", min_ranks=2", "")))
    assert [[str(r), "3", "3", "6.0"] for r in range(3)] == [hear(r) for r in ranks]
    assert [("", "")] * 3 == [one.end() for one in ranks]


def test_as_many_as_at_the_start_are_enough_for_who_came_later(start):
    """Two grow to three; of these one may be lost again."""
    ranks = begin(start, 2, f"{FEWER}say('met')\ngoes_on(comm, 'grow', 'lose')")
    for one in ranks:
        assert "met" == one.hear()
    ranks.append(start(LATER.format("", ", 'lose'")))
    assert [[str(r), "3", "1", "6.0"] for r in range(3)] == [hear(r) for r in ranks]
    ranks.pop(0).kill()
    assert [[str(r), "2", "2", "3.0"] for r in range(2)] == [hear(r) for r in ranks]
    assert [("", "")] * 2 == [one.end() for one in ranks]
