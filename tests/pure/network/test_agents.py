"""Agents keep compatible jobs apart under jitter, and let go of the others."""

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.pure.network.conftest import across

from stretto.runtime.pace import Grid


@given(st.lists(st.floats(0, 3), min_size=1, max_size=40), st.floats(0, 50))
def test_early_ones_wait_and_late_ones_go_at_once(works, origin):
    """Starts are slots or the moments of being ready, and never before either."""
    grid, now, slots = Grid(origin, 1.5), 0.0, set()
    for work in works:
        ready = now + work
        now = grid.start(ready)
        since = (now - origin) / 1.5
        on_slot = abs(since - round(since)) < 1e-6
        assert ready <= now < ready + 1.5 + 1e-6
        assert on_slot or now == ready
        if on_slot and now > ready:
            assert round(since) not in slots
            slots.add(round(since))


def test_who_was_late_has_caught_up_after_a_few_slots():
    """A padded period leaves a little of itself to every iteration."""
    grid, now = Grid(0.0, 102.0), 0.0
    for i in range(20):
        now = grid.start(now + (130.0 if i == 1 else 100.0))

    assert 20 * 102.0 == now


@pytest.mark.parametrize(
    ("rows", "jitter", "most", "tail"),
    [
        ([(200, 80, 45)] * 2, 0.01, 1.02, 1.03),
        ([(200, 80, 45)] * 2, 0.02, 1.04, 1.05),
        ([(300, 90, 45)] * 3, 0.02, 1.04, 1.06),
    ],
)
def test_compatible_jobs_are_hardly_slower_than_alone(narrow, rows, jitter, most, tail):
    """Where random phases cost more than 5 %, the grid leaves hardly any of it."""
    draw = random.Random(2)
    begins = [draw.uniform(0, period) for period, _, _ in rows]
    jobs = across(rows, jitter=jitter, begins=begins, iterations=250)
    host, paced = (
        narrow.run(jobs, scheduler=name, seed=2)
        for name in ("packed", "packed+cassini")
    )

    assert 1.05 < host.slowdowns.mean()
    assert paced.slowdowns.mean() <= most
    assert np.percentile(paced.slowdowns, 99) <= tail
    assert paced.marks * 33 <= host.marks


@pytest.mark.parametrize("jitter", [0.0, 0.1])
def test_jobs_that_do_not_fit_are_let_go(narrow, jitter):
    """Five that cannot be had together are no slower than without."""
    rows = [(100, 60, 40), (150, 90, 40), (170, 80, 45), (230, 100, 45)]
    jobs = across(rows, jitter=jitter, begins=[0, 31, 77, 13], iterations=120)
    host, paced = (
        narrow.run(jobs, scheduler=name, seed=1)
        for name in ("packed", "packed+cassini")
    )

    assert paced.slowdowns.mean() <= 1.015 * host.slowdowns.mean()
