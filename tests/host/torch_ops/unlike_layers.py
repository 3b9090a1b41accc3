"""Layers that look like row-parallel ones: those that are, fuse; all others are left.

Each is a change to one layer: (how, whether it may hold back its sum).
"""

import torch
import torch.distributed as dist
from tests.host.torch_ops.checks import seeded
from tests.host.torch_ops.fusions import HIDDEN, by_ours
from torch import nn

import stretto.torch.operators as st

LAYERS = {}


def layer(fuses=False, **attributes):
    """Register a layer: a function of (self, x) that sums if `self.reduce_results`."""

    def add(function):
        LAYERS[function.__name__] = function, fuses, attributes
        return function

    return add


class ChangedRow(nn.Module):
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
