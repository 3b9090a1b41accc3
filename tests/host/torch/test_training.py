"""Training stacks of PyTorch run on stretto, and lose what they lose on Gloo."""

import pytest
from tests.host.torch import training_checks
from tests.host.torch.conftest import names_of

CHECKS = "tests.host.torch.training_checks"


@pytest.mark.parametrize("name", names_of(training_checks))
def test_two_ranks_train_as_on_gloo(checked, name):
    if text := checked(name, 2):
        pytest.fail(text, pytrace=False)


@pytest.mark.slow
@pytest.mark.parametrize("name", names_of(training_checks))
def test_four_ranks_train_as_on_gloo(checked, name):
    if text := checked(name, 4):
        pytest.fail(text, pytrace=False)
