"""The two ways to a communicator: `spawn` ranks here, or `connect` under a launcher."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from stretto.calls.communicator import Communicator, advise

if TYPE_CHECKING:
    from stretto.calls.joining.published import Store
    from stretto.meeting.meeting import Meeting

DEADLINE_S = 30.0
"""How long a rank may keep the others waiting, unless told otherwise."""


def spawn(
    fn: Callable[..., Any],
    *args: Any,
    num_ranks: int,
    deadline_s: float = DEADLINE_S,
) -> list[Any]:
    """Run `fn(comm, *args)` on that many fresh processes; return results by rank.

    `RankFailed` names the rank that raised or died, with its traceback; the results
    of those that returned are in its `results`. No process outlives the call.
    """
    from stretto.meeting.launching.launch import (
        launch,  # ranks themselves need none of it
    )
    from stretto.meeting.limits import check_deadline, check_num_ranks

    num_ranks = check_num_ranks(num_ranks, "spawn")
    deadline_s = check_deadline(deadline_s, "spawn")
    return launch(_work, (fn, *args), num_ranks=num_ranks, deadline_s=deadline_s)


def connect(
    rank: int | None = None,
    num_ranks: int | None = None,
    address: str | None = None,
    *,
    deadline_s: float = DEADLINE_S,
) -> Communicator:
    """Return the communicator of this job's ranks (collective).

    Under torchrun, mpirun, mpiexec or srun their environment says who we are. Else
    give `rank` and `num_ranks`, and an `address` that the ranks share: any name for
    the job, or `tcp://HOST:PORT` of rank 0's host (which needs a secret in
    STRETTO_SECRET_FILE). On several hosts torchrun's ranks that have imported torch,
    and mpirun's that have imported mpi4py, agree on address and secret by those.
    """
    from stretto.calls.joining.published import agree
    from stretto.meeting.environment import find_place
    from stretto.meeting.join import join

    place, listener = agree(find_place(rank, num_ranks, address), deadline_s)
    return _open(join(place, deadline_s=deadline_s, listener=listener))


def connect_on(
    store: Store,
    rank: int,
    num_ranks: int,
    *,
    towards: str = "",
    deadline_s: float = DEADLINE_S,
    opens_late: bool = False,
) -> Communicator:
    """Return the communicator of ranks that share a store (collective).

    They may be on several hosts: rank 0 publishes an address and a secret there, the
    address being that of the interface by which it reaches the host `towards`. What
    calls on CPUs need is made ready now; with `opens_late`, the same on every rank,
    beside the first of them.
    """
    from stretto.calls.joining.published import agree_on
    from stretto.meeting.join import join

    place, listener = agree_on(store, rank, num_ranks, towards)
    meeting = join(place, deadline_s=deadline_s, listener=listener)
    meeting.world.opens_late = opens_late
    return _open(meeting)


def _open(meeting: Meeting) -> Communicator:
    """Return a meeting's communicator; without one the rank leaves, and says why."""
    try:
        return Communicator(meeting.world)
    except BaseException as e:
        meeting.close(f"raised {type(e).__name__}: {e}"[:1000])
        raise


def _work(meeting: Meeting, fn: Callable[..., Any], *args: Any) -> Any:
    """Run on one rank; after an error the meeting closes with the reason."""
    comm = _open(meeting)
    try:
        result = fn(comm, *args)
    except (AttributeError, TypeError) as e:
        advise(e)
        raise
    comm.close()
    return result
