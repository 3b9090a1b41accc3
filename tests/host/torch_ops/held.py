"""What layers of a fused model hold back: right whatever is done with it."""

import torch
from tests.host.torch_ops.checks import check
from tests.host.torch_ops.fusions import (
    HIDDEN,
    LlamaRMSNorm,
    Row,
    by_dist,
    by_ours,
    gloo,
    made,
)
from torch import nn

from stretto.torch.fusing import fuse


@check
def a_layer_may_return_what_it_was_given(b):
    """Where a part is somebody else's too, its sum is made beside it."""

    class Same(nn.Module):
        def __init__(self):
            super().__init__()
            self.reduce_results = True

        def forward(self, x):
            y = x[:1] if len(x) > 2 else x
            return by_ours(y.clone()) if self.reduce_results else y

    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.row, self.norm = Same(), LlamaRMSNorm(torch.float32)

        def forward(self, x):
            y = self.row(x)
            return self.norm(x[: len(y)] + y), x * 2

    gloo(b)
    plain, fused = Both().eval(), fuse(Both().eval())
    with torch.no_grad():
        for rows in (2, 5):
            x = b.draw(rows, HIDDEN)[b.rank]
            for one, other in zip(fused(x.clone()), plain(x.clone()), strict=True):
                b.same(f"{rows} rows", one, other, 1e-5)


@check
def a_sum_may_be_used_after_its_norm(b):
    """A fused call leaves two sums behind: over ranks, and with the residual."""

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.row = Row(b.rank, torch.float32, by_ours)
            self.norm = LlamaRMSNorm(torch.float32)

        def forward(self, x):
            y = self.row(x)
            total = x + y
            return self.norm(total), y * 2, total * 3

    gloo(b)
    plain, fused = Block().eval(), fuse(Block().eval())
    with torch.no_grad():
        x = b.randn(3, HIDDEN)
        for one, other in zip(fused(x), plain(x), strict=True):
            b.same("each", one, other, 1e-5)
    b.true(str(fused.fusion), fused.fusion.calls == 1)


class Gemma(nn.Module):
    """A norm whose weight counts from one; its name says nothing of it."""

    def __init__(self):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.zeros(HIDDEN)), 1e-6

    def forward(self, x):
        return nn.functional.rms_norm(x, (HIDDEN,), self.weight + 1, self.eps)


Gemma.__name__ = "GemmaRMSNorm"


@check
def eager_refusals(b):
    """A model of which nothing is known stays as it is, and says why."""
    model, _, _ = made(b)
    model.layers[0].input_layernorm = Gemma()
    said = fuse(model, b.comm).fusion
    b.true(str(said), said.fused == 5)
    model.layers[1].input_layernorm.forward = lambda x: x * 2
    said = fuse(model, b.comm).fusion
    b.true(str(said), said.fused == 4)
    b.true(str(said), "something else" in said.refused[0][1])
    said = fuse(nn.Sequential(nn.Linear(3, 3), nn.RMSNorm(3, eps=1e-6))).fusion
    b.true(str(said), said.fused == 0 and "reduce_results" in said.refused[0][1])


@check
def eager_ranks_agree(b):
    """What one rank cannot fuse no rank fuses; another model on a rank is refused."""
    model, x, _ = made(b)
    if b.rank == b.n - 1:
        model.layers[0].input_layernorm.weight = nn.Parameter(torch.ones(1, HIDDEN))
        model.layers[1].o_proj.reduce = lambda y: by_dist(y) + 0 * y.sum().relu()
    before = model(x).detach()
    said = fuse(model, b.comm).fusion
    names = sorted(where for where, _ in said.refused)
    b.true(str(said), names == ["layers.0.input_layernorm", "layers.1.o_proj"])
    with torch.no_grad():
        b.same("numbers", model(x), before)
    if b.rank == 0:
        model.extra = LlamaRMSNorm(torch.float32)
    said = fuse(model, b.comm).fusion
    b.true(str(said), said.layers == 0 and "other layers" in said.refused[-1][1])
    with torch.no_grad():
        b.same("numbers", model(x), before)


@check
def eager_again(b):
    """A fused model may be fused again: it is tried anew, from what it was."""
    model, x, want = made(b)
    forward = model.norm.forward
    fuse(model, b.comm)
    said = fuse(model, b.comm).fusion
    with torch.no_grad():
        b.same("numbers", model(x), want)
    b.true(str(said), (said.layers, said.fused, said.calls) == (4, 5, 4))
    model.norm.forward = lambda x: forward(x) * 2
    said = fuse(model, b.comm).fusion
    with torch.no_grad():
        b.same("twice", model(x), want * 2)
    b.true(str(said), said.fused == 4)
