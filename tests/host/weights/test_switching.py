"""Trainers and replicas in processes: every element of every step is one version's."""

import pytest
from tests.host.weights.killing import SCENES, begin, kill, round_of
from tests.host.weights.team import Scene
from tests.nightly import at_night

pytestmark = [pytest.mark.host, pytest.mark.timeout(240)]


@pytest.mark.parametrize(
    ("far", "copies", "trainers", "ranks"),
    [
        (True, 2, 2, 2),
        (False, 1, 1, 2),
        at_night(False, 2, 2, 2),
        at_night(True, 1, 2, 1),
    ],
)
def test_steps_go_on_and_none_is_torn(far, copies, trainers, ranks):
    """Over shared memory and TCP, with a second copy and without, on all ranks."""
    with Scene(far=far, copies=copies) as scene:
        scene.train(trainers)
        scene.serve("one", ranks)
        for _ in range(12):
            assert scene.push()
        scene.wait_for("one", scene.counter)
        reports = scene.reports("one")

    assert all(one["seen"] == sorted(one["seen"]) for one in reports)
    assert all(one["steps"] >= 1 for one in reports)


@pytest.mark.parametrize(
    ("who", "phase", "more"),
    [
        ("replica", "reading", 2),
        at_night("trainer", "offering", 2),
    ],
)
def test_who_dies_tears_nothing_and_stops_nobody_else(who, phase, more):
    """A trainer, a replica's rank, a forwarder; `killing.py` does it at every phase."""
    with Scene() as scene:
        begin(scene)
        round_of(scene, who, phase, more)


@pytest.mark.parametrize(
    ("who", "phase", "more"),
    [
        ("either", "following", 1),
        at_night("either", "handing on", 3),
        at_night("either", "granting", 1),
        at_night("trainer", "granting", 2),
    ],
)
def test_who_dies_while_a_version_is_handed_on_stops_nobody_else(who, phase, more):
    """Neither who hands it on nor who follows him, nor whom both have it from."""
    with Scene(far=True, fan=1) as scene:
        begin(scene)
        round_of(scene, who, phase, more)


@pytest.mark.parametrize(("far", "copies"), [(True, 2), at_night(False, 1)])
def test_steps_go_on_while_only_changes_are_read(far, copies):
    """Of every eighth element: by both ranks, after a version that was read whole."""
    with Scene(far=far, copies=copies, period=8) as scene:
        scene.train(2)
        scene.serve("one", 2)
        for _ in range(8):
            assert scene.push()
            scene.wait_for("one", scene.counter)
        reports = scene.reports("one")

    assert [7, 7] == [one["updates"] for one in reports]


@pytest.mark.parametrize(
    ("who", "phase", "more"),
    [("replica", "changing", 2), at_night("trainer", "keeping", 2)],
)
def test_who_dies_while_changes_are_read_stops_nobody_else(who, phase, more):
    """With half of them written over a copy of the version before."""
    with Scene(far=True, period=8) as scene:
        begin(scene)
        round_of(scene, who, phase, more)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(5))
def test_two_hundred_kills_tear_nothing(seed):
    """Whoever dies at whichever phase: each twice and more, of each seed."""
    kill(2 * sum(len(cases) for _, cases in SCENES), seed)
