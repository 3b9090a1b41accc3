"""What `fuse` hands to torch.compile, and how its report reads."""

import logging

import pytest

torch = pytest.importorskip("torch")

from stretto.errors import CallError  # noqa: E402
from stretto.torch.fusing import fuse  # noqa: E402
from stretto.torch.fusing.report import FuseReport  # noqa: E402


@pytest.fixture
def compiled(monkeypatch):
    """Keep what torch.compile is given."""
    given = {}

    def take(model, **how):
        given.update(how)
        return lambda *args: model(*args)

    monkeypatch.setattr(torch, "compile", take)
    return given


@pytest.mark.parametrize("mode", [None, "default", "reduce-overhead", "max-autotune"])
def test_a_mode_stands_for_its_options(compiled, mode):
    """torch.compile takes a mode, or options: the pass is one of these."""
    from torch._inductor import list_mode_options

    fuse(torch.nn.ReLU(), compile=True, mode=mode, dynamic=False)

    options = compiled["options"]
    assert "mode" not in compiled
    assert options.pop("post_grad_custom_pre_pass") is not None
    assert options == (list_mode_options(mode, False) if mode else {})


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"mode": "max-autotune"}, "mode='max-autotune' is for torch.compile"),
        ({"backend": "eager"}, "backend='eager' is for torch.compile"),
        ({"dynamic": True, "mode": None}, "dynamic=True, mode=None are for"),
    ],
)
def test_what_torch_compile_reads_is_refused_without_it(given, said):
    """It was passed over, in silence; the model stays as it was."""
    model = torch.nn.ReLU()

    with pytest.raises(CallError, match=said):
        fuse(model, **given)

    assert not hasattr(model, "fusion")


def test_options_beside_a_mode_count(compiled):
    """They are what somebody wrote, one by one."""
    own = {"triton.cudagraphs": False, "shape_padding": True}
    fuse(torch.nn.ReLU(), compile=True, mode="reduce-overhead", options=own)

    assert compiled["options"].items() >= own.items()


def test_a_mode_that_is_none_is_refused():
    """By PyTorch, which knows them."""
    with pytest.raises(RuntimeError, match="Unrecognized mode=fast"):
        fuse(torch.nn.ReLU(), compile=True, mode="fast")


def test_a_report_has_a_line_for_each_reason(caplog):
    """However many norms of a model it is about; all of them can be asked for."""
    said = FuseReport(fused=2)
    with caplog.at_level(logging.INFO, "stretto.torch"):
        for n in range(30):
            said.refuse(f"layers.{n}.norm", "the sum is used twice")
            said.refuse(f"layers.{n}.norm", "the sum is used twice")
        said.refuse("last", "a norm over axes [0]; want the last")

    first, many, one = str(said).splitlines()
    some = "layers.0.norm, layers.1.norm, layers.2.norm and 27 more"
    assert first == "2 norms fused with their all_reduce"
    assert many == f"{some}: left alone: the sum is used twice"
    assert one == "last: left alone: a norm over axes [0]; want the last"
    assert len(said.refused) == 31
    assert len(caplog.records) == 2
