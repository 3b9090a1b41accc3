"""Every collective of torch.distributed, on a group of stretto."""

import pytest
from tests.host.torch import collective_checks
from tests.host.torch.conftest import names_of

CHECKS = "tests.host.torch.collective_checks"


@pytest.mark.parametrize("name", names_of(collective_checks))
def test_two_ranks_get_what_c10d_promises(checked, name):
    if text := checked(name, 2):
        pytest.fail(text, pytrace=False)


@pytest.mark.slow
@pytest.mark.parametrize("name", names_of(collective_checks))
def test_three_ranks_get_what_c10d_promises(checked, name):
    if text := checked(name, 3):
        pytest.fail(text, pytrace=False)
