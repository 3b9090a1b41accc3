"""Training stacks of PyTorch run on stretto, and lose what they lose on Gloo."""

import pytest
from tests.host.torch.conftest import checks_of

CHECKS = ("tests.host.torch.training_checks", "tests.host.torch.compiled_checks")


@pytest.mark.parametrize("name", checks_of(*CHECKS))
def test_two_ranks_train_as_on_gloo(checked, name):
    """Two ranks lose on stretto what they lose on Gloo, step by step."""
    if text := checked(name, 2):
        pytest.fail(text, pytrace=False)


@pytest.mark.slow
@pytest.mark.parametrize("name", checks_of(*CHECKS))
def test_four_ranks_train_as_on_gloo(checked, name):
    """Four ranks do so, too."""
    if text := checked(name, 4):
        pytest.fail(text, pytrace=False)
