"""Meeting again: after an attempt that failed, after a death, and often."""

import os
import signal
import time
from pathlib import Path

import pytest
from tests.host.meeting.test_join import TRY, free_port, met, secret_file, wait_socket
from tests.soon import soon

pytestmark = [pytest.mark.host, pytest.mark.timeout(60)]
AGAIN = """
def again(tries, rank, size, deadline_s, name='job'):
    for nth in range(tries):
        try:
            m = meet(rank, size, name, deadline_s)
        except StrettoError as e:
            say("not", type(e).__name__)
        else:
            say("met", m.generation > 0)
            return m
"""


def test_a_rank_that_came_before_rank_0_meets_it_in_a_later_try(start):
    """How often somebody has tried makes no difference."""
    one = start(AGAIN + f"again(20, 1, 2, {soon(0.2)})\nsys.stdin.readline()\n")
    assert "not CollectiveTimeout" == one.hear()
    assert "not CollectiveTimeout" == one.hear()
    zero = start(AGAIN + f"again(1, 0, 2, {soon(5)})\nsys.stdin.readline()\n")

    assert "met True" == zero.hear()
    heard = one.hear()
    while heard == "not CollectiveTimeout":
        heard = one.hear()
    assert "met True" == heard


def test_ranks_that_all_try_again_at_once_meet_when_the_last_comes(start):
    """Nobody hears an old verdict twice, and none wakes another's too late."""
    early = [
        start(AGAIN + f"again(50, {r}, 3, 0.3)\nsys.stdin.readline()\n") for r in (0, 1)
    ]
    assert ["not CollectiveTimeout"] * 2 == [rank.hear() for rank in early]
    late = start(AGAIN + "again(50, 2, 3, 5)\nsys.stdin.readline()\n")
    for rank in (late, *early):
        heard = rank.hear()
        while heard.startswith("not"):
            heard = rank.hear()

        assert "met True" == heard


REJOIN = """
until_broken(m)
m.close()
begin = time.monotonic()
n = meet(m.rank, m.num_ranks, 'job', 5)
say('again', n.rank, n.generation > m.generation)
n.world.exchange({'say': 1})
say('talked')
sys.stdin.readline()
"""


@pytest.mark.parametrize("bad", [0, 1])
def test_a_restarted_rank_meets_the_survivor_that_connects_anew(start, bad):
    """Rank 0 too, in whose process the first hub was."""
    ranks = met(start, 2, REJOIN)
    ranks[bad].kill()
    assert ranks[1 - bad].hear().startswith("broken")
    code = "n = meet({}, 2, 'job', 5)\nn.world.exchange({{'say': 1}})\nsay('here')\n"
    fresh = start(code.format(bad) + "sys.stdin.readline()\n")

    assert f"again {1 - bad} True" == ranks[1 - bad].hear()
    assert ["talked", "here"] == [ranks[1 - bad].hear(), fresh.hear()]


def test_two_meetings_over_one_tcp_address(start, tmp_path):
    """With a secret; the door is free again once all have come."""
    where = f"tcp://127.0.0.1:{free_port()}"
    env = {"STRETTO_SECRET_FILE": secret_file(tmp_path)}
    code = "r = int(os.environ['R'])\nfor _ in '12': say(meet(r, 2, {!r}).rank)\n"
    ranks = [start(code.format(where), R=str(r), **env) for r in (1, 0)]

    assert ["1", "0", "1", "0"] == [rank.hear() for _ in "12" for rank in ranks]


def test_a_refused_rank_is_not_said_to_have_stayed_away(start, environment):
    """What the others hear says that it came, and why it was not let in."""
    zero = start(TRY.format(call=f"meet(0, 2, 'job', {soon(1.0)})"))
    wait_socket(environment["XDG_RUNTIME_DIR"])
    other = "import stretto.fabric.meeting.greet as g\ng.__version__ = '99'\n"
    one = start(other + TRY.format(call="meet(1, 2, 'job', 5)")).hear()

    assert "runs stretto 99, the others" in one
    assert "rank 1 was not let in: rank 1 (pid" in zero.hear()


def test_a_rank_with_another_secret_is_not_said_to_have_stayed_away(start, tmp_path):
    """Nobody can tell which rank it was."""
    where = f"tcp://127.0.0.1:{free_port()}"
    right = {"STRETTO_SECRET_FILE": secret_file(tmp_path)}
    wrong = {"STRETTO_SECRET_FILE": secret_file(tmp_path, "x" * 40)}
    call = TRY.format(call=f"meet(int(os.environ['R']), 2, {where!r}, 2)")
    zero, one = start(call, R="0", **right), start(call, R="1", **wrong)

    assert "it has another secret; give all of a job the same one" in one.hear()
    said = zero.hear()
    assert "somebody at 127.0.0.1 was not let in: it has another secret" in said


@pytest.mark.parametrize("turn", range(3))
def test_all_hear_who_never_came_although_rank_0_goes_at_once(start, turn):
    """Rank 0 tells everybody before it may go."""
    wait = soon(0.6)  # for five to come
    call = TRY.format(call=f"meet(int(os.environ['R']), 6, 'job', {wait})")
    ranks = [start(call, R=str(r)) for r in range(5)]
    for rank in ranks:
        assert f"rank 5 of 6 did not come within {wait:g} s" in rank.hear()


def test_the_shortest_deadline_is_everybodys(start):
    """Who gives up names the absent, and all hear it."""
    zero = start(TRY.format(call="meet(0, 3, 'job', 20)"))
    wait = soon(0.7)  # for two to come
    one = start(TRY.format(call=f"meet(1, 3, 'job', {wait})"))
    said = f"rank 2 of 3 did not come within {wait:g} s (ranks 0, 1 did)"
    for rank in (zero, one):
        assert said in rank.hear()


def test_a_rank_that_is_interrupted_while_it_waits_says_so(start, tmp_path):
    """The others need not wait until the deadline."""
    zero = start(TRY.format(call="meet(0, 3, 'job', 20)"))
    wait_socket(tmp_path)
    one = start("say('here')\nmeet(1, 3, 'job', 20)")
    assert "here" == one.hear()
    time.sleep(soon(0.3))
    one.kill(signal.SIGINT)
    said = zero.hear()

    assert "PeerLost" in said
    assert "rank 1 gave up before all had come: KeyboardInterrupt" in said


def test_a_child_that_ends_says_nothing_for_its_parent(start):
    """`sys.exit` in it runs its parent's hooks."""
    then = (
        "\nif m.rank == 1:\n"
        "    if os.fork() == 0: sys.exit(0)\n"
        "    os.wait()\n"
        "m.world.exchange({'a': 1})\nsay('talked', m.world.fault)\n"
        "sys.stdin.readline()\n"
    )
    ranks = met(start, 2, then)

    assert ["talked None"] * 2 == [rank.hear() for rank in ranks]


def test_a_child_that_outlives_rank_0_is_nobody(start):
    """Its death is noticed, and the name is free."""
    forking = (
        "\nif m.rank == 0:\n"
        "    if child := os.fork(): say(child)\n"
        "    else: time.sleep(20); os._exit(0)\n"
    )
    ranks = met(start, 2, forking + "until_broken(m)\nm.close()\nmeet(1,2,'job')\n")
    child = int(ranks[0].hear())
    begin = time.monotonic()
    ranks[0].kill()
    said = ranks[1].hear().split(" ", 3)

    assert "rank 0 died" in said[3]
    assert float(said[1]) - begin < soon(1.0)
    assert "met 0" == start("m = meet(0, 2, 'job')\nsay('met', m.rank)\n").hear()
    os.kill(child, signal.SIGKILL)  # so nobody waits for what it might print


def test_a_child_that_outlives_a_waiting_rank_0_frees_the_name(start, tmp_path):
    """Its socket is closed in the child, too."""
    code = (
        "import threading\n"
        "def fork():\n"
        "    time.sleep(0.5)\n"
        "    if child := os.fork(): say(child)\n"
        "    else: time.sleep(20); os._exit(0)\n"
        "threading.Thread(target=fork, daemon=True).start()\n"
        "meet(0, 2, 'job')\n"
    )
    first = start(code)
    child = int(first.hear())
    first.kill()
    first.process.wait()
    begin = time.monotonic()
    ranks = [start(f"say(meet({r}, 2, 'job').rank)") for r in (0, 1)]

    assert ["0", "1"] == [rank.hear() for rank in ranks]
    assert time.monotonic() - begin < soon(4.0)
    os.kill(child, signal.SIGKILL)  # so nobody waits for what it might print


CYCLES = """
import gc, resource, threading, numpy as np, stretto
rank = int(os.environ['R'])
def used():
    gc.collect()
    with open('/proc/self/maps') as maps:
        lines = sum(1 for _ in maps)
    fds = len(os.listdir('/proc/self/fd'))
    return fds, threading.active_count(), lines, atexit_hooks()
def atexit_hooks():
    import atexit
    return atexit._ncallbacks()
def cycle():
    comm = stretto.connect(rank, 3, 'job', deadline_s=30)
    x = np.ones(4, np.float32)
    comm.all_reduce(x)
    assert x[0] == 3
    comm.close()
for _ in range(3):
    cycle()
time.sleep(0.3)
before = used()
for _ in range(int(os.environ['CYCLES'])):
    cycle()
time.sleep(0.3)
after = used()
say(*(b - a for a, b in zip(before, after)))
"""


FAILING = CYCLES.replace("def cycle():", "def unused():").replace(
    "for _ in range(3):",
    "def cycle():\n"
    "    try: meet(rank, 3, 'job', 0.02)\n"
    "    except StrettoError: pass\n"
    "for _ in range(3):",
    1,
)


@pytest.mark.parametrize(("code", "num_ranks"), [(CYCLES, 3), (FAILING, 2)])
def test_connect_and_close_leak_nothing(start, tmp_path, code, num_ranks):
    """Descriptors, threads, maps, hooks at exit, files; nor where nobody else came."""
    for rank in [start(code, R=str(r), CYCLES="24") for r in range(num_ranks)]:
        fds, threads, maps, hooks = map(int, rank.hear().split())

        assert (0, 0, 0) == (fds, threads, hooks)
        assert maps < 8  # the allocator's own
    assert len(list(Path(tmp_path).glob("stretto/*"))) <= 1


FEW = """
import resource
held = [os.open('/dev/null', 0) for _ in range(20)]
soft = len(os.listdir('/proc/self/fd')) + int(os.environ['LEFT'])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, soft))
try:
    m = meet(0, 2, 'job', 0.3)
    say('met')
except StrettoError as e:
    say(type(e).__name__, e)
"""


@pytest.mark.parametrize("left", [0, 1, 2, 3, 5, 7])
def test_too_few_descriptors_are_named(start, left):
    """Whatever was being opened; and never as if it were another rank's fault."""
    said = start(FEW, LEFT=str(left)).hear()

    if not said.startswith("CollectiveTimeout rank 1 of 2 did not come"):
        assert "ulimit -n" in said or "Too many open files" in said
