"""Plans written by hand, and what no algorithm happens to need."""

from __future__ import annotations

import os
import threading
import time

import numpy as np
import pytest

from stretto import executors
from stretto.compiler.lower import lower
from stretto.compiler.plan import Schedule, parse_plan
from stretto.compiler.verify import verify, verify_plan
from stretto.executors import Call
from stretto.executors.cpu.words import Common
from stretto.program import algorithms
from stretto.program.collectives import Operator

# Lane 0 of each rank waits at once for lane 1 of the other rank. Every lane tells every
# other that it has entered, and hears it, before it may go on to the next tile.
LANES = """plan all_reduce/lanes collective=all_reduce ranks=2 split=1
schedule push bulk staged tile_bytes=64
atoms 0:1 1:2
rank 0 input 0:2@0 output 0:2@0 stage 2
  lane 0
    signal r1.0 n=1 relaxed
    signal r1.1 n=1 relaxed
    signal r0.1 n=1 relaxed
    wait r1.1 n=1
    reduce output[0] <- input[0], stage[0] @0 finish
    wait r1.0 n=1
    wait r0.1 n=1
  lane 1
    signal r0.0 n=1 relaxed
    put r1.stage[0] <- input[0] @0
    signal r1.0 n=1
    put r1.stage[1] <- input[1] @1
    signal r1.1 n=1
    wait r1.1 n=1
    reduce output[1] <- input[1], stage[1] @1 finish
    wait r1.0 n=1
    wait r0.0 n=1
rank 1 input 0:2@0 output 0:2@0 stage 2
  lane 0
    signal r0.0 n=1 relaxed
    signal r0.1 n=1 relaxed
    signal r1.1 n=1 relaxed
    wait r0.1 n=1
    reduce output[0] <- stage[0], input[0] @0 finish
    wait r0.0 n=1
    wait r1.1 n=1
  lane 1
    signal r1.0 n=1 relaxed
    put r0.stage[0] <- input[0] @0
    signal r0.0 n=1
    put r0.stage[1] <- input[1] @1
    signal r0.1 n=1
    wait r0.1 n=1
    reduce output[1] <- stage[1], input[1] @1 finish
    wait r0.0 n=1
    wait r1.0 n=1
"""


def plan_of(name, num_ranks, words, **params):
    """Return a proved plan."""
    program = verify(algorithms.get(name).build(num_ranks, **params))
    return verify_plan(lower(program, Schedule.parse(words)))


def in_lanes(group):
    """Sum vectors of several lengths, many times, in one plan of two lanes."""
    session = executors.get("cpu").open_session(group)
    plan = verify_plan(parse_plan(LANES))
    for count in (0, 1, 8, 333, 4096):
        launch = session.prepare(plan, Call(dtype="int64", counts=(count,)))
        x, out = np.arange(count) * (group.rank + 1), np.zeros(count, np.int64)
        for _ in range(20):
            launch(x, out)
            if (out != 3 * np.arange(count)).any():
                return count
    return None


def test_lanes_of_a_rank_run_side_by_side(ranks):
    """A lane that waits does not keep the others from what it waits for."""
    assert [None, None] == ranks(2, in_lanes)


def beside_a_thread(group):
    """Return how long another thread stood still, in s, while a short call waited."""
    session = executors.get("cpu").open_session(group)
    plan = plan_of("all_reduce/one_shot", 2, "push packets staged")
    launch = session.prepare(plan, Call(dtype="int64", counts=(1,)))
    x, over, longest = np.ones(1, np.int64), threading.Event(), 0.0
    launch(x, x)

    def watch():
        nonlocal longest
        seen = time.monotonic()
        while not over.is_set():
            now = time.monotonic()
            longest, seen = max(longest, now - seen), now

    thread = threading.Thread(target=watch)
    if group.rank:
        time.sleep(1.0)
    else:
        thread.start()
    launch(x, x)
    over.set()
    if not group.rank:
        thread.join()
    return longest


def test_a_short_call_that_waits_gives_the_gil_back(ranks):
    """It keeps it for a microsecond, in case its peers are there."""
    assert max(ranks(2, beside_a_thread)) < 0.8


def in_turn(group):
    """Run different plans one after another, in changing sizes, without a pause."""
    session = executors.get("cpu").open_session(group)
    n = group.num_ranks
    rng = np.random.default_rng(5)
    kinds = []
    for name, words in (
        ("all_reduce/one_shot", "push packets staged tile_bytes=128"),
        ("all_reduce/ring", "push bulk staged tile_bytes=128"),
        ("all_reduce/two_shot", "pull bulk staged"),
    ):
        for count in (1, 7, 100, 1000):
            call = Call(dtype="int64", op=Operator.SUM, counts=(count,))
            kinds.append((count, session.prepare(plan_of(name, n, words), call)))
    for turn in range(300):
        count, launch = kinds[rng.integers(len(kinds))]
        # Values that look like flags and epochs must not be taken for them.
        x = np.arange(count, dtype=np.int64) + turn + group.rank
        out = np.zeros_like(x)
        launch(x, out)
        if (out != n * (np.arange(count) + turn) + n * (n - 1) // 2).any():
            return turn
    return None


def test_plans_follow_one_another_in_the_same_memory(ranks):
    """Nothing of one call is taken for something of the next."""
    assert [None] * 3 == ranks(3, in_turn)


def large(group, words):
    """Sum more than the caches hold, out of place, where kernels stream."""
    session = executors.get("cpu").open_session(group)
    count = 3_000_001
    shared = "zero_copy" in words
    x, out = (
        session.empty((count,), "float32") if shared else np.zeros(count, np.float32)
        for _ in range(2)
    )
    x[:] = np.arange(count) % 1000 + group.rank
    call = Call(dtype="float32", op=Operator.AVG, counts=(count,))
    session._memory = session._memory._replace(cache_bytes=1 << 20)
    launch = session.prepare(plan_of("all_reduce/two_shot", 2, words), call)
    for _ in range(2):
        out[:] = 0
        group.exchange({})
        launch(x, out)
        group.exchange({})
    return bool((out == np.arange(count) % 1000 + 0.5).all())


@pytest.mark.parametrize(
    "words", ["push bulk staged", "pull bulk zero_copy copy:push tile_bytes=1073741824"]
)
def test_large_results_are_streamed(ranks, words):
    """Stores that bypass the caches are done before they are announced."""
    assert [True, True] == ranks(2, large, words)


def waits(group):
    """Let rank 0 wait for rank 1 and say what share of a core that took."""
    session = executors.get("cpu").open_session(group)
    x = np.ones(4, np.float32)
    launch = session.prepare(
        plan_of("all_reduce/one_shot", 2, "push packets staged"),
        Call(dtype="float32", counts=(4,)),
    )
    launch(x, x.copy())
    if group.rank:
        time.sleep(2.0)
    start, used = time.monotonic(), time.process_time()
    launch(x, x.copy())
    return (time.process_time() - used) / max(time.monotonic() - start, 1e-9)


def test_a_rank_that_waits_long_sleeps(ranks):
    """It spins for microseconds, then costs about a hundredth of a core."""
    assert ranks(2, waits)[0] < 0.05


def shares_a_core(group):
    """Return the least time of a call while both ranks run on one core, in us.

    And whether a stranger took that core meanwhile.
    """
    session = executors.get("cpu").open_session(group)
    x = np.ones(4, np.float32)
    launch = session.prepare(
        plan_of("all_reduce/one_shot", 2, "push packets staged"),
        Call(dtype="float32", counts=(4,)),
    )
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    took, strangers = [], False
    for _ in range(200):
        start = time.perf_counter()
        for _ in range(20):
            launch(x, x.copy())
        took.append((time.perf_counter() - start) / 20)
        strangers |= session._words[Common.YIELDS] < 0
    return min(took) * 1e6, strangers


@pytest.mark.skipif(
    not hasattr(os, "sched_getaffinity") or len(os.sched_getaffinity(0)) < 2,
    reason="wants two cores",
)
def test_ranks_that_share_a_core_make_room_for_one_another(ranks):
    """The session takes them for ranks with a core each, and learns better."""
    found = ranks(2, shares_a_core)
    slowest = max(took for took, _ in found)
    if slowest >= 30 and any(strangers for _, strangers in found):
        pytest.skip("other processes took the core: then ranks sleep")

    assert slowest < 30  # with the long spin it is over 40


def keeps(group):
    """Use registered memory after its session has gone."""
    session = executors.get("cpu").open_session(group)
    x = session.empty((100,), "float64")
    session.close()
    del session
    x[:] = 5
    return float(x.sum())


def test_registered_arrays_outlive_their_session(ranks):
    """An array keeps the memory that it lies in."""
    assert [500.0, 500.0] == ranks(2, keeps)
