"""The two ways to a communicator: `spawn` ranks here, or `connect` under a launcher."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from stretto.errors import CallError, CommunicationError
from stretto.fabric.jit import require
from stretto.runtime.calls.ahead import stand_by
from stretto.runtime.calls.changing import replace_early
from stretto.runtime.calls.communicator import Communicator, advise
from stretto.runtime.calls.options import Elastic
from stretto.runtime.calls.spares import READY

if TYPE_CHECKING:
    import socket

    from stretto.fabric.meeting.environment import Place
    from stretto.fabric.meeting.meeting import Meeting
    from stretto.fabric.meeting.peers import PeerGroup
    from stretto.runtime.calls.joining.published import KeyStore

STANDS_BY = "STRETTO_STANDBY"
"""Set to 1 for a process that is started to stand by."""
_PRELOAD = ("stretto.runtime.calls.ahead:load_ranks",)
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
    from stretto.fabric.meeting.launching.launch import (
        launch,  # ranks themselves need none of it
    )
    from stretto.fabric.patience import check_deadline, check_num_ranks

    require("spawn")
    num_ranks = check_num_ranks(num_ranks, "spawn")
    deadline_s = check_deadline(deadline_s, "spawn")
    return launch(
        _work,
        (fn, *args),
        num_ranks=num_ranks,
        deadline_s=deadline_s,
        preload=_PRELOAD,
    )


def connect(
    rank: int | None = None,
    num_ranks: int | None = None,
    address: str | None = None,
    *,
    deadline_s: float = DEADLINE_S,
    elastic: Elastic | None = None,
) -> Communicator:
    """Return the communicator of this job's ranks (collective).

    Under torchrun, mpirun, mpiexec or srun their environment says who we are. Else
    give `rank` and `num_ranks`, and an `address` that the ranks share: any name for
    the job, or `tcp://HOST:PORT` of rank 0's host (which needs a secret in
    STRETTO_SECRET_FILE). On several hosts torchrun's ranks that have imported torch,
    and mpirun's that have imported mpi4py, agree on address and secret by those.

    With `elastic`, on all alike, ranks may change later, and no rank's end is the end
    of the others; `stretto launch --standby 1` says it for all. A process that is
    started to stand by returns when it is a rank.
    """
    from stretto.fabric.meeting import find_place
    from stretto.fabric.meeting.join import join
    from stretto.runtime.calls.joining.published import agree

    require("connect")
    place, listener = agree(find_place(rank, num_ranks, address), deadline_s)
    elastic = Elastic.of_environment() if elastic is None else elastic
    if elastic is not None:
        return _open_elastic(place, deadline_s, listener, elastic)
    return _open(join(place, deadline_s=deadline_s, listener=listener))


def _open_elastic(
    place: Place, deadline_s: float, listener: socket.socket | None, elastic: Elastic
) -> Communicator:
    """Return the communicator of a job whose ranks may change."""
    if not isinstance(elastic, Elastic):
        raise CallError(f"connect: elastic={elastic!r:.40}; want a stretto.Elastic")
    meeting, comes_late = meet_elastic(place, deadline_s, listener)
    standing, first, meeting.is_held = meeting.standing, meeting.num_ranks, True
    try:
        if comes_late:
            standing.tell(**{READY: True})
            stand_by(standing)
        while True:
            group = meeting.current()
            try:
                comm = Communicator(group, elastic=elastic, comes_late=comes_late)
            except CommunicationError:
                group.close()
                if not replace_early(group, elastic, first, deadline_s):
                    raise
                comes_late = True  # others may have gone on before, and be further
                continue
            meeting.is_held = False
            return comm
    except BaseException as e:
        meeting.close(f"raised {type(e).__name__}: {e}"[:1000])
        raise


def meet_elastic(
    place: Place, deadline_s: float, listener: socket.socket | None
) -> tuple[Meeting, bool]:
    """Return this process's part in a job whose ranks may change.

    And whether it only stands by, as whoever started it has said.
    """
    from stretto.fabric.meeting.join import join
    from stretto.fabric.messages import RANK, STANDBY

    stands_by = os.environ.get(STANDS_BY) == "1"
    wish = STANDBY if stands_by else RANK
    meeting = join(
        place, deadline_s=deadline_s, listener=listener, wish=wish, outlives=True
    )
    meeting.standing.tell(pid=os.getpid())  # who is a rank may stand by later
    return meeting, stands_by


def open_elastic(
    meeting: Meeting, elastic: Elastic, *, comes_late: bool
) -> Communicator:
    """Return the communicator of the ranks that there are (collective)."""
    try:
        group = meeting.current()
    except BaseException as e:
        meeting.close(f"raised {type(e).__name__}: {e}"[:1000])
        raise
    return _open(meeting, group, elastic=elastic, comes_late=comes_late)


def connect_on(
    store: KeyStore,
    rank: int,
    num_ranks: int,
    *,
    towards: str = "",
    deadline_s: float = DEADLINE_S,
    opens_late: bool = False,
) -> Communicator:
    """Return the communicator of ranks that share a store (collective).

    They may be on several hosts: rank 0 publishes an address and a secret there, the
    address being that of the interface by which it reaches the host `towards`. Nothing
    of it is left there, so that ranks may meet again in the same store. What calls on
    CPUs need is made ready now; where rank 0 says `opens_late`, by the first of them.
    """
    from stretto.fabric.meeting.join import join
    from stretto.runtime.calls.joining.published import agree_on, forget

    require("connect")
    try:
        place, listener = agree_on(store, rank, num_ranks, towards)
        meeting = join(place, deadline_s=deadline_s, listener=listener)
    finally:
        if rank == 0:  # all have read it: they are here, or it failed
            forget(store, num_ranks)
    try:
        said, _ = meeting.world.exchange({"late": opens_late})[0]
        meeting.world.opens_late = bool(said["late"])
    except BaseException as e:
        _give_up(meeting, meeting.world, e)
        raise
    return _open(meeting)


def _open(meeting: Meeting, group: Any = None, **options: Any) -> Communicator:
    """Return a meeting's communicator; without one the rank leaves, and says why."""
    group = group or meeting.world
    try:
        return Communicator(group, **options)
    except BaseException as e:
        _give_up(meeting, group, e)
        raise


def _give_up(meeting: Meeting, group: PeerGroup, error: BaseException) -> None:
    """Leave: after the fault of a group that has broken, else because of the error.

    Who hears of this rank's end first is then told whose fault it was.
    """
    if group.fault is not None:
        group.close()
    meeting.close(f"raised {type(error).__name__}: {error}"[:1000])


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
