"""Ranks of a machine that lost one: a program for those that are left is chosen."""

import numpy as np
import pytest
from tests.host.elastic.test_changing import JOB

pytestmark = [pytest.mark.host, pytest.mark.timeout(200)]
SQUARE = """
about = "Four ranks in a square, each joined to two"
kind = "cpu"
[torus]
dims = [2, 2]
wrap = false
bandwidth_gbytes_per_s = 1
latency_us = 1.0
"""
OWN = '''
from stretto.lang import algorithm, reduce

@algorithm("all_reduce/middle", split=8, members=(0, 1, 3))
def middle(ranks):
    """Rank 1 joins the two others: it adds up."""
    zero, one, three = ranks.members
    for c in range(24):
        one.output[c] = reduce([zero.input[c], one.input[c], three.input[c]])
        zero.output[c] = one.output[c]
        three.output[c] = one.output[c]
'''
FRESH = f"""{JOB}
from stretto.program import algorithms
algorithms._found.cache_clear()  # whom it was forked from has looked already
"""
CALLS = """
comm.deadline_s = 80.0
x = np.full(1 << 18, comm.rank + 1.0, np.float32)
def summed(comm):
    return float(comm.all_reduce(np.full_like(x, comm.rank + 1.0))[-1])
def name(comm):
    return comm.explain("all_reduce", x.size, "float32").split()[0]
"""
SHRINK = """
summed(comm)
while not all(comm.ready_for().values()):  # modestly: others may be at work
    time.sleep(0.01)
comm.barrier()
sums = [one for one in comm.ready_for()[3].by if one.startswith("all_reduce")]
say("ready", [one.split(":", 1)[1].split()[0] for one in sums], "|", name(comm))
until_lost(comm, x)
comm.shrink()
say("fewer", name(comm), summed(comm))
comm.grow(1, within_s=80)
say("whole", name(comm), summed(comm))
comm.close()
"""


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Return a machine; a program for three of its places is in the catalogue."""
    (tmp_path / "own.py").write_text(OWN)
    (tmp_path / "square.toml").write_text(SQUARE)
    monkeypatch.setenv("STRETTO_KERNELS", str(tmp_path / "own.py"))
    return str(tmp_path / "square.toml")


def test_what_is_written_for_the_places_that_are_left_is_ready_and_used(machine, start):
    """It is proved before the loss; who comes sits where the lost rank sat."""
    how = f"min_ranks=3, max_ranks=4, machine={machine!r}"
    ranks = [
        start(f"{FRESH}comm = connect({r}, 4, {how})\n{CALLS}{SHRINK}")
        for r in range(4)
    ]
    for one in ranks:
        told, _, now = one.hear().removeprefix("ready ").partition(" | ")
        # of the places without 3, without 2, without 1, and without 0
        plans = eval(told)
        assert 4 == len(plans)
        assert "all_reduce/middle" == plans[1]
        assert "all_reduce/middle" not in (plans[0], plans[2], plans[3], now)
    ranks.pop(2).kill()
    for one in ranks:
        assert "fewer all_reduce/middle 6.0" == one.hear()
    late = start(
        f"{FRESH}comm = connect(None, 4, {how})\n{CALLS}"
        'say("whole", name(comm), summed(comm))\ncomm.close()\n'
    )
    said = {one.hear() for one in [*ranks, late]}
    assert 1 == len(said)
    assert said.pop() == f"whole {now} 10.0"
    assert [("", "")] * 4 == [one.end() for one in [*ranks, late]]


def test_a_machine_that_is_too_small_is_refused(machine, start):
    """Before anybody is waited for, and where the ranks are too many."""
    import stretto

    with pytest.raises(stretto.CallError, match="has 4 places; want no more"):
        stretto.Elastic(max_ranks=5, machine=machine)
    with pytest.raises(stretto.StrettoError, match=r"none\.toml: No such file"):
        stretto.Elastic(machine="none.toml")
    with pytest.raises(stretto.CallError, match="machine=4; want a name"):
        stretto.Elastic(machine=np.int64(4))
    code = f"""
try:
    connect({{}}, 5, machine={machine!r})
except stretto.CallError as e:
    say(e)
"""
    ranks = [start(JOB + code.format(r)) for r in range(5)]
    for one in ranks:
        assert one.hear().startswith("5 ranks on ")
