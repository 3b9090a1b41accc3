"""Kernels are loaded once for all sessions of a process, and transfers both ends."""

from __future__ import annotations

import pytest
from cuda_fakes import OK, on_ranks

from stretto.compiler.lower import lower
from stretto.compiler.plan import Schedule
from stretto.compiler.verify import verify, verify_plan
from stretto.executors import Call
from stretto.executors.cuda.session import CudaSession
from stretto.program import algorithms

WORDS = "push packets staged threads=32"


@pytest.fixture
def modules(fake):
    """Return what is loaded and unloaded, in order."""
    found = []

    def load_data(image):
        found.append(f"load {1 + len(found)}")
        return OK, len(found)

    fake.cuModuleLoadData = load_data
    fake.cuModuleGetFunction = lambda module, name: (OK, 2)
    fake.cuFuncLoad = lambda function: (OK,)
    fake.cuModuleUnload = lambda module: found.append(f"unload {module}") or (OK,)
    fake.cuOccupancyMaxActiveBlocksPerMultiprocessor = lambda *a: (OK, 8)
    return found


def transfer():
    """Return the plan of a send and its receive, and a kind of call."""
    program = algorithms.get("permute/direct").build(2, pairs=((0, 1),))
    plan = verify_plan(lower(verify(program), Schedule.parse(WORDS)))
    return plan, Call(dtype="int8", counts=(64, 64))


def test_a_rank_that_sends_has_loaded_what_receives(fake, modules):
    """Of ranks that all send first, none must load while its send waits for a receive.

    One process is the sender in one session and the receiver in another.
    """

    def work(group):
        group.only_transfers = True
        sends, receives = CudaSession(group), CudaSession(group)
        if group.rank == 0:
            sends.prepare(*transfer())
            after_the_send = list(modules)
            receives.group.rank = 1
            receives.prepare(*transfer())
            receives.group.rank = 0
            counts = len(after_the_send), len(modules)
            answer = counts
        group.exchange({})
        sends.close()
        receives.close()
        again = CudaSession(group)
        if group.rank == 0:
            again.prepare(*transfer())
            answer = *answer, sorted(modules)
        group.exchange({})
        again.close()
        return answer if group.rank == 0 else None

    answer, _ = on_ranks(fake, 2, work)

    assert (2, 2, ["load 1", "load 2"]) == answer, "graphs hold what was loaded"


def test_other_sessions_load_their_own_end_only(fake, modules):
    """A permute of two ranks that do other things, too."""

    def work(group):
        session = CudaSession(group)
        if group.rank == 0:
            session.prepare(*transfer())
        loaded = list(modules)
        group.exchange({})
        session.close()
        return loaded

    found, _ = on_ranks(fake, 2, work)

    assert ["load 1"] == found
