"""The operators of torch.ops.stretto, on two processes that are started once."""

import pytest

pytest.importorskip("torch")
from tests.host.torch_ops import (
    beside,
    checks,
    collectives,
    engine_experts,
    engines,
    fusions,
    held,
    matmuls,
    norms,
    unlike,
)

import stretto

pytestmark = [pytest.mark.host, pytest.mark.timeout(240)]
MODULES = (
    *(collectives, norms, fusions, held, matmuls, engines, beside),
    engine_experts,
    unlike,
)
NAMES = tuple(n for n in checks.CHECKS if n not in checks.SLOW)


def run(comm, names):
    """Be a rank; importing this module has registered the checks."""
    return checks.run(comm, names)


@pytest.fixture(scope="module")
def said():
    """What is wrong on each rank, by check."""
    return stretto.spawn(run, NAMES, num_ranks=2, deadline_s=60)


@pytest.mark.parametrize("name", NAMES)
def test_a_check_finds_nothing_wrong(said, name):
    """Its docstring says the truth."""
    assert [[], []] == [found[name] for found in said]


@pytest.mark.slow
@pytest.mark.parametrize("num_ranks", [2, 3])
def test_all_checks_find_nothing_wrong(num_ranks):
    """The slow ones too, and on a number of ranks that divides little."""
    names = tuple(checks.CHECKS)

    said = stretto.spawn(run, names, num_ranks=num_ranks, deadline_s=120)

    assert [{name: [] for name in names}] * num_ranks == said
