"""Layers that look like row-parallel ones: those that are, fuse; all others are left.

Each is a change to one layer: (how, whether it may hold back its sum).
"""

import torch
import torch.distributed as dist
from tests.host.torch_ops.checks import check, seeded
from tests.host.torch_ops.fusions import HIDDEN, LlamaRMSNorm, by_ours, gloo
from torch import nn

import stretto.torch.operators as st
from stretto.torch.fusing import fuse

LAYERS = {}


def layer(fuses=False, **attributes):
    """Register a layer: a function of (self, x) that sums if `self.reduce_results`."""

    def add(function):
        LAYERS[function.__name__] = function, fuses, attributes
        return function

    return add


class Row(nn.Module):
    """A matrix by columns, and whatever a function makes of it."""

    def __init__(self, rank, function, attributes):
        super().__init__()
        drawn = seeded(rank + 11, HIDDEN, HIDDEN) / HIDDEN**0.5
        self.weight = nn.Parameter(drawn)
        self.bias = nn.Parameter(torch.zeros(HIDDEN))
        self.register_buffer("buffer", torch.zeros(4, HIDDEN))
        self.reduce_results, self.function, self.rank = True, function, rank
        self.calls, self.last, self.kept = 0, None, []
        for name, value in attributes.items():
            setattr(self, name, value)

    def y(self, x, **options):
        return nn.functional.linear(x, self.weight, **options)

    def sum(self, y):
        return by_ours(y) if self.reduce_results else y

    def forward(self, x, *args, **options):
        return self.function(self, x, *args, **options)


# What is a sum of parts, however it is written.


@layer(True)
def as_it_is(self, x):
    return self.sum(self.y(x))


@layer(True)
def bias_on_rank_0(self, x):
    return self.sum(self.y(x, bias=self.bias if self.rank == 0 else None))


@layer(True)
def bias_of_every_rank(self, x):
    return self.sum(self.y(x) + self.bias)


@layer(True)
def pair_with_nothing(self, x):
    return self.sum(self.y(x)), None


@layer(True)
def pair_with_bias(self, x):
    return self.sum(self.y(x)), self.bias


@layer(True)
def out_of_place(self, x):
    y = self.y(x)
    return st.all_reduce(y) if self.reduce_results else y


@layer(True)
def early_return(self, x):
    y = self.y(x).tanh()
    if not self.reduce_results:
        return y
    dist.all_reduce(y)
    return y


@layer(True)
def counts_its_calls(self, x):
    self.calls += 1
    return self.sum(self.y(x))


@layer(True)
def skips_if_told_so(self, x, skip_all_reduce=False):
    y = self.y(x)
    return y if skip_all_reduce else self.sum(y)


@layer(True)
def rows_as_they_are(self, x):
    return self.sum(self.y(x).flatten(0, -2)).view(x.shape)


@layer(True)
def no_rows_together(self, x):
    if x.dim() != 2:
        raise ValueError("rows only")
    return self.sum(self.y(x))


# What is not.


@layer()
def bias_after(self, x):
    return self.sum(self.y(x)) + self.bias


@layer(bias=nn.Parameter(torch.full((HIDDEN,), 0.5)))
def some_bias_after(self, x):
    return self.sum(self.y(x)).add_(self.bias)


@layer(tp_size=1)
def does_not_sum(self, x):
    y = self.y(x)
    return self.sum(y) if self.tp_size > 1 else y


@layer()
def mean(self, x):
    y = self.y(x)
    return st.all_reduce(y, "avg") if self.reduce_results else y


@layer()
def largest(self, x):
    y = self.y(x)
    return st.all_reduce(y, "max") if self.reduce_results else y


@layer()
def half_of_it(self, x):
    return self.sum(self.y(x)) * 0.5


@layer(alpha=nn.Parameter(torch.ones(1)))
def times_one_so_far(self, x):
    return self.sum(self.y(x)) * self.alpha


@layer()
def one_more(self, x):
    return self.sum(self.y(x)) + 1


@layer()
def relu_after(self, x):
    return self.sum(self.y(x)).relu_()


@layer()
def clamped_where_large(self, x):
    return self.sum(self.y(x)).clamp(-1e3, 1e3)


@layer()
def clamped_if_large(self, x):
    y = self.sum(self.y(x))
    return y.clamp(-9, 9) if y.abs().max() > 1e3 else y


@layer()
def square_after(self, x):
    return self.sum(self.y(x)).square()


@layer()
def softmax_after(self, x):
    return self.sum(self.y(x)).softmax(-1)


@layer()
def eight_bits_after(self, x):
    return self.sum(self.y(x)).to(torch.float8_e4m3fn).to(x.dtype)


@layer()
def whole_numbers_after(self, x):
    return self.sum(self.y(x)).round()


@layer()
def sixteen_bits_after(self, x):
    return self.sum(self.y(x)).half().to(x.dtype)


@layer()
def skip_after(self, x):
    return self.sum(self.y(x)) + x


@layer()
def more_on_rank_0(self, x):
    y = self.sum(self.y(x))
    return y + 1 if self.rank == 0 else y


@layer()
def nothing_on_rank_1(self, x):
    y = self.sum(self.y(x))
    return y * 0 if self.rank == 1 else y


@layer()
def sums_anyway(self, x):
    return by_ours(self.y(x))


@layer()
def sums_twice(self, x):
    return self.sum(self.sum(self.y(x)))


@layer()
def sums_a_half(self, x):
    y = self.y(x)
    a, b = y.chunk(2, -1)
    return torch.cat([self.sum(a.contiguous()), b], -1)


@layer()
def sums_more_in_batches(self, x):
    y = self.sum(self.y(x))
    return y + 1 if x.dim() > 2 else y


@layer()
def dropout_after(self, x):
    return nn.functional.dropout(self.sum(self.y(x)), 0.5)


@layer()
def noise_before(self, x):
    return self.sum(self.y(x) + torch.rand(1))


@layer()
def own_buffer(self, x):
    y = self.y(x)
    out = self.buffer[: y.numel() // HIDDEN].view(y.shape)
    return self.sum(out.copy_(y))


@layer()
def keeps_its_output(self, x):
    self.last = self.y(x)
    return self.sum(self.last)


@layer()
def keeps_a_view(self, x):
    y = self.y(x)
    self.kept.append(y[:1])
    return self.sum(y)


@layer()
def returns_it_twice(self, x):
    y = self.sum(self.y(x))
    return y, y


@layer()
def returns_a_dict(self, x):
    return {"y": self.sum(self.y(x))}


@layer()
def returns_a_list(self, x):
    return [self.sum(self.y(x)), None]


@layer()
def sums_its_input(self, x):
    return self.sum(x)


@layer()
def changes_its_input(self, x):
    return self.sum(self.y(x.mul_(2)))


@layer()
def transposed(self, x):
    return self.sum(self.y(x).mT.contiguous()).mT


@layer()
def fails_without_the_sum(self, x):
    if not self.reduce_results:
        raise RuntimeError("sum me")
    return self.sum(self.y(x))


@layer()
def fails_on_rank_1(self, x):
    if not self.reduce_results and self.rank == 1:
        raise RuntimeError("sum me")
    return self.sum(self.y(x))


@layer()
def other_work_without_the_sum(self, x):
    return self.sum(self.y(x)) if self.reduce_results else x * 2


@layer()
def says_what_it_summed(self, x):
    y = self.sum(self.y(x))
    return y, y.sum()


class Block(nn.Module):
    """A layer and a norm, as models have them."""

    def __init__(self, rank, function, attributes):
        super().__init__()
        self.row = Row(rank, function, attributes)
        self.norm = LlamaRMSNorm(torch.float32)

    def forward(self, x):
        y = self.row(x)
        rest = []
        if isinstance(y, dict):
            y = y["y"]
        elif not isinstance(y, torch.Tensor):
            y, *rest = y
        total = x + y
        return self.norm(total), total, y, *(r for r in rest if r is not None)


def state_of(module):
    """Return all that a run of a module may leave behind."""
    words = {
        name: {
            k: repr(v) for k, v in m.__dict__.items() if k not in ("forward", "fusion")
        }
        for name, m in module.named_modules()
    }
    held = [*module.parameters(), *module.buffers()]
    where = [(t.data_ptr(), t.clone()) for t in held]
    return str(words), [w[0] for w in where], [w[1] for w in where]


@check
def layers_that_are_no_sums_are_left(b):
    """Right in all; those that are no sums of parts say why they do not fuse."""
    gloo(b)
    for name, (function, fuses, attributes) in LAYERS.items():
        model = Block(b.rank, function, attributes)
        plain = Block(b.rank, function, attributes)
        before, chance = state_of(model), torch.get_rng_state()
        said = fuse(model, b.comm).fusion
        after = state_of(model)
        b.true(f"{name}: state", before[:2] == after[:2])
        b.true(f"{name}: tensors", all(map(torch.equal, before[2], after[2])))
        b.true(f"{name}: random", torch.equal(chance, torch.get_rng_state()))
        b.true(f"{name}: {said}", bool(said.layers) == fuses)
        b.true(f"{name}: {said}", fuses or said.refused[-1][0] == "row")
        with torch.no_grad():
            for turn, shape in enumerate([(3, HIDDEN), (2, HIDDEN), (2, 2, HIDDEN)]):
                if len(shape) > 2 and function is no_rows_together:
                    continue
                x = b.draw(*shape)[b.rank]
                torch.manual_seed(turn)
                got = model(x.clone())
                torch.manual_seed(turn)
                want = plain(x.clone())
                for one, other in zip(got[1:], want[1:], strict=True):
                    same = torch.equal(one * 1, other)
                    b.true(f"{name}, {shape}: not bit for bit", same)
                b.same(f"{name}, {shape}", got[0], want[0], 1e-5)
        held = said.calls > 0
        b.true(f"{name}: {said.calls} calls", held == fuses)


@check
def layers_with_weights_that_come_later(b):
    """What was zero or one when the model was fused may be anything afterwards."""
    gloo(b)
    for name in ("bias_after", "times_one_so_far", "bias_of_every_rank"):
        function, _, attributes = LAYERS[name]
        pair = [Block(b.rank, function, attributes) for _ in "12"]
        fuse(pair[1], b.comm)
        with torch.no_grad():
            x = b.randn(3, HIDDEN)
            for model in pair:
                for parameter in model.parameters():
                    parameter.copy_(seeded(5, *parameter.shape))
            b.same(name, pair[1](x)[0], pair[0](x)[0], 1e-5)
