"""What every test may use: golden files, a steady Hypothesis, markers by folder."""

import gc
import os
from pathlib import Path

# Before NumPy or PyTorch is imported, here and in every process that tests start: at
# each end of a small product their threads wait in a loop for one another, and on cores
# that are busy one product of 16 rows takes 50 ms.
os.environ["OMP_NUM_THREADS"] = "1"

import hypothesis
import pytest
from tests.checking.golden import Golden
from tests.nightly import examples

TESTS = Path(__file__).parent
LONGEST = (
    *("meta", "pure/hop", "pure/synth"),
    *("host/torch_ops", "host/bench", "host/hop", "host/transfer", "host/studio"),
    *("host/meeting", "host/torch", "chaos", "host/trace"),
)
"""Folders whose files take longest: begun first, so that none runs alone at the end."""
WARM = ("host", "meta")
"""Folders whose tests start processes of Python."""

gc.disable()  # until all is imported: what is imported stays
# No deadline: on shared cores a slow example means nothing. In CI a failure must come
# back when the same commit is run again, so examples are not drawn at random there.
hypothesis.settings.register_profile(
    "here",
    deadline=None,
    max_examples=examples(100),
    derandomize=bool(os.environ.get("CI")),
)
hypothesis.settings.load_profile("here")


def pytest_addoption(parser):
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="write golden files instead of comparing with them",
    )


def pytest_collection_modifyitems(items):
    for item in items:
        if item.path.is_relative_to(TESTS / "host"):
            item.add_marker("host")
    items.sort(key=lambda item: _begun(item.path.relative_to(TESTS).parent.as_posix()))


def pytest_collection_finish(session):
    """Look for garbage from now on, but not among all that was imported and collected.

    Each look through it takes half a second, and there would be many. Tests that start
    processes of Python have them forked from this one as it is now: see `warm`.
    """
    gc.freeze()
    gc.set_threshold(10_000, 10, 10)
    gc.enable()
    if any(item.path.is_relative_to(TESTS / f) for item in session.items for f in WARM):
        from tests.host import warm

        warm.begin()


def _begun(folder):
    """Return the place of a folder among those that are begun first."""
    return LONGEST.index(folder) if folder in LONGEST else len(LONGEST)


@pytest.fixture
def golden(request):
    """Compare text with this test's golden file."""
    return Golden(
        folder=TESTS / "golden",
        room=request.path.parent.name,
        test=request.node.name,
        update=request.config.getoption("--update-golden"),
    )
