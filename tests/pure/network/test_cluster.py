"""Runs of many jobs: what is counted, what is the same each time, what is refused."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.pure.network.conftest import across

from stretto.errors import CallError
from stretto.network import Cluster, Job, JobStep, cluster, jobs, schedulers

NAMES = schedulers.names()


def some_jobs(seed, **more):
    """Return a small trace."""
    return jobs.generate(
        servers=8, load=1.2, hours=0.02, seed=seed, mean_s=10, **more
    ) or jobs.generate(servers=8, load=5, hours=0.02, seed=seed, mean_s=10)


@pytest.mark.parametrize("name", [*NAMES, "packed+cassini"])
def test_every_scheduler_ends_all_jobs_and_none_beats_ideal(name):
    """All iterations are done, and the same seed gives the same run."""
    given, where = some_jobs(3), Cluster("leaf_spine2x4")
    found, again = (where.run(given, scheduler=name, seed=5) for _ in range(2))
    best = cluster.ideal(given, seed=5)

    assert {job.name for job in given} == set(found.jobs)
    for name, run in found.jobs.items():
        least = best.jobs[name]
        done = sum(run.iterations_ms)
        assert run.ended_ms - run.job.arrives_ms >= done * (1 - 1e-9)
        assert np.mean(run.slowdowns) >= 0.98 * np.mean(least.slowdowns)
    assert found.row() == again.row()
    assert [r.slowdowns for r in found.jobs.values()] == [
        r.slowdowns for r in again.jobs.values()
    ]


@pytest.mark.parametrize("name", [*NAMES, "packed+cassini"])
def test_what_a_job_takes_is_its_waiting_and_its_iterations(name):
    """Whoever has no ranks waits, on its coming and when it moves; tables say so."""
    found = Cluster("leaf_spine2x4").run(some_jobs(3), scheduler=name, seed=5)
    waited = {name: run.waited_ms for name, run in found.jobs.items()}
    for name, run in found.jobs.items():
        iterations = sum(run.iterations_ms) + run.job.begins_ms
        assert run.takes_ms == pytest.approx(waited[name] + iterations, abs=1e-3)
        assert waited[name] >= run.began_ms - run.job.arrives_ms - 1e-6
    rows = {row["job"]: row["waited_s"] for row in found.rows()}
    assert rows == {name: ms / 1e3 for name, ms in waited.items()}
    assert any(rows.values())
    assert found.row()["waited_s"] == pytest.approx(np.mean([*rows.values()]))
    best = cluster.ideal(some_jobs(3), seed=5)
    assert best.row()["waited_s"] == 0.0


def test_a_job_alone_takes_what_it_says(narrow):
    """Computing and sending, one after the other, iteration by iteration."""
    (job,) = across([(200, 80, 45)], iterations=5)
    run = narrow.run([job]).jobs["job0"]

    assert [200.0] * 5 == pytest.approx(run.iterations_ms, rel=1e-4)
    assert 1.0 == pytest.approx(run.fairness, rel=1e-4)


def test_a_plan_says_who_sends_what_to_whom():
    """A catalogued ring all-reduce sends 2 (n-1)/n of the size to the next."""
    step = JobStep(
        compute_ms=1.0, collective="all_reduce/ring", mbytes=100.0, gbits_per_s=40.0
    )
    job = Job(name="x", steps=(step,), workers=4, iterations=2)
    (made,) = Cluster("leaf_spine2x4").prepared([job])
    (phase,) = made.phases(4)

    assert {(0, 1), (1, 2), (2, 3), (3, 0)} == {(s.src, s.dst) for s in phase.sends}
    assert [150.0] * 4 == pytest.approx([s.mbytes for s in phase.sends])
    assert 30.0 == pytest.approx(phase.up_ms)


def test_a_job_that_only_communicates_and_one_that_never_does(narrow):
    """Neither confuses anybody."""
    steps = [JobStep(compute_ms=0.0, collective="chain", mbytes=50.0, gbits_per_s=40.0)]
    steps += [JobStep(compute_ms=10.0)]
    given = [
        Job(name=f"j{i}", steps=(step,), workers=2, iterations=9, ranks=(i, 5 + i))
        for i, step in enumerate(steps)
    ]
    run = narrow.run(given, scheduler="packed+cassini")

    assert run.slowdowns == pytest.approx(1.0, rel=1e-3)


def test_events_are_a_recording(narrow):
    """One lane a job on every rank that it has: what the studio shows."""
    run = narrow.run(across([(200, 80, 45)] * 2, iterations=4), events=True)
    recording = run.trace()

    assert {0, 1, 5, 6} == set(recording.steps["rank"].tolist())
    assert 2 * 2 * 4 == len(recording.steps)


def job(**more):
    """Return a job with some field wrong."""
    fields = {"name": "a", "steps": (JobStep(compute_ms=5.0),), "workers": 2}
    return Job(**{**fields, "iterations": 3, **more})


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: job(workers=0), "job a, workers: got 0; want 1 to"),
        (lambda: job(iterations=0), "job a, iterations: got 0; want 1 to"),
        (lambda: job(jitter=-0.1), "job a, jitter: got -0.1; want 0 to 1"),
        (lambda: job(ranks=(1, 1)), "job a, ranks: got .* want 2 different ones"),
        (lambda: job(steps=(JobStep(compute_ms=0.0),)), "takes 0 ms; want more than 0"),
        (
            lambda: job(steps=(JobStep(compute_ms=-1.0),)),
            "compute_ms: got -1; want 0 or",
        ),
        (
            lambda: job(steps=(JobStep(compute_ms=math.nan),)),
            "compute_ms: got nan; want",
        ),
        (
            lambda: job(steps=(JobStep(compute_ms=1.0, mbytes=1.0, gbits_per_s=0.0),)),
            "gbits_per_s: got 0; want a rate above 0",
        ),
        (
            lambda: job(
                steps=(JobStep(compute_ms=1.0, mbytes=1.0, gbits_per_s=math.inf),)
            ),
            "gbits_per_s: got inf; want a rate above 0",
        ),
    ],
)
def test_what_is_no_job_is_refused(make, said):
    """In one sentence, with the field, the value, and what is wanted."""
    with pytest.raises(CallError, match=said):
        make()


def test_a_step_in_python_is_what_it_is_in_a_file():
    """A rate that nobody gives is the same."""
    step = JobStep(compute_ms=1.0, mbytes=50.0)
    assert step.phase(2).up_ms == pytest.approx(50 * 8 / 40)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"workers": 11}, "workers: got 11; want at most the 10 ranks"),
        ({"ranks": (0, 10)}, "ranks: got 10; want ranks below 10"),
        (
            {"steps": (JobStep(compute_ms=1.0, mbytes=9.0, gbits_per_s=51.0),)},
            "gbits_per_s: a worker has 51 Gb/s to send; want at most 50",
        ),
    ],
)
def test_what_does_not_fit_the_machine_is_refused(narrow, more, said):
    """Before anything runs."""
    with pytest.raises(CallError, match=said):
        narrow.run([job(**more)])


def test_what_means_nothing_is_refused(narrow):
    """No jobs, jobs alike, and schedulers that are none."""
    for wrong, how, said in (
        ([], "packed", "no jobs; want at least one"),
        ([job(), job()], "packed", "two jobs named 'a'"),
        ([job()], "packed+x", "want NAME or NAME"),
    ):
        with pytest.raises(CallError, match=said):
            narrow.run(wrong, scheduler=how)
    with pytest.raises(CallError, match="want one without CASSINI"):
        schedulers.cassini(schedulers.find("packed+cassini"))


@settings(max_examples=15)
@given(st.integers(0, 1 << 16), st.sampled_from(jobs.names()), st.integers(1, 9))
def test_every_profile_scales_to_any_number_of_workers(seed, name, workers):
    """Volumes are those of its collectives, and a ring sends the same from each."""
    phases = jobs.profile(name).job("x", iterations=1, workers=workers).phases(workers)

    for phase in phases:
        out = dict.fromkeys(range(workers), 0.0)
        for send in phase.sends:
            out[send.src] += send.mbytes
            assert send.gbits_per_s * phase.up_ms == pytest.approx(send.mbytes * 8)
        assert workers > 1 or not phase.sends


def test_work_of_fewer_workers_counts_less():
    """Half the workers do half of an iteration; noise makes the first worth more."""
    straight = job(workers=4)
    noisy = dataclasses.replace(straight, noise=1.0)

    assert (0.5, 1.0) == (straight.work_of(2), straight.work_of(4))
    assert 0.5 < noisy.work_of(2) < 1.0 == noisy.work_of(4)
