"""What layers of a fused model hold back: right whatever is done with it."""

import torch
from tests.host.torch_ops.checks import check
from tests.host.torch_ops.fusions import HIDDEN, LlamaRMSNorm, Row, by_ours, gloo
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
