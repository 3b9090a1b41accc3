"""When a wait has lasted too long."""

from types import SimpleNamespace

from stretto.fabric.patience import Patience


def test_a_wait_is_over_when_that_is_found_twice():
    """Between the two, what it waits for is looked for once more."""
    patience = Patience(SimpleNamespace(deadline_s=2.0))
    assert not patience.is_over(10.0, 12.0)
    assert not patience.is_over(10.0, 12.1)
    assert patience.is_over(10.0, 12.2)
    assert not patience.is_over(12.2, 12.3), "it has gone on"
    assert not patience.is_over(12.2, 14.3)
    assert patience.is_over(12.2, 14.4)


def test_a_deadline_that_becomes_shorter_counts_from_then_on():
    """Who has waited for long already still gets all of the shorter one."""
    group = SimpleNamespace(deadline_s=30.0)
    patience = Patience(group)
    assert not patience.is_over(0.0, 20.0)
    group.deadline_s = 2.0
    found = [patience.is_over(0.0, now) for now in (20.5, 21.0, 22.4, 22.6, 22.7)]
    assert [False, False, False, False, True] == found
