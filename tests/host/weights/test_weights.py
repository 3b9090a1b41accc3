"""What users see of sources and replicas, in one process, when all goes well."""

import re

import numpy as np
import pytest
from tests.host.weights.models import both, fill, some, step
from tests.waiting import until

from stretto import weights
from stretto.cli import main as command
from stretto.errors import (
    CallError,
    TransferError,
    TransferTimeout,
)
from stretto.trace import record
from stretto.weights import Version
from stretto.weights.copies import Copy
from stretto.weights.show import show

pytestmark = [pytest.mark.host, pytest.mark.timeout(120)]
WAIT = 30


@pytest.mark.parametrize("copies", [1, 2])
@pytest.mark.parametrize("in_place", [False, True])
def test_a_step_reads_what_was_pushed(engines, copies, in_place):
    """A snapshot or in place, into a second copy or the only one; lag and versions."""
    ours = some(1.0)
    source, policy = both(engines, {**ours, "more": np.zeros(3)}, some(), copies=copies)
    for value in (1.0, 2.0, 3.0):
        fill(ours, value)
        push = source.push(wait=True, timeout=WAIT, in_place=in_place)
        push.end()
        fill(ours, 99.0)  # it is not read any more
        with policy.step() as version:
            held = {k: np.unique(v).tolist() for k, v in policy.tensors.items()}

            assert {k: [value] for k in ours} == held
            assert int(value) - 1 == version.counter
        assert version == policy.version == policy.wait(version)
    assert policy.lag in (0, None)
    assert ("more",) == policy.unread


@pytest.mark.parametrize("copies", [1, 2])
def test_tensors_without_elements_are_there_as_all_others_are(engines, copies):
    """Of them nothing comes: they are any version's."""
    ours = {**some(1.0), "none": np.zeros((0, 4), np.float32)}
    into = {**some(), "none": np.zeros((0, 4), np.float32)}
    source, policy = both(engines, ours, into, copies=copies)
    for value in (1.0, 2.0):
        fill(ours, value)
        source.push(wait=True, timeout=WAIT)
        with policy.step():
            assert set(into) == set(policy.tensors)
            assert policy.tensors["none"].shape == (0, 4)
            assert policy.tensors["w"].min() == value


def test_a_step_that_runs_keeps_its_version(engines):
    """The next ones come meanwhile, and the one after waits for memory."""
    ours = some(1.0)
    source, policy = both(engines, ours)
    source.push(wait=True, timeout=WAIT)
    with policy.step() as first:
        before = policy.tensors
        for value in (2.0, 3.0):
            fill(ours, value)
            source.push()
        until(lambda: policy.version.counter >= 1)

        assert 1.0 == before["w"].min() == before["w"].max()
        with policy.step() as second:
            assert first.counter < second.counter
    policy.wait(2, WAIT)
    with policy.step():
        assert 3.0 == policy.tensors["w"].min()


def test_a_late_replica_takes_the_newest_from_anyone(engines):
    """Also when the trainer is gone; it says that it has none until then."""
    source, first = both(engines, some(5.0))
    source.push(7, wait=True, timeout=WAIT)
    source.close()
    source.engine.close()
    late = engines.replica(some(-1.0), first.engine)
    with pytest.raises(TransferError, match=r"no version yet; policy\.wait\(\)"):
        step(late)

    assert 7 == late.wait(timeout=WAIT).counter
    with late.step():
        assert 5.0 == late.tensors["w"].max()


def test_several_trainer_ranks_are_one_version(engines):
    """Rank 0 makes the epoch; a version is there when all ranks have pushed it."""
    parts = [{"w": np.full((4, 4), 1.0 + r, np.float32)} for r in range(2)]
    first = engines.source(
        parts[0], rank=0, num_ranks=2, layouts={"w": "R=8[0:4] C=4 float32"}
    )
    second = engines.source(
        parts[1], first.engine, rank=1, num_ranks=2,
        layouts={"w": "R=8[4:8] C=4 float32"},
    )  # fmt: skip
    policy = engines.replica(
        {"w": np.zeros((8, 4), np.float32)}, first.engine, second.engine
    )
    first.push(4)
    with pytest.raises(TransferTimeout, match="a version not within"):
        policy.wait(timeout=0.2)
    second.push(4)

    assert Version(first.epoch, 4) == policy.wait(timeout=WAIT)
    assert first.epoch == second.epoch
    with policy.step():
        assert [1.0, 2.0] == np.unique(policy.tensors["w"]).tolist()


def test_show_lists_sources_replicas_and_lags(engines, capsys, monkeypatch):
    """By the command, from whichever member is asked."""
    source = engines.source(some(1.0))
    policy = engines.replica(some(), source.engine, replica="serving")
    source.push(wait=True, timeout=WAIT)
    monkeypatch.setenv("STRETTO_JOB", engines.job)
    for engine in (source.engine, policy.engine):
        assert 0 == command(["weights", "show", engine.name])
        lines = capsys.readouterr().out.splitlines()

        assert 3 == len(lines)
        assert re.search(rf"serving +0 of 1 +{policy.engine.name} +\w+:0 +0", lines[2])
        assert re.search(rf"source +0 of 1 +{source.engine.name} +\w+:0 +0", lines[1])
    with pytest.raises(CallError, match="shares no weights yet"):
        show(engines.engine("asks"), engines.engine("empty").name)
    with pytest.raises(TransferTimeout, match="says nothing of weights 'other'"):
        show(engines.engine("asks"), source.engine.name, "other", 0.2)


def test_replicas_hand_on_what_the_trainer_has_no_time_for(engines, monkeypatch):
    """With fan=1 one reads from the trainer; others wait, or go elsewhere."""
    ours = some(1.0)
    source = engines.source(ours, fan=1)
    replicas = []
    for _ in range(4):
        known = [policy.engine for policy in replicas]
        replicas.append(engines.replica(some(), source.engine, *known))
    most, grant = [], Copy.hold

    def counted(self, *given):
        found = grant(self, *given)
        if self.tag == "snap":
            most.append(self.readers)
        return found

    monkeypatch.setattr(Copy, "hold", counted)
    for value in (2.0, 3.0, 4.0):
        fill(ours, value)
        source.push(wait=True, timeout=WAIT)
        for policy in replicas:
            with policy.step():
                assert value == policy.tensors["w"].min()

    assert 1 == max(most)
    with pytest.raises(CallError, match="fan=-1"):
        weights.publish(engines.engine("bad"), "x", some(), fan=-1)


def test_pushes_pulls_and_switches_are_recorded(engines):
    """Beside transfers and calls, with their bytes; a pull that failed, too."""
    ours = some(1.0)
    source, policy = both(engines, ours)
    with record() as seen:
        source.push(wait=True, timeout=WAIT)
        until(lambda: policy.version is not None)
    calls, kinds = seen.recording.calls, seen.recording.kinds
    rows = {k.algorithm: k for k in kinds if k.collective == "weights"}

    assert {"push", "pull", "switch"} == set(rows)
    assert source.nbytes == rows["push"].nbytes == rows["pull"].nbytes
    assert (calls["state"] == 1).all()
    assert str(policy.version) in rows["switch"].text


def test_who_had_a_version_and_left_is_not_waited_for(engines):
    """The last step may be over before the trainer looks."""
    ours = some(1.0)
    source, policy = both(engines, ours, replica="r")
    push = source.push(wait=True, timeout=WAIT)
    policy.close()
    until(lambda: not any(who.team for who in source.known.values()))

    assert {"r": True} == push.replicas
    push.wait(0.0)
    later = source.push()
    assert not later.replicas
    with pytest.raises(TransferTimeout, match="by any replica"):
        later.wait(0.05)
    again = engines.replica(some(), source.engine, replica="r")
    again.wait(1, WAIT)
    later.wait(WAIT)
