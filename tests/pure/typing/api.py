"""What users write, as the type checker sees it: scripts/test checks this file."""

from typing import Any, assert_type

import numpy as np

import stretto
from stretto import topology
from stretto.compiler.lower import lower
from stretto.compiler.plan import Plan, Schedule
from stretto.compiler.verify import verify, verify_plan
from stretto.executors import Executor, Group, cpu, cuda, sim
from stretto.fabric.meeting.peers import PeerGroup
from stretto.program.ir import Program, Verified
from stretto.program.lang import Algorithm, Ranks


@stretto.algorithm("all_reduce/through_rank_0")
def through_rank_0(ranks: Ranks) -> None:
    ranks[0].output[:] = stretto.reduce(q.input[:] for q in ranks)
    for r in ranks[0].others:
        r.output[:] = ranks[0].output[:]


EXECUTORS: tuple[Executor, ...] = (cpu, cuda, sim)  # modules offer what is asked of all


def as_executors_see_it(group: PeerGroup) -> Group:
    return group


def prove() -> Verified[Plan]:
    assert_type(through_rank_0, Algorithm)
    program = through_rank_0.build(4)
    proved = verify(program)
    assert_type(program, Program)
    assert_type(proved, Verified[Program])
    lower(program, Schedule())  # type: ignore[arg-type]  # what is unproved
    plan = lower(proved, stretto.Schedule(protocol="packets"))
    assert_type(plan, Plan)
    return verify_plan(plan)


def simulate() -> float:
    machine = topology.load("h200x8")
    time_us: float = sim.simulate(prove(), machine, nbytes=8).time_us
    return time_us


def work(comm: stretto.Communicator, scale: float) -> float:
    x = np.full(8, scale * comm.rank, np.float32)
    comm.all_reduce(x, "avg", algorithm="all_reduce/ring")
    parts = comm.all_gather(x)
    total = comm.reduce(x, root=comm.num_ranks - 1)
    pending: stretto.Work = comm.all_reduce_async(x)
    pending.wait()
    comm.broadcast_async(x, src=0)  # type: ignore[call-arg]  # as the verb would say
    mine = comm.split(comm.rank % 2)
    assert mine is not None
    with mine:
        mine.barrier()
    return float(parts[0][0]) if total is None else float(total[0])


def run() -> list[Any]:
    try:
        return stretto.spawn(work, 2.0, num_ranks=4)
    except stretto.RankFailed as failed:
        raise SystemExit(str(failed)) from failed


def launched() -> None:
    with stretto.connect() as comm:
        comm.barrier()
