"""Two hosts with several rails: one goes down in a call, and the calls end right."""

import time

import pytest
from tests.soon import soon

from stretto.testing.namespaces import NoNamespaces, TwoHosts

pytestmark = [pytest.mark.host, pytest.mark.timeout(240)]


@pytest.fixture
def railed():
    """Two hosts that meet by one wire and have two rails beside it."""
    try:
        with TwoHosts(wires=3) as made:
            yield made
    except NoNamespaces as e:
        pytest.skip(f"no hosts of one's own here: {e}")


def rails(hosts, placed):
    """Return the variables of each rank: the rails of its host."""
    return {
        f"rank{rank}": {
            "STRETTO_INTERFACE": f"{hosts.rail(host, 1)},{hosts.rail(host, 2)}"
        }
        for rank, host in enumerate(placed)
    }


CALLS = """
import logging

class Away(logging.Handler):
    rails = 0
    def emit(self, record):
        said = record.getMessage()
        self.rails += ("is left" in said) - ("works again" in said)

away = Away()
logging.getLogger("stretto.hop").addHandler(away)
logging.getLogger("stretto.hop").addHandler(logging.StreamHandler())
comm = connect()
n, r = comm.num_ranks, comm.rank
rng = np.random.default_rng(7)
say("ready")
worst, calls, until = 0.0, 0, None
while True:
    count = int(rng.choice([1, 100, 5_000, 50_000, 300_000]))
    x = np.arange(count, dtype=np.float32) % 100 + r
    begun = time.monotonic()
    got = comm.all_reduce(x)
    every = comm.all_gather(np.full(count // 8 + 1, r + calls, np.float32))
    worst = max(worst, time.monotonic() - begun)
    due = (np.arange(count, dtype=np.float32) % 100) * n + n * (n - 1) / 2
    assert np.array_equal(got, due), calls
    assert (every == np.arange(n)[:, None] + calls).all(), calls
    calls += 1
    word = sys.stdin.readline().strip() if r == 0 and calls % 50 == 0 else None
    if calls % 50 == 0 and comm.broadcast_object(word) == "stop":
        break
    if calls % 50 == 0:
        left = sum(comm.all_gather_object(away.rails))
        if r == 0:
            say(calls, round(worst, 2), left)
        worst = 0.0
say("right", calls)
comm.close()
"""


def ask(job, word="more"):
    """Let the ranks make fifty calls; return what the longest took, and rails away."""
    job.ranks[0].stdin.write(word + "\n")
    job.ranks[0].stdin.flush()
    _, longest, away = job.hear(0).split()
    return float(longest), int(away)


@pytest.mark.parametrize("placed", [(0, 1), (0, 0, 1, 1)], ids=["1+1", "2+2"])
def test_calls_go_on_when_a_rail_goes_down(railed, start, placed):
    """By either end; it is used again when it works, and then the other may go."""
    job = start(placed, CALLS, on=railed, **rails(railed, placed))
    assert ["ready"] * len(placed) == job.hear_all()
    ask(job)
    railed.cut(1, 1)
    worst = [ask(job)[0] for _ in range(2)]
    railed.mend(1, 1)
    until = time.monotonic() + 60
    while (asked := ask(job))[1]:
        assert time.monotonic() < until, "the rail is not used again"
        worst.append(asked[0])
        time.sleep(0.2)
    worst += [ask(job)[0] for _ in range(3)]
    railed.cut(0, 2)
    worst += [ask(job)[0] for _ in range(2)]
    job.ranks[0].stdin.write("stop\n")
    job.ranks[0].stdin.flush()
    said, errors = job.end(60)
    assert all("right" in one for one in said), errors
    assert max(worst) < soon(3.0), worst
    told = "".join(errors)
    assert "is left: nothing arrives" in told, told
    assert "works again" in told, told


SELDOM = """
import logging
logging.getLogger("stretto.hop").addHandler(logging.StreamHandler(sys.stdout))
comm = connect()
x = np.ones(1000, np.float32)
say("ready")
while comm.broadcast_object(time.monotonic() if rank == 0 else None):
    if rank == 0:
        time.sleep(0.02)
    comm.all_reduce(x)
"""


def test_a_rank_that_never_waits_mends_rails(railed, start):
    """It is late for every call, and the one that is to connect again."""
    job = start((0, 1), SELDOM, on=railed, **rails(railed, (0, 1)))
    assert ["ready"] * 2 == job.hear_all()
    for _ in range(2):
        railed.cut(1, 1)
        begun = time.monotonic()
        assert "is left" in job.hear(0)
        railed.mend(1, 1)
        assert "works again" in job.hear(0)
        assert time.monotonic() - begun < soon(20.0)


DEAD_END = """
import socket
from stretto.fabric.hop.tcp import options
mine, theirs = address.removeprefix("tcp://").split("/")
if rank == 0:
    listening = socket.create_server((mine, 29600))
    say("ready")
    there, _ = listening.accept()
else:
    there = socket.create_connection((theirs, 29600), timeout=20)
    say("ready")
there.sendall(b"1")
assert there.recv(1) == b"1"
say("met")
sys.stdin.readline()
if rank == 1:
    begun = time.monotonic()
    while not options.stalls(there) and time.monotonic() - begun < 10.0:
        time.sleep(0.02)
        if time.monotonic() - begun < 0.1:
            there.sendall(b"2")
    say(options.stalls(there), round(time.monotonic() - begun, 2))
"""


@pytest.mark.parametrize("end", [0, 1], ids=["theirs", "ours"])
def test_a_dead_end_is_seen_from_both_sides(railed, start, end):
    """Where a host's own end is down, nothing is sent that could be sent again."""
    one, other = railed.rail(0, 1), railed.rail(1, 1)
    own = {"rank0": {"WAY": f"{one}/{other}"}, "rank1": {"WAY": f"{other}/{one}"}}
    code = "address = os.environ['WAY']" + DEAD_END
    job = start((0, 1), code, on=railed, **own)
    assert "ready" == job.hear(0)
    assert "ready" == job.hear(1)
    assert ["met"] * 2 == job.hear_all()
    railed.cut(end, 1)
    job.ranks[1].stdin.write("go\n")
    job.ranks[1].stdin.flush()
    said, seconds = job.hear(1).split()[:2]
    assert said == "True"
    assert float(seconds) < soon(3.0)
    job.ranks[0].stdin.write("end\n")
    job.ranks[0].stdin.flush()


LOST = """
import logging
logging.getLogger("stretto.hop").addHandler(logging.StreamHandler())
comm = connect()
comm.all_reduce(np.ones(100_000, np.float32))
say("ready")
try:
    while True:
        comm.all_reduce(np.ones(100_000, np.float32))
except StrettoError as e:
    say(type(e).__name__, e)
"""


def test_all_rails_down_is_named(railed, start):
    """Within seconds, with the peer and by how many rails it was tried."""
    job = start((0, 1), LOST, on=railed, **rails(railed, (0, 1)))
    assert ["ready"] * 2 == job.hear_all()
    begun = time.monotonic()
    railed.cut(1, 1)
    railed.cut(1, 2)
    said = job.hear_all()
    assert time.monotonic() - begun < 12, said
    assert any("by none of 2 rails" in one for one in said), said
    assert any("rank 0" in one or "rank 1" in one for one in said)
    _, errors = job.end(60)
    assert "works again" not in "".join(errors), errors


ENGINES = """
from stretto.transfer import Engine
host, other = address.removeprefix("tcp://").split("/")
mine = os.environ["STRETTO_INTERFACE"].split(",")
size = 6_000_000
engine = Engine(f"engine{rank}", listen=f"{host}:29600", rails=mine)
box = np.zeros(size, np.uint8)
engine.share(box, "box")
say("ready")
sys.stdin.readline()
if rank == 0:
    there = engine.connect(f"{other}:29600").wait(20).region("box").wait(20)
    rng, worst, turns = np.random.default_rng(1), 0.0, 0
    say("met")
    until = time.monotonic() + 5.0
    while time.monotonic() < until:
        data, back = rng.integers(0, 256, size, np.uint8), np.empty(size, np.uint8)
        begun = time.monotonic()
        there.put(data).wait(20)
        there.get(back).wait(20)
        worst = max(worst, time.monotonic() - begun)
        assert np.array_equal(back, data), turns
        turns += 1
    say(turns, round(worst, 2))
sys.stdin.readline()
engine.close()
"""


def test_transfers_go_on_when_a_rail_goes_down(railed, start):
    """Lanes of a rail that is down go by the other one."""
    one, other = railed.addresses
    own = rails(railed, (0, 1))
    for rank, words in enumerate((f"tcp://{one}/{other}", f"tcp://{other}/{one}")):
        own[f"rank{rank}"]["RAILS_TEST"] = words
    code = "address = os.environ['RAILS_TEST']" + ENGINES
    job = start((0, 1), code, on=railed, **own)

    def go(rank):
        job.ranks[rank].stdin.write("go\n")
        job.ranks[rank].stdin.flush()

    assert ["ready"] * 2 == job.hear_all()
    go(0)
    assert job.hear(0) == "met"
    time.sleep(0.5)
    railed.cut(1, 1)
    turns, worst = job.hear(0).split()
    assert int(turns) > 3
    assert float(worst) < 3.5, worst
    go(0)
    go(1)
    go(1)
    _, errors = job.end(60)
    assert "is left: nothing arrives" in "".join(errors), errors
