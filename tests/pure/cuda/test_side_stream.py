"""A channel's transfers take turns, on whatever streams; started ones run beside."""

from __future__ import annotations

from cuda_fakes import OK, on_ranks, real

from stretto.executors.cuda.launching.side_stream import SideStream
from stretto.executors.cuda.session import CudaSession


def of_a_pair(group):
    """Return the session of two ranks that only send and receive."""
    group.only_transfers = True
    return CudaSession(group)


def test_a_channel_has_one_set_of_flags_for_all_streams(fake):
    """Its ends may use different streams, in another order: they meet all the same."""

    def work(group):
        session = of_a_pair(group)
        streams = (7, 8, 9) if group.rank else (3,)
        found = {session.flags.of(s).region.control for s in streams}
        session.close()
        return found

    one, other = on_ranks(fake, 2, work)
    assert one == other
    assert len(one) == 1


def test_a_transfer_waits_for_the_one_before_it_on_another_stream(fake):
    """And not for itself; the stream before is held up until it has been given all."""

    def work(group):
        session = of_a_pair(group)
        seen, held = [], [False]

        def launch(stream):
            with session.flags.of(stream).turn(stream):
                fake._enqueue(stream, lambda: seen.append(stream) or True)

        fake._enqueue(7, lambda: held[0])
        for stream in (7, 7, 8):
            launch(stream)
        before = list(seen)
        held[0] = True
        session.synchronize(8)
        session.close()
        return before, seen

    assert [([], [7, 7, 8])] * 2 == on_ranks(fake, 2, work)


def test_a_graph_does_not_wait_for_what_lies_outside(fake):
    """Whoever captures puts that in order: the driver would refuse the wait."""
    status = real.CUstreamCaptureStatus
    active = status.CU_STREAM_CAPTURE_STATUS_ACTIVE
    idle = status.CU_STREAM_CAPTURE_STATUS_NONE
    fake.cuStreamIsCapturing = lambda s: (OK, active if int(s) == 8 else idle)
    fake.cuStreamGetCaptureInfo = lambda s: (OK, active, 70)
    waits = []
    fake.cuStreamWaitEvent = lambda *args: waits.append(int(args[0])) or (OK,)

    def work(group):
        session = of_a_pair(group)
        for stream in (7, 8, 7, 9):
            with session.flags.of(stream).turn(stream):
                pass
        session.close()

    on_ranks(fake, 2, work)
    assert waits == [9, 9]


def test_started_calls_run_beside_the_callers_stream(fake):
    """After what that was given before, and not held up by what comes later."""

    def work(group):
        session = CudaSession(group)
        beside, seen, held = SideStream(session.device), [], [False]
        fake._enqueue(3, lambda: seen.append("before") or True)
        mine = beside.after(3)
        fake._enqueue(3, lambda: held[0])
        fake._enqueue(mine, lambda: seen.append("beside") or True)
        reached = list(seen)
        held[0] = True
        session.synchronize(3)
        session.close()
        return mine != 3, reached

    assert [(True, ["before", "beside"])] == on_ranks(fake, 1, work)
