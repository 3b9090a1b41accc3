"""What torch.compile leaves alone of a group, and what it may read."""

import pytest

pytest.importorskip("torch")

from stretto.torch.group import StrettoGroup


@pytest.mark.parametrize("name", ["rank", "size", "getGroupName", "getGroupDesc"])
def test_a_graph_may_ask_a_group_who_it_is(name):
    """PyTorch 2.11 reads `group.group_name` in a full graph as it reads any code."""
    assert not hasattr(getattr(StrettoGroup, name), "_torchdynamo_disable")
    assert not hasattr(StrettoGroup.group_name.fget, "_torchdynamo_disable")


@pytest.mark.parametrize("name", ["allreduce", "broadcast", "barrier", "_do"])
def test_calls_are_left_alone(name):
    """Dynamo calls them as they are."""
    assert getattr(StrettoGroup, name)._torchdynamo_disable
