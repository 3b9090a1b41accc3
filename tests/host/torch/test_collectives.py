"""Every collective of torch.distributed on a group of stretto, and the group itself."""

import pytest
from tests.host.torch.conftest import checks_of

CHECKS = (
    "tests.host.torch.collective_checks",
    "tests.host.torch.group_checks",
    "tests.host.torch.refusal_checks",
    "tests.host.torch.untouched_checks",
    "tests.host.torch.answered_checks",
)


@pytest.mark.parametrize("num_ranks", [2, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", checks_of(*CHECKS))
def test_ranks_get_what_c10d_promises(checked, name, num_ranks):
    """Every check holds on two ranks, at night also on three: no power of two."""
    if text := checked(name, num_ranks):
        pytest.fail(text, pytrace=False)
