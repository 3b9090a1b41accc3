"""Ranks started by us: their results, their failures, and their ends."""

import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from tests.soon import soon
from tests.waiting import until

from stretto.errors import CallError, CollectiveTimeout, PeerLost, RankFailed
from stretto.fabric.meeting.launching import launch as launching
from stretto.fabric.meeting.launching.launch import launch

pytestmark = [pytest.mark.host, pytest.mark.timeout(90)]


def run(function, *arguments, num_ranks, deadline_s=5.0):
    """Start ranks and return their results."""
    return launch(function, arguments, num_ranks=num_ranks, deadline_s=deadline_s)


def until_broken(meeting):
    """Wait for the fault; return its time, error class and text."""
    until(lambda: meeting.world.broken[0])
    error = meeting.world.fault.to_error()
    return time.monotonic(), type(error).__name__, error.blamed, str(error)


def shout(meeting, text):
    parts = meeting.world.exchange({"text": text * (meeting.rank + 1)})
    return [said["text"] for said, _ in parts], os.getpid()


@pytest.mark.fresh
def test_ranks_are_fresh_processes_that_meet():
    """Each returns its own result, in rank order."""
    results = run(shout, "a", num_ranks=3)

    assert [["a", "aa", "aaa"]] * 3 == [texts for texts, _ in results]
    assert 3 == len({pid for _, pid in results} - {os.getpid()})


def big(meeting):
    return np.full(1 << 20, meeting.rank, np.float64)


def test_large_results_come_back():
    """Far more than a pipe holds at once."""
    for rank, result in enumerate(run(big, num_ranks=2)):
        assert (1 << 20) * rank == result.sum()


def pass_memory(meeting):
    """Give everybody a piece of memory; read everybody's."""
    fd = os.memfd_create("stretto-test")
    os.write(fd, bytes([65 + meeting.rank]) * 4)
    parts = meeting.world.exchange({}, (fd, fd))
    os.close(fd)
    read = [os.pread(theirs[1], 4, 0) for _, theirs in parts]
    for _, theirs in parts:
        for number in theirs:
            os.close(number)
    return read


def test_file_descriptors_reach_everybody():
    """Memory is shared without a name that could be left behind."""
    assert [[b"AAAA", b"BBBB", b"CCCC"]] * 3 == run(pass_memory, num_ranks=3)


def fail_on(meeting, bad):
    if meeting.rank == bad:
        raise ValueError(f"no luck on {meeting.rank}")
    until_broken(meeting)
    meeting.world.check()


def threads(meeting):
    return os.environ["OMP_NUM_THREADS"], os.environ["LOCAL_RANK"]


@pytest.mark.fresh
@pytest.mark.parametrize("given", ["", "7"])
@pytest.mark.parametrize("of_a_core", [1, 2])
def test_ranks_share_the_cores_unless_they_are_told_otherwise(
    monkeypatch, of_a_core, given
):
    """Also where there are more ranks than cores: threads of each wait in a loop."""
    monkeypatch.delenv("OMP_NUM_THREADS")
    if given:
        monkeypatch.setenv("OMP_NUM_THREADS", given)
    cores = min(4, len(os.sched_getaffinity(0)))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    for num_ranks in {1, cores, of_a_core * cores}:
        share = given or str(max(1, cores // num_ranks))
        found = run(threads, num_ranks=num_ranks)
        assert [(share, str(rank)) for rank in range(num_ranks)] == found


@pytest.mark.parametrize("bad", [0, pytest.param(2, marks=pytest.mark.fresh)])
def test_a_rank_that_raises_is_named_with_its_traceback(bad):
    """Not those whose failure followed from it."""
    with pytest.raises(RankFailed) as e:
        run(fail_on, bad, num_ranks=3)

    assert bad == e.value.rank
    first, *rest = str(e.value).splitlines()
    assert first.startswith(f"rank {bad} of 3 (pid ")
    assert first.endswith(f"raised ValueError: no luck on {bad}")
    assert any("in fail_on" in line for line in rest)


def die(meeting, bad, how):
    """Kill one rank at a time that the others can compare with."""
    meeting.world.exchange({})
    if meeting.rank == bad:
        meeting.world.exchange({"now": 0}, tag="never") if how == "wait" else None
        os.kill(os.getpid(), signal.SIGKILL)
    begin = time.monotonic()
    when, *rest = until_broken(meeting)
    return when - begin, rest


@pytest.mark.parametrize("bad", [0, 2])
def test_a_killed_rank_is_named_to_all_others_at_once(bad):
    """Also when it was rank 0, since the parent hosts."""
    with pytest.raises(RankFailed, match=rf"rank {bad} of 4 .* killed by SIGKILL") as e:
        run(die, bad, "", num_ranks=4)

    assert {0, 1, 2, 3} - {bad} == set(e.value.results)
    for took_s, (kind, blamed, text) in e.value.results.values():
        assert ("PeerLost", (bad,)) == (kind, blamed)
        assert text.startswith(f"rank {bad} was killed by SIGKILL")
        assert took_s < soon(1.0)


def crash():
    ctypes.string_at(0)


def leave_suddenly():
    os._exit(3)


def end_by(meeting, how):
    if meeting.rank == 1:
        how()
    until_broken(meeting)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        pytest.param(crash, "was killed by SIGSEGV", marks=pytest.mark.fresh),
        (leave_suddenly, "exited with status 3"),
    ],
)
def test_an_end_without_a_word_is_named(how, said):
    """A segmentation fault has no traceback, but a signal; an exit has a status."""
    with pytest.raises(RankFailed, match=f"rank 1 of 2 .* {said}"):
        run(end_by, how, num_ranks=2)


def stray(meeting):
    if meeting.rank == 1:
        try:
            return meeting.world.exchange({}, tag="other")
        except Exception as e:
            return str(e)
    try:
        return meeting.world.exchange({}, tag="one")
    except Exception as e:
        return str(e)


def test_different_exchanges_are_a_mismatch_on_both_sides():
    """Both raise the same words."""
    one, two = run(stray, num_ranks=2)

    assert one == two
    assert "other of world" in one
    assert "one of world" in one


def absent(meeting):
    if meeting.rank == 1:
        until(lambda: meeting.world.broken[0])  # the others have given up
        begin = time.monotonic()
        try:
            meeting.world.exchange({}, tag="late")
        except CollectiveTimeout as e:
            return time.monotonic() - begin, str(e)
    try:
        meeting.world.exchange({}, tag="early")
    except CollectiveTimeout as e:
        return 0.0, str(e)


def test_a_rank_that_stays_away_is_named_and_told_when_it_comes():
    """It raises at once, without waiting again."""
    results = run(absent, num_ranks=3, deadline_s=0.5)

    for took_s, text in results:
        assert text.startswith("rank 1 did not come in time to early of world")
        assert took_s < soon(0.1)


def go_home_early(meeting):
    if meeting.rank == 1:
        return None
    with pytest.raises(PeerLost) as e:
        meeting.world.exchange({}, tag="lonely")
    return str(e.value)


def test_waiting_for_a_rank_that_returned_ends_at_once():
    """It closed in order, and still the others need not wait for the deadline."""
    zero, one = run(go_home_early, num_ranks=2, deadline_s=200)

    assert one is None
    assert "rank 1 closed its communicator and will not come to lonely" in zero


def split_up(meeting):
    half = meeting.world.split(meeting.rank % 2, key=-meeting.rank)
    one = [said["r"] for said, _ in half.exchange({"r": meeting.rank})]
    again = meeting.world.split(None if meeting.rank == 3 else 0)
    two = again and [said["r"] for said, _ in again.exchange({"r": meeting.rank})]
    half.close()
    return half.rank, one, two


def test_groups_split_by_color_and_key():
    """Each has its own numbers; who gives no color is in none."""
    results = run(split_up, num_ranks=4)

    assert [(1, [2, 0]), (1, [3, 1]), (0, [2, 0]), (0, [3, 1])] == [
        r[:2] for r in results
    ]
    assert [[0, 1, 2]] * 3 + [None] == [r[2] for r in results]


def stuck(meeting):
    if meeting.rank == 1:
        raise ValueError("only I")
    time.sleep(60)


def test_a_rank_that_hangs_does_not_outlive_a_failure(monkeypatch):
    """It has a short grace, then it is ended; the blame stays where it belongs."""
    monkeypatch.setattr(launching, "GRACE_S", soon(0.5))
    with pytest.raises(RankFailed, match=r"rank 1 of 2 .* raised ValueError: only I"):
        run(stuck, num_ranks=2)


def leave_a_child(meeting):
    return subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(60)"], close_fds=False
    ).pid


@pytest.mark.fresh
def test_a_process_that_a_rank_leaves_does_not_hold_us_up():
    """Even when it inherited everything: it still runs when we are done."""
    (left,) = run(leave_a_child, num_ranks=1)
    assert _exists(left)
    os.kill(left, signal.SIGKILL)


class Grumpy:
    """Something that refuses to travel."""

    def __reduce__(self):
        raise TypeError("I stay")


def give_grumpy(meeting):
    return Grumpy()


@pytest.mark.fresh
def test_a_result_that_cannot_travel_is_a_failure_of_that_rank():
    """The text says why."""
    with pytest.raises(RankFailed, match="returned a Grumpy that cannot be pickled"):
        run(give_grumpy, num_ranks=1)


def test_a_function_that_cannot_travel_is_refused_here():
    """Before anything is started."""
    with pytest.raises(CallError, match="Define the function at the top of a module"):
        run(lambda meeting: None, num_ranks=1)
    with pytest.raises(CallError, match="num_ranks=0: at least one"):
        run(big, num_ranks=0)


SCRIPT = """
from stretto.fabric.meeting.launching.launch import launch
NUMBER = 7
def work(meeting, x):
    return NUMBER * x + meeting.rank
{guard}print(launch(work, (6,), num_ranks=2, deadline_s=5))
"""


INSIDE = """
from stretto.fabric.meeting.launching.launch import launch
if __name__ == "__main__":
    def work(meeting):
        return 1
    launch(work, (), num_ranks=2, deadline_s=5)
"""


@pytest.mark.parametrize(
    ("text", "printed", "told"),
    [
        (SCRIPT.format(guard='if __name__ == "__main__": '), "[42, 43]\n", ""),
        (SCRIPT.format(guard=""), "", 'put the call under if __name__ == "__main__":'),
        (INSIDE, "", "not what stands under `if __name__ == '__main__':`"),
    ],
    ids=["guarded", "without its guard", "all under the guard"],
)
def test_functions_of_a_script_work_or_are_told_where_to_stand(
    environment, tmp_path, text, printed, told
):
    """`__main__` is read anew by each rank, without what the guard guards."""
    script = tmp_path / "script.py"
    script.write_text(text)
    done = subprocess.run(
        [sys.executable, script], env=environment, capture_output=True, text=True
    )

    assert (bool(told), printed) == (bool(done.returncode), done.stdout)
    assert told in done.stderr
    assert bool(told) == bool(done.stderr)


PARENT = """
import os, sys, time
from stretto.fabric.meeting.launching.launch import launch
def work(meeting):
    meeting.world.exchange({})
    os.write(1, b"%d\\n" % os.getpid())  # whole lines, whoever else writes
    time.sleep(60)
if __name__ == "__main__":
    launch(work, (), num_ranks=3, deadline_s=5)
"""


def test_ranks_do_not_outlive_their_parent(environment, tmp_path):
    """However it ends, also by kill -9."""
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    parent = subprocess.Popen(
        [sys.executable, script], env=environment, stdout=subprocess.PIPE, text=True
    )
    pids = [int(parent.stdout.readline()) for _ in range(3)]
    parent.kill()
    parent.communicate()

    until(lambda: not any(map(_exists, pids)), soon(10))


def _exists(pid):
    return Path(f"/proc/{pid}").exists()
