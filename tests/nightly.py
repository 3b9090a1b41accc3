"""Wide matrices: a part of their cases in every run, and all of them at night."""

import os

import pytest


def nightly(cases, every):
    """Return cases, all but each so-many-th one marked `slow`."""
    return [case if nth % every == 0 else _slow(case) for nth, case in enumerate(cases)]


def at_night(*values):
    """Return one case that `./scripts/test --all` runs."""
    return pytest.param(*values, marks=pytest.mark.slow)


def _slow(case):
    if hasattr(case, "values") and hasattr(case, "marks"):
        marks = [*case.marks, pytest.mark.slow]
        return pytest.param(*case.values, marks=marks, id=case.id)
    return at_night(*case) if isinstance(case, tuple) else at_night(case)


def examples(most):
    """Return how many examples of a property are drawn: at night so many, else a fifth.

    `./scripts/test --all` sets ALL_EXAMPLES.
    """
    return most if os.environ.get("ALL_EXAMPLES") else max(10, most // 5)
