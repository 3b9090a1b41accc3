"""Training stacks of PyTorch run on stretto, and lose what they lose on Gloo."""

import pytest
from tests.host.torch.conftest import checks_of

CHECKS = ("tests.host.torch.training_checks", "tests.host.torch.compiled_checks")


@pytest.mark.parametrize("num_ranks", [2, pytest.param(4, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", checks_of(*CHECKS))
def test_ranks_train_as_on_gloo(checked, name, num_ranks):
    """Ranks lose on stretto what they lose on Gloo, step by step."""
    if text := checked(name, num_ranks):
        pytest.fail(text, pytrace=False)
