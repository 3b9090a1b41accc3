"""Modules called RMSNorm: those that are one, in whatever form, fuse; others are left.

Each is (self, x or x and residual; whether it fuses).
"""

import torch
from tests.host.torch_ops.fusions import HIDDEN, by_ours
from torch import nn

NORMS = {}


def norm(fuses=False, pair=False, **attributes):
    """Register a norm; `pair` says that it takes a residual too, or only that."""

    def add(function):
        NORMS[function.__name__] = function, fuses, pair, attributes
        return function

    return add


class MadeRMSNorm(nn.Module):
    """A weight, eps, and whatever a function makes of them."""

    def __init__(self, function, attributes, dtype=torch.float32):
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, HIDDEN).to(dtype))
        self.bias = nn.Parameter(torch.zeros(HIDDEN, dtype=dtype))
        self.eps, self.function, self.calls, self.out = 1e-5, function, 0, None
        for name, value in attributes.items():
            setattr(self, name, value)

    def scale(self, x, axis=-1, eps=None):
        eps = self.eps if eps is None else eps
        return torch.rsqrt(x.float().pow(2).mean(axis, keepdim=True) + eps)

    def plain(self, x):
        return (x.float() * self.scale(x)).to(x.dtype) * self.weight

    def forward(self, *args):
        return self.function(self, *args)


# Forms of the norm.


@norm(True)
def llama(self, x):
    return self.plain(x)


@norm(True)
def of_torch(self, x):
    return nn.functional.rms_norm(x, (HIDDEN,), self.weight, self.eps)


@norm(True)
def rounded_once(self, x):
    return (x.float() * self.scale(x) * self.weight.float()).to(x.dtype)


@norm(True)
def by_a_root(self, x):
    root = (x.float().square().sum(-1, keepdim=True) / x.shape[-1] + self.eps).sqrt()
    return (x.float() / root).to(x.dtype) * self.weight


@norm(True)
def gemma(self, x):
    return (x.float() * self.scale(x) * (1.0 + self.weight.float())).to(x.dtype)


@norm(True)
def gemma_narrow(self, x):
    return (x.float() * self.scale(x)).to(x.dtype) * (self.weight + 1)


@norm(True, variance_epsilon=0.5)
def with_two_eps(self, x):
    return self.plain(x)


@norm(True)
def counts(self, x):
    self.calls += 1
    return self.plain(x)


@norm(True, pair=True)
def pair(self, x, residual=None):
    if residual is None:
        return self.plain(x)
    total = x.float() + residual.float()
    out = (total * self.scale(total) * self.weight.float()).to(x.dtype)
    return out, total.to(x.dtype)


@norm(True, pair="only")
def pair_alone(self, x, residual):
    total = x + residual
    return self.plain(total), total


@norm(True, pair=True)
def pair_in_place(self, x, residual=None):
    if residual is None:
        return self.plain(x)
    residual.add_(x)
    x.copy_(self.plain(residual))
    return x, residual


@norm(True, pair="only")
def residual_in_place(self, x, residual):
    residual += x
    return self.plain(residual), residual


@norm(True, pair="only")
def gemma_pair(self, x, residual):
    total = x + residual
    out = total.float() * self.scale(total) * (1.0 + self.weight.float())
    return out.to(x.dtype), total


# What is none of these.


@norm()
def eps_outside(self, x):
    root = x.float().pow(2).mean(-1, keepdim=True).sqrt() + self.eps
    return (x.float() / root).to(x.dtype) * self.weight


@norm()
def eps_outside_both(self, x):
    return self.plain(x) + self.eps


@norm()
def eps_as_a_floor(self, x):
    mean = x.float().pow(2).mean(-1, keepdim=True).clamp(min=self.eps)
    return (x.float() * torch.rsqrt(mean)).to(x.dtype) * self.weight


@norm()
def another_eps(self, x):
    scale = self.scale(x, eps=self.eps * 1.1)
    return (x.float() * scale).to(x.dtype) * self.weight


@norm()
def no_eps(self, x):
    return (x.float() * self.scale(x, eps=0)).to(x.dtype) * self.weight


@norm(eps=0)
def eps_is_no_number(self, x):
    return self.plain(x)


@norm()
def layer_norm(self, x):
    return nn.functional.layer_norm(x, (HIDDEN,), self.weight, None, self.eps)


@norm()
def layer_norm_with_its_mean(self, x):
    made = nn.functional.layer_norm(x, (HIDDEN,), self.weight, None, self.eps)
    return made + x.mean(-1, keepdim=True) * self.scale(x)


@norm()
def bias_later(self, x):
    return self.plain(x) + self.bias


@norm(weight=nn.Parameter(torch.ones(HIDDEN)))
def no_weight(self, x):
    return (x.float() * self.scale(x)).to(x.dtype)


@norm(weight=nn.Parameter(torch.ones(HIDDEN)))
def weight_squared(self, x):
    return self.plain(x) * self.weight


@norm(weight=nn.Parameter(torch.ones(HIDDEN)))
def weight_by_its_size(self, x):
    return self.plain(x) * self.weight.sign()


@norm()
def weight_turned(self, x):
    return (x.float() * self.scale(x)).to(x.dtype) * self.weight.flip(0)


@norm()
def by_absolute_values(self, x):
    mean = x.float().abs().mean(-1, keepdim=True) ** 2
    return (x.float() * torch.rsqrt(mean + self.eps)).to(x.dtype) * self.weight


@norm()
def over_the_first_axis(self, x):
    return (x.float() * self.scale(x, 0)).to(x.dtype) * self.weight


@norm()
def over_all(self, x):
    axes = tuple(range(x.dim()))
    return (x.float() * self.scale(x, axes)).to(x.dtype) * self.weight


@norm()
def over_half(self, x):
    scale = self.scale(x[..., : HIDDEN // 2])
    return (x.float() * scale).to(x.dtype) * self.weight


@norm()
def over_rows_of_batches(self, x):
    axes = (-2, -1) if x.dim() > 2 else -1
    return (x.float() * self.scale(x, axes)).to(x.dtype) * self.weight


@norm()
def one_less_in_the_mean(self, x):
    mean = x.float().pow(2).sum(-1, keepdim=True) / (HIDDEN - 1)
    return (x.float() * torch.rsqrt(mean + self.eps)).to(x.dtype) * self.weight


@norm()
def computed_narrow(self, x):
    x = x.to(torch.bfloat16)
    scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)
    return (x * scale).float() * self.weight


@norm()
def clamped(self, x):
    return self.plain(x.clamp(-60, 60))


@norm()
def only_if_large(self, x):
    return self.plain(x) if x.abs().max() > 1 else x * self.weight


@norm()
def small_ones_kept(self, x):
    return torch.where(x.abs() < 1e-5, x, self.plain(x))


@norm()
def wide_result(self, x):
    return self.plain(x).double()


@norm()
def eight_bits(self, x):
    return self.plain(x).to(torch.float8_e4m3fn).to(x.dtype)


@norm()
def in_place(self, x):
    return x.copy_(self.plain(x))


@norm()
def by_chance(self, x):
    return self.plain(x) + torch.rand(1) * 0


@norm()
def of_all_ranks(self, x):
    mean = x.float().pow(2).mean(-1, keepdim=True)
    return (x * torch.rsqrt(by_ours(mean) / 2 + self.eps)) * self.weight


@norm()
def as_a_tuple(self, x):
    return (self.plain(x),)


@norm()
def fails(self, x):
    if x.abs().max() < 1e3:
        return self.plain(x)
    raise RuntimeError("too large")


@norm(pair="only")
def second_is_a_scale(self, x, scale):
    return self.plain(x) * scale, x + scale


@norm(pair="only")
def second_is_weighed(self, x, residual):
    total = x + 0.5 * residual
    return self.plain(total), total


@norm(pair="only")
def other_order(self, x, residual):
    total = x + residual
    return total, self.plain(total)


@norm(pair="only")
def added_afterwards(self, x, residual):
    return self.plain(x) + residual, x + residual


@norm(pair="only")
def residual_as_it_was(self, x, residual):
    return self.plain(x + residual), residual


@norm(pair="only")
def sum_rounded(self, x, residual):
    total = (x + residual).bfloat16().to(x.dtype)
    return self.plain(total), total
