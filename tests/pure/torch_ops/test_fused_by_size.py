"""Whether a norm is fused in a graph for GPUs goes by what was measured of its size."""

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402

from stretto.torch import registry  # noqa: E402
from stretto.torch.fusing import modules, report  # noqa: E402

NAME, HIDDEN = "a group of a test", 4096


class Comm:
    """A communicator of which sizes are asked."""

    def measured(self):
        return SimpleNamespace(fused_up_to=256 << 10, fused_of_many_up_to=8 << 20)


@pytest.fixture
def group():
    comm = Comm()
    registry.bind(NAME, comm)
    yield comm
    registry.forget(NAME)


def layer(x, residual, weight):
    """Sum over ranks, add, and norm as models write it."""
    total = residual + torch.ops.stretto.all_reduce(x, "sum", NAME)
    wide = total.float()
    scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
    return (wide * scale).to(total.dtype) * weight, total


def traced(rows, device):
    """Return the graph of a layer, on a device that need not be here."""
    with FakeTensorMode(allow_non_fake_inputs=True):
        kind = {"dtype": torch.bfloat16, "device": device}
        given = [torch.empty(rows, HIDDEN, **kind) for _ in "12"]
        return make_fx(layer)(*given, torch.empty(HIDDEN, **kind)).graph


@pytest.mark.parametrize(
    ("rows", "device", "fused"),
    [(32, "cuda", 1), (33, "cuda", 0), (33, "cpu", 1)],
)
def test_what_is_too_large_is_left_as_it_is(group, rows, device, fused):
    """On GPUs alone: elsewhere it is no kernel in any case. The report says why."""
    try:
        found = traced(rows, device)
    except (AssertionError, RuntimeError) as e:
        pytest.skip(f"this PyTorch makes no fake tensors of {device}: {e}")
    from stretto.torch.fusing import graph  # Inductor, a slow import

    said = report.FuseReport()

    assert fused == graph.fuse_graph(found, said)
    assert [f"{rows * HIDDEN * 2} bytes"] * (1 - fused) == [
        why.partition(";")[0] for _, why in said.refused
    ]


@pytest.mark.parametrize(
    ("rows", "device", "held"),
    [(32, "cuda", True), (33, "cuda", False), (33, "cpu", True)],
)
def test_a_layer_holds_back_what_a_norm_had_better_sum(group, rows, device, held):
    """Larger sums are made at once, and the norm is the model's own."""
    with FakeTensorMode():
        x = torch.empty(rows, HIDDEN, dtype=torch.bfloat16, device=device)

        assert held != modules.is_too_large(x, group)
