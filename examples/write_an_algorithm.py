"""Write an all-reduce, have it proved, compile it, and see how long it takes."""

from stretto import algorithm, reduce, topology
from stretto.errors import PromiseError
from stretto.executors import sim
from stretto.lang import Ranks
from stretto.lower import lower
from stretto.plan import Schedule
from stretto.verify import verify, verify_plan


@algorithm("all_reduce/through_rank_0")
def through_rank_0(ranks: Ranks) -> None:
    """Rank 0 reduces everything and hands it out: simple, and slow."""
    ranks[0].output[:] = reduce(q.input[:] for q in ranks)
    for r in ranks[0].others:
        r.output[:] = ranks[0].output[:]


@algorithm("all_reduce/forgets_one")
def forgets_one(ranks: Ranks) -> None:
    """The same, but rank 0 forgets the last rank's part."""
    ranks[0].output[:] = reduce(q.input[:] for q in ranks[:-1])
    for r in ranks[0].others:
        r.output[:] = ranks[0].output[:]


def main() -> None:
    """Prove one, refute the other, compile and time the first."""
    program = through_rank_0.build(3)
    print(program)
    proved = verify(program)
    try:
        verify(forgets_one.build(3))
    except PromiseError as error:
        print(f"refused: {error}\n")
    schedule = Schedule.parse("push packets staged")
    print(lower(proved, schedule))

    machine = topology.load("h200x8")
    plan = verify_plan(lower(verify(through_rank_0.build(8)), schedule))
    for nbytes in (1 << 10, 1 << 20):
        result = sim.simulate(plan, machine, nbytes=nbytes)
        print(f"{nbytes:>8} bytes on {machine.name}: {result.time_us:.1f} us")


if __name__ == "__main__":
    main()
