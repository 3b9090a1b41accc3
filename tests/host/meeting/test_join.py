"""Ranks that a launcher started: how they meet, and what they hear when it fails."""

import os
import signal
import socket
import time
from pathlib import Path

import pytest
from tests.soon import soon
from tests.waiting import until

from stretto.fabric.wire import HEADER, MAGIC

pytestmark = [pytest.mark.host, pytest.mark.timeout(20)]
MEET = "m = meet({rank}, {size}, 'job', {deadline})\nsay('met', m.rank)\n"
TRY = """
begin = time.monotonic()
try:
    {call}
    say("came in")
except StrettoError as e:
    say(type(e).__name__, round(time.monotonic() - begin, 2), e)
"""


def met(start, size, then, deadline=5.0):
    """Start ranks that all meet."""
    ranks = []
    for rank in range(size):
        code = MEET.format(rank=rank, size=size, deadline=deadline)
        ranks.append(start(code + then))
    assert [f"met {r}" for r in range(size)] == [rank.hear() for rank in ranks]
    return ranks


def wait_socket(tmp_path):
    """Return the path of the meeting's socket once it is there."""
    until(lambda: list(Path(tmp_path).glob("stretto/*.sock")))
    return str(next(Path(tmp_path).glob("stretto/*.sock")))


def connect(path):
    """Return a connection to the hub: its socket has a name before it listens."""
    sock = socket.socket(socket.AF_UNIX)

    def is_there():
        try:
            sock.connect(path)
        except ConnectionRefusedError:
            return False
        return True

    until(is_there)
    sock.settimeout(3)
    return sock


@pytest.mark.parametrize("bad", [0, 1])
def test_a_killed_rank_is_named_to_all_others(start, bad):
    """Rank 0 too, although it hosts the hub."""
    ranks = met(start, 3, "until_broken(m)\n")
    begin = time.monotonic()
    ranks[bad].kill()
    for rank in (r for r in range(3) if r != bad):
        _, when, kind, *text = ranks[rank].hear().split(" ", 3)

        assert "PeerLost" == kind
        assert text[0].startswith(f"({bad},) rank {bad} died")
        assert float(when) - begin < soon(1.0)


def test_two_ranks_killed_at_once_are_noticed(start):
    """The hub and another: one of them is named, and nobody hangs."""
    ranks = met(start, 3, "until_broken(m)\n")
    begin = time.monotonic()
    for rank in (0, 2):
        ranks[rank].kill()
    _, when, kind, _ = ranks[1].hear().split(" ", 3)

    assert "PeerLost" == kind
    assert float(when) - begin < soon(1.0)


def test_nothing_is_left_when_all_are_killed_at_once(start, tmp_path):
    """Not even a socket: it goes when all have come."""
    for rank in met(start, 3, "time.sleep(60)\n"):
        rank.kill()
    assert [] == list(Path(tmp_path).glob("stretto/*"))
    for rank in met(start, 2, "m.close()\n"):
        rank.end()

    assert [] == list(Path(tmp_path).glob("stretto/*"))


def test_an_exception_is_told_to_the_others(start):
    """What ended the process, in words."""
    raising = "\nif m.rank == 1: raise KeyError('lost')\nuntil_broken(m)\n"
    zero, one = met(start, 2, raising)

    assert "rank 1 ended with KeyError: 'lost'; this" in zero.hear()
    assert 1 == one.process.wait(5)


@pytest.mark.parametrize("first", [0, 1])
def test_an_orderly_end_is_no_fault(start, first):
    """Whoever ends first, also rank 0, which hosts: the other sees no fault."""
    then = (
        f"\nif m.rank == {first}:\n    m.world.close(); say('closed')\n"
        "else:\n    sys.stdin.readline(); time.sleep(0.2); say('fault', m.world.fault)"
        "\n    m.world.close()\n"
    )
    ranks = met(start, 2, then)
    assert "closed" == ranks[first].hear()
    other = ranks[1 - first]
    other.process.stdin.write("\n")
    other.process.stdin.flush()

    assert "fault None" == other.hear()
    assert [("", "")] * 2 == [rank.end() for rank in ranks]


def test_a_rank_that_never_comes_is_named_at_the_deadline(start):
    """On every rank that did come; the late comer hears it at once."""
    wait = soon(0.5)  # for two to come
    call = TRY.format(call=f"meet(int(os.environ['R']), 3, 'job', {wait})")
    ranks = [start(call + "time.sleep(3)", R=str(r)) for r in (0, 1)]
    for rank in ranks:
        kind, took_s, text = rank.hear().split(" ", 2)

        assert "CollectiveTimeout" == kind
        assert f"rank 2 of 3 did not come within {wait:g} s (ranks 0, 1 did)" in text
        assert float(took_s) < 3 * wait
    kind, took_s, text = start(call, R="2").hear().split(" ", 2)
    assert "CollectiveTimeout" == kind
    assert "rank 2 (pid" in text
    assert "comes too late: rank 2 of 3 did not come" in text
    assert float(took_s) < soon(0.3)


def test_a_rank_0_that_never_comes_is_named(start):
    """The socket that nobody serves is named too."""
    call = TRY.format(call="meet(1, 2, 'job', 0.3)")
    kind, took_s, text = start(call).hear().split(" ", 2)

    assert "CollectiveTimeout" == kind
    assert 0.3 <= float(took_s) < soon(0.6)
    assert "rank 0 of 2 did not come within 0.3 s: nobody serves" in text


def test_a_late_comer_learns_at_once_that_its_host_has_died(start, environment):
    """Its launcher is older than the socket, so the socket was its own job's."""
    call = TRY.format(call="meet(None, None, None, 4)")
    env = {"WORLD_SIZE": "3", "MASTER_PORT": "1", "TORCHELASTIC_RUN_ID": "x"}
    zero = start(call + "time.sleep(9)", RANK="0", **env)
    wait_socket(environment["XDG_RUNTIME_DIR"])
    zero.kill()
    kind, took_s, text = start(call, RANK="1", **env).hear().split(" ", 2)

    assert "PeerLost" == kind
    assert "rank 0 was here and has ended" in text
    assert float(took_s) < soon(1.0)


GARBAGE = [
    b"GET / HTTP/1.1\r\n\r\n",
    b"\x80\x04\x95pickle",
    HEADER.pack(MAGIC, 1 << 31, 0),
    HEADER.pack(MAGIC, 5000, 0) + b"x" * 5000,
    HEADER.pack(MAGIC, 3, 0) + b"{}}",
    HEADER.pack(MAGIC, 2, 9) + b"{}",
    HEADER.pack(MAGIC, 15, 0) + b'{"say":"Hello"}',
    HEADER.pack(MAGIC, 28, 0) + b'{"say":"Leave","failure":""}',
]


def test_garbage_on_the_socket_ends_only_its_own_connection(start, tmp_path):
    """The hub hangs up on it and the ranks meet as if nothing had been."""
    zero = start(MEET.format(rank=0, size=2, deadline=10))
    path = wait_socket(tmp_path)
    for garbage in GARBAGE:
        with connect(path) as sock:
            sock.sendall(garbage)

            assert b"" == sock.recv(100)
    one = start(MEET.format(rank=1, size=2, deadline=10))
    assert ["met 0", "met 1"] == [zero.hear(), one.hear()]


def test_a_flood_of_silent_strangers_changes_nothing(start, tmp_path):
    """Those beyond the limit are sent away, the ranks are let in."""
    zero = start(MEET.format(rank=0, size=2, deadline=5))
    path = wait_socket(tmp_path)
    crowd = [connect(path) for _ in range(100)]
    one = start(MEET.format(rank=1, size=2, deadline=5))

    assert ["met 0", "met 1"] == [zero.hear(), one.hear()]
    for sock in crowd:
        sock.close()


def test_the_socket_and_its_folder_are_private(start, tmp_path):
    """0600 in 0700."""
    start(MEET.format(rank=0, size=2, deadline=5))
    path = Path(wait_socket(tmp_path))

    assert 0o600 == path.stat().st_mode & 0o777
    assert 0o700 == path.parent.stat().st_mode & 0o777


LAUNCHER = """
import signal, subprocess
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # whoever runs the tests may ignore it
for r in '01':
    subprocess.Popen(
        [sys.executable, '-c', os.environ['CODE'], r],
        env={**os.environ, 'ORDER': r, os.environ['RANK_IS']: r},
        start_new_session='DETACHED' in os.environ,
    )
time.sleep(60)
"""
LAUNCHED = """
from stretto.fabric.meeting.join import join
from stretto.fabric.meeting.environment import find_place
import os, sys, time
m = join(find_place({place}))
os.write(1, b'%d\\n' % os.getpid())
time.sleep(60)
"""


@pytest.mark.parametrize("place", ["", "int(sys.argv[1]), 2, 'job'"])
def test_ranks_that_outlive_their_launcher_end_themselves(start, place):
    """torchrun, mpirun and srun are watched; of explicit ranks the parent."""
    launcher = start(
        LAUNCHER,
        CODE=LAUNCHED.format(place=place),
        RANK_IS="ORDER" if place else "RANK",
        WORLD_SIZE="2",
        MASTER_PORT="2",
    )
    pids = [int(launcher.hear()) for _ in range(2)]
    launcher.kill()

    until(lambda: not any(map(_lives, pids)), soon(10))


def test_detached_ranks_stay_when_their_parent_has_ended(start):
    """In a session of their own, as `setsid` makes it, they are nobody's."""
    launcher = start(
        LAUNCHER,
        CODE=LAUNCHED.format(place="int(sys.argv[1]), 2, 'job'"),
        RANK_IS="ORDER",
        DETACHED="yes",
    )
    pids = [int(launcher.hear()) for _ in range(2)]
    try:
        launcher.kill()
        time.sleep(0.3)

        assert [True, True] == list(map(_lives, pids))
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)


def _lives(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def free_port():
    """Return a TCP port that nobody serves."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return sock.getsockname()[1]


def secret_file(tmp_path, text="a secret of sixteen bytes"):
    """Return a file with a secret."""
    file = tmp_path / f"secret-{len(text)}"
    file.write_text(text)
    file.chmod(0o600)
    return str(file)


def test_tcp_without_a_secret_is_refused(start):
    """On both sides, at once."""
    for rank in (0, 1):
        call = f"meet({rank}, 2, 'tcp://127.0.0.1:{free_port()}')"
        kind, took_s, text = start(TRY.format(call=call)).hear().split(" ", 2)

        assert "RendezvousError" == kind
        assert float(took_s) < soon(0.5), "long before its deadline"
        assert "STRETTO_SECRET_FILE" in text


def test_a_second_job_of_the_same_name_is_refused(start, tmp_path):
    """Its rank 0 hears why."""
    start(MEET.format(rank=0, size=2, deadline=5))
    wait_socket(tmp_path)
    line = start(TRY.format(call="meet(0, 2, 'job', 1)")).hear()

    assert line.startswith("RendezvousError")
    assert "another job already meets at" in line


def test_a_process_may_meet_twice(start):
    """Two meetings of one job do not mix."""
    for rank in met(start, 2, "n = meet(m.rank, 2, 'job')\nsay('again', n.rank)\n"):
        assert rank.hear().startswith("again")


def test_an_idle_rank_uses_no_processor(start):
    """The watcher sleeps until something stirs."""
    then = (
        "\nimport resource\ntime.sleep(0.2)\na = resource.getrusage(0)\n"
        "time.sleep(1)\nb = resource.getrusage(0)\n"
        "say(b.ru_utime + b.ru_stime - a.ru_utime - a.ru_stime)\n"
    )
    for rank in met(start, 2, then):
        assert float(rank.hear()) < 0.01
