"""Every collective of torch.distributed on a group of stretto, and the group itself."""

import pytest
from tests.host.torch.conftest import checks_of

CHECKS = (
    "tests.host.torch.collective_checks",
    "tests.host.torch.group_checks",
    "tests.host.torch.refusal_checks",
    "tests.host.torch.untouched_checks",
)


@pytest.mark.parametrize("name", checks_of(*CHECKS))
def test_two_ranks_get_what_c10d_promises(checked, name):
    """Every check of collectives and groups holds on two ranks."""
    if text := checked(name, 2):
        pytest.fail(text, pytrace=False)


@pytest.mark.slow
@pytest.mark.parametrize("name", checks_of(*CHECKS))
def test_three_ranks_get_what_c10d_promises(checked, name):
    """Every check holds on three ranks, too: three is no power of two."""
    if text := checked(name, 3):
        pytest.fail(text, pytrace=False)
