"""A job that is ordered about while it trains: nobody dies of it, or who shall."""

import json
import time

import pytest
from tests.host.elastic.test_training import TRAIN
from tests.waiting import until

from stretto import elastic
from stretto.errors import CallError, MembershipError
from stretto.fabric.meeting.watching import watching

pytestmark = [pytest.mark.host, pytest.mark.slow, pytest.mark.timeout(300)]


def begin(start, ranks, standbys, **options):
    """Start a job that trains for long enough."""
    said = ", ".join(f"{k}={v}" for k, v in options.items())
    every = [*range(ranks), *[None] * standbys]
    calls = [f"train({r}, {ranks}, {{}}, pause=0.02, {said})\n" for r in every]
    return [start(TRAIN + call) for call in calls]


def losses_of(members):
    """The losses of all that ended as ranks; whoever was ended is left out."""
    found = {}
    for one in members:
        out, said = one.process.communicate(timeout=200)
        if one.process.returncode == -9 or not out:
            continue
        assert 0 == one.process.returncode, said
        rank, _, losses, _ = json.loads(out.splitlines()[-1])
        known = found.setdefault(rank, {})
        for step, loss in losses.items():
            assert known.setdefault(step, loss) == loss
    return found


def is_under_way(meeting, step=3):
    seen = elastic.look(meeting)
    return all(one.said.get("step", 0) >= step for one in seen.ranks)


def stands_by(meeting):
    """Whoever may take a place; and all ranks have a state that they can give."""
    seen = elastic.look(meeting)
    ready = [one for one in seen.members if one.rank < 0 and one.said.get("ready")]
    return ready and all(one.said.get("whole") for one in seen.ranks)


def test_ranks_are_drained_replaced_and_looked_at(start, tmp_path, monkeypatch):
    """Who is drained and stays takes the next place; one that hangs is ended."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    members = begin(start, 2, 1, epochs=40)
    until(lambda: [*tmp_path.glob("stretto/*.sock")], 60)
    with watching() as meeting:
        until(lambda: is_under_way(meeting) and stands_by(meeting), 120)
        first = elastic.look(meeting)
        with pytest.raises(
            CallError, match="there is no rank 7: this job has ranks 0 to 1"
        ):
            elastic.drain(meeting, 7)
        then = elastic.drain(meeting, 1, stays=True)
        assert (0, 1) == (first.generation, then.generation)
        assert first.rank(0).pid == then.rank(0).pid != then.rank(1).pid
        until(lambda: stands_by(meeting), 60)
        free = [
            one.said["pid"] for one in elastic.look(meeting).members if one.rank < 0
        ]
        assert [first.rank(1).pid] == free
        members[0].kill(19)
        last = elastic.replace(meeting, 0)
        assert first.rank(1).pid == last.rank(0).pid
        assert -9 == members[0].process.wait(10)
        with pytest.raises(MembershipError, match="rank 1 was not drained"):
            elastic.drain(meeting, 1, within_s=0.5)
    members[0].process.communicate()
    found = losses_of(members[1:])

    assert {0, 1} == set(found)
    assert "240" in found[0]


def test_a_job_grows_beyond_its_start(start, tmp_path, monkeypatch):
    """Nobody said how many there may be; each takes its share of the data anew."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    members = begin(start, 2, 1, epochs=40)
    until(lambda: [*tmp_path.glob("stretto/*.sock")], 60)
    with watching() as meeting:
        until(lambda: is_under_way(meeting) and stands_by(meeting), 120)
        then = elastic.grow(meeting, 1)
        assert (3, 1) == (len(then.ranks), then.generation)
        step = max(one.said.get("step", 0) for one in then.ranks)
        until(lambda: is_under_way(meeting, step + 3), 60)
    assert {0, 1, 2} == set(losses_of(members))


def test_a_job_grows_no_further_than_it_may(start, tmp_path, monkeypatch):
    """Its first rank says why; it goes on as it is."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    members = begin(start, 1, 1, epochs=20, max_ranks=1)
    until(lambda: [*tmp_path.glob("stretto/*.sock")], 60)
    with watching() as meeting:
        until(lambda: is_under_way(meeting) and stands_by(meeting), 120)
        for _ in range(2):  # the second hears nothing of the first one's answer
            since = time.monotonic()
            with pytest.raises(MembershipError, match=r"grow\(1\): 2 ranks; want at"):
                elastic.grow(meeting, 1)
            assert time.monotonic() - since < 30, "it is said at once"
        assert 1 == len(elastic.look(meeting).ranks)
    assert {0} == set(losses_of(members))


@pytest.mark.parametrize(("ranks", "leave"), [(1, (0, 0)), (2, (0, 1, 0, 0, 1))])
def test_who_was_drained_takes_another_place_and_nobody_dies_of_it(
    start, tmp_path, monkeypatch, ranks, leave
):
    """It knows the ranks' processes from when it was one, and lets them leave.

    Also where no rank stays beside the one that leaves.
    """
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    members = begin(start, ranks, 1, epochs=60 * ranks // 2)
    until(lambda: [*tmp_path.glob("stretto/*.sock")], 60)
    with watching() as meeting:
        until(lambda: is_under_way(meeting) and stands_by(meeting), 120)
        for rank in leave:
            elastic.drain(meeting, rank, stays=True, within_s=30)
            until(lambda: stands_by(meeting), 60)
    found = losses_of(members)

    assert {0} == {one.process.returncode for one in members}
    assert {*range(ranks)} == set(found)
    assert all("360" in known for known in found.values())
