"""Ranks on two hosts: they meet, call, send, and hear of every fault."""

import re
import time

import pytest

pytestmark = [pytest.mark.host, pytest.mark.timeout(240)]

EVERY_VERB = """
comm = connect()
n, r = comm.num_ranks, comm.rank
x = np.arange(6 * n, dtype=np.float32) + r
whole = np.arange(6 * n, dtype=np.float32) * n + n * (n - 1) / 2
assert np.array_equal(comm.all_reduce(x.copy()), whole)
assert np.array_equal(comm.reduce_scatter(x.copy()), whole[6 * r : 6 * r + 6])
mine = np.full(5, r, np.float32)
everyone = np.repeat(np.arange(n, dtype=np.float32), 5)
assert np.array_equal(comm.all_gather(mine).ravel(), everyone)
assert np.array_equal(comm.all_to_all(x.copy()).ravel()[:6], np.arange(6) + 6 * r)
for root in (0, n - 1):
    got = comm.broadcast(np.full(3, r + 1.0), root=root)
    assert np.array_equal(got, np.full(3, root + 1.0))
    got = comm.reduce(x.copy(), root=root)
    assert r != root or np.array_equal(got, whole)
    got = comm.gather(mine, root=root)
    assert r != root or np.array_equal(np.asarray(got).ravel(), everyone)
    whole_x = np.arange(4.0 * n) if r == root else None
    assert np.array_equal(comm.scatter(whole_x, root=root, out=np.empty(4)),
                          np.arange(4.0) + 4 * r)
counts = [3 * q + 1 for q in range(n)]
part = np.full(counts[r], r, np.float32)
parts = np.concatenate([np.full(c, q, np.float32) for q, c in enumerate(counts)])
assert np.array_equal(comm.all_gather_v(part, counts), parts)
got = comm.gather_v(part, counts, root=n - 1)
assert r != n - 1 or np.array_equal(got, parts)
got = comm.scatter_v(parts if r == 1 else None, counts, root=1,
                     out=np.empty(counts[r], np.float32))
assert np.array_equal(got, part)
assert np.array_equal(comm.reduce_scatter_v(parts, counts), part * n)
matrix = [[q + 2 * t + 1 for t in range(n)] for q in range(n)]
sent = np.concatenate([np.full(matrix[r][t], 10.0 * r + t) for t in range(n)])
due = np.concatenate([np.full(matrix[q][r], 10.0 * q + r) for q in range(n)])
assert np.array_equal(comm.all_to_all_v(sent, matrix), due)
moved = comm.permute(mine, [(q, (q + 1) % n) for q in range(n)])
assert np.array_equal(moved, np.full(5, (r - 1) % n))
values = [{"rank": q, "text": "x" * (50 * q)} for q in range(n)]
assert comm.all_gather_object(values[r]) == values
assert comm.broadcast_object(values[r], root=n - 1) == values[n - 1]
assert comm.gather_object(values[r], root=1) == (values if r == 1 else None)
assert comm.scatter_object(values if r == 0 else None) == values[r]
comm.barrier()
big = np.ones(3_000_000, np.float32) * (r + 1)
assert (comm.all_reduce(big) == n * (n + 1) / 2).all()
started = comm.all_reduce_async(x.copy())
started.wait()
peer = (r + n // 2) % n if n % 2 == 0 else n - 1 - r
if peer != r:
    got = np.empty(70_000, np.float32)
    one = comm.send_async(np.full(70_000, r, np.float32), peer)
    comm.recv(got, peer)
    one.wait()
    assert (got == peer).all()
odd = comm.split(r % 2)
assert odd.all_reduce(np.ones(2))[0] == odd.num_ranks
assert len(odd.all_gather_object(r)) == odd.num_ranks
near = comm.split(comm.hosts[r])
assert not near.hosts and near.all_reduce(np.ones(2))[0] == near.num_ranks
near.close()
held = comm.empty(1000)
held[:] = r
assert (comm.all_reduce(held) == n * (n - 1) / 2).all()
say(comm.hosts, odd.hosts)
odd.close()
comm.close()
"""


@pytest.mark.parametrize(
    "placed", [(0, 0, 1, 1), pytest.param((0, 0, 0, 1), marks=pytest.mark.slow)]
)
def test_everything_works_over_two_hosts(start, placed):
    """Collectives, sub-groups, started calls, sends, registered memory."""
    job = start(placed, EVERY_VERB)
    out, err = job.end(200)

    assert [True] * 4 == [line.startswith(str(placed)) for line in out], err


SLURM = """
comm = stretto.connect()
say(comm.rank, comm.hosts, comm.all_reduce(np.ones(1))[0])
comm.close()
"""


def test_a_slurm_step_meets_at_its_first_host(start, hosts):
    """By srun's variables, set here in its place, and the file with a secret."""
    step = {
        "SLURM_JOB_ID": "31",
        "SLURM_STEP_ID": "0",
        "SLURM_NTASKS": "2",
        "SLURM_STEP_NUM_NODES": "2",
        "SLURM_STEP_NODELIST": ",".join(hosts.addresses),
        "SLURM_LOCALID": "0",
    }
    own = {f"rank{r}": {"SLURM_PROCID": str(r)} for r in (0, 1)}
    job = start((0, 1), SLURM, **step, **own)

    assert ["0 (0, 1) 2.0", "1 (0, 1) 2.0"] == job.hear_all()


COMPILES = """
from stretto.executors.cpu import sharing
comm = connect()
load = sharing.interpreter

def compile():
    time.sleep(3.5)  # as long as it takes
    return load()

if rank:
    sharing.interpreter, sharing.is_kept = compile, lambda: False
half = comm.split(0, deadline_s=1.5)
say(half.all_reduce(np.full(3, rank + 1.0))[0], half._group.deadline_s)
half.close()
comm.close()
"""


@pytest.mark.parametrize("placed", [(0, 0), (0, 1)], ids=["one host", "two hosts"])
def test_no_deadline_is_for_a_rank_that_compiles(start, placed):
    """The others wait, as long as it takes; and deadlines are what they were."""
    job = start(placed, COMPILES)

    assert ["3.0 1.5"] * 2 == job.hear_all()


CALLS_FOR_EVER = """
comm = connect()
x = np.ones(1000, np.float32)
comm.all_reduce(x)
say("ready")
try:
    while True:
        comm.all_reduce(x)
except StrettoError as e:
    say(time.monotonic(), type(e).__name__, e)
"""


def told(line):
    when, kind, text = line.split(" ", 2)
    return float(when), kind, text


def test_a_dead_process_is_named_on_every_host(start):
    """Wherever it died; the words are the same."""
    job = start((0, 0, 1, 1), CALLS_FOR_EVER)
    job.hear_all()
    killed = time.monotonic()
    job.ranks[3].kill()
    said = [told(job.hear(rank)) for rank in (0, 1, 2)]

    for when, kind, text in said:
        assert kind == "PeerLost"
        assert "rank 3" in text
        assert when - killed < 3


@pytest.mark.slow
def test_a_dead_process_that_relays_is_named_too(start):
    """The first rank of the second host hosts its relay."""
    job = start((0, 0, 1, 1), CALLS_FOR_EVER)
    job.hear_all()
    for rank in (2, 3):
        job.ranks[rank].kill()
    for rank in (0, 1):
        _, kind, text = told(job.hear(rank))
        assert kind == "PeerLost"
        assert re.search("rank [23]", text)


def test_a_lost_host_is_noticed_in_mid_call(start, hosts):
    """The wire is cut; those left hear of it within 2.5 s, and with a name."""
    job = start((0, 0, 1, 1), CALLS_FOR_EVER)
    job.hear_all()
    cut = time.monotonic()
    hosts.cut()
    here = [told(job.hear(rank)) for rank in (0, 1)]
    there = [told(job.hear(rank)) for rank in (2, 3)]

    for when, kind, text in here:
        assert kind == "PeerLost", text
        assert re.search(r"rank [23] on nodeb cannot be reached", text)
        assert when - cut < 5
    for _, kind, text in there:
        assert kind == "PeerLost", text
        assert re.search(r"rank [01] on nodea cannot be reached", text)


@pytest.mark.slow
def test_ranks_that_call_different_things_hear_what(start):
    """A mismatch is one across hosts, too."""
    code = """
comm = connect()
try:
    comm.all_reduce(np.ones(10 + 6 * (rank // 2), np.float32))
except StrettoError as e:
    say(type(e).__name__, e)
"""
    job = start((0, 0, 1, 1), code)

    for line in job.hear_all():
        assert line.startswith("CollectiveMismatch"), line
        assert re.search("all_reduce of 1[06] float32", line)


@pytest.mark.parametrize(
    ("variables", "told_"),
    [
        (
            {"STRETTO_INTERFACE": "wlan7"},
            r"STRETTO_INTERFACE=wlan7: nodeb has no such interface .*it has lo, v",
        ),
        ({"STRETTO_PORTS": "abc"}, "STRETTO_PORTS='abc'; want LOW-HIGH"),
    ],
)
def test_bad_settings_are_told_on_the_rank_that_has_them(start, variables, told_):
    """One sentence with the host; the others hear who gave up, and why."""
    code = """
try:
    connect(10.0)
except StrettoError as e:
    say(e)
"""
    job = start((0, 1), code, rank1=variables)
    zero, one = job.hear_all()

    assert re.search(told_, one)
    assert re.search(told_, zero)
