"""What models do with a sum that a layer holds back: right, whatever it is.

Each is a function of (model, x) that returns tensors; the model's row and norm fuse.
"""

import contextlib
import copy
import pickle

import numpy as np
import torch
import torch.distributed as dist
from tests.host.torch_ops.fusions import LlamaRMSNorm, Row, by_ours
from tests.host.torch_ops.unlike_norms import MadeRMSNorm, pair_in_place
from torch import nn

import stretto.torch.operators as st

USES = {}
AT_LEAST_ONE_CALL = set()


def use(function=None, *, fuses=False):
    """Register a use; `fuses` says that it still makes fused calls."""
    if function is None:
        return lambda made: use(made, fuses=fuses)
    USES[function.__name__] = function
    if fuses:
        AT_LEAST_ONE_CALL.add(function.__name__)
    return function


class Model(nn.Module):
    """Two layers and two norms, for functions to use."""

    def __init__(self, rank):
        super().__init__()
        self.rank = rank
        self.row = Row(rank, torch.float32, by_ours)
        self.other = Row(rank + 7, torch.float32, by_ours)
        self.norm, self.last = LlamaRMSNorm(torch.float32), LlamaRMSNorm(torch.float32)
        self.paired = MadeRMSNorm(pair_in_place, {})


# Residuals that change.


@use(fuses=True)
def residual_changed(m, x):
    total = x + m.row(x)
    x.add_(1)
    return m.norm(total), total, x


@use(fuses=True)
def residual_zeroed_by_a_view(m, x):
    view = x[:1]
    total = m.row(x) + x
    view.zero_()
    return m.norm(total), total


@use(fuses=True)
def residual_filled_by_its_storage(m, x):
    total = m.row(x) + x
    x.untyped_storage().fill_(0)
    return m.norm(total), total


@use(fuses=True)
def residual_changed_as_numpy(m, x):
    numbers = x.numpy() if x.is_cpu else x.detach()  # a GPU's memory has no NumPy
    total = m.row(x) + x
    numbers[:] = 3
    return m.norm(total), total


@use(fuses=True)
def chain(m, x):
    a = x + m.row(x)
    b = a + m.other(m.norm(a))
    return m.last(b), a, b


@use(fuses=True)
def chain_changed(m, x):
    a = x + m.row(x)
    y = m.norm(a)
    b = a + m.other(y)
    a.mul_(3)
    return m.last(b), a, b


@use(fuses=True)
def chain_changed_by_an_alias(m, x):
    a = x + m.row(x)
    y = m.norm(a)
    alias = a.detach()
    b = a + m.other(y)
    alias.zero_()
    return m.last(b), a, b


@use(fuses=True)
def chain_changed_by_a_kept_view(m, x):
    a = x + m.row(x)
    y = m.norm(a)
    b = a + m.other(y)
    view = a[1:]
    view += 1
    return m.last(b), a, b


# Parts that change, or are looked at.


@use
def part_changed(m, x):
    y = m.row(x)
    total = x + y
    y.mul_(2)
    return m.norm(total), y, total


@use
def part_changed_before(m, x):
    y = m.row(x)
    y += 1
    return m.norm(x + y), y


@use
def part_set(m, x):
    y = m.row(x)
    y[0] = 5
    y[1:, 3] = x[1:, 4]
    return m.norm(x + y), y


@use(fuses=True)
def part_used_afterwards(m, x):
    y = m.row(x)
    total = x + y
    return m.norm(total), y * 2, total * 3


@use(fuses=True)
def normed_twice(m, x):
    total = x + m.row(x)
    return m.norm(total), m.last(total), m.norm(total)


@use(fuses=True)
def added_twice(m, x):
    y = m.row(x)
    return m.norm(x + y), m.last(2 * x + y)


@use
def printed(m, x):
    y = m.row(x)
    said = [torch.tensor([len(str(y)), len(repr(y)), len(f"{y[0, 0]:.3f}")])]
    return m.norm(x + y), *said


@use(fuses=True)
def asked_for_its_shape(m, x):
    y = m.row(x)
    total = x + y
    assert total.shape == x.shape == y.size()
    assert (y.dtype, y.device, y.dim()) == (x.dtype, x.device, x.ndim)
    assert isinstance(y, torch.Tensor)
    assert isinstance(total, torch.Tensor)
    return m.norm(total), total


@use
def looked_at(m, x):
    y = m.row(x)
    looks = (
        *(y.sum(), y.mean(-1), y.max(), y.norm(), y[0], y[..., 2:4], y.T, y.flatten()),
        *(y.detach(), y.clone(), y.data, y.double(), y.view(-1), y.abs(), y.tanh()),
        *(torch.tensor(y.tolist()), torch.from_numpy(y.cpu().numpy())),
        torch.tensor(len(y)),
        *(
            torch.from_numpy(np.asarray(y if y.is_cpu else y.cpu())),
            torch.from_dlpack(y),
            y == y,
            y > 0,
        ),
        *(torch.tensor(y[0, 0].item()), torch.tensor(bool(y.sum() > 0)), y.unbind()[0]),
        *(next(iter(y)), torch.tensor(y.stride()), torch.tensor(y.nbytes)),
    )
    return tuple(one.clone() for one in looks)


@use
def each_look_is_the_first(m, x):
    looks = (
        *(torch.sum, torch.relu, torch.clone, torch.detach, torch.neg, torch.isnan),
        *(lambda y: torch.cat([y, x]), lambda y: torch.stack([x, y])[1]),
        *(lambda y: torch.where(x > 0, y, x), lambda y: nn.functional.gelu(y)),
        *(lambda y: nn.functional.linear(y, m.row.weight), lambda y: y @ x.T),
        *(lambda y: torch.einsum("ij,kj->ik", x, y), lambda y: 1 - y, lambda y: y / 2),
        *(lambda y: 2 ** y.sigmoid(), lambda y: y.to(torch.float64), lambda y: x * y),
        *(lambda y: nn.functional.dropout(y, 0.3, training=False), lambda y: y.half()),
        *(lambda y: torch.ops.aten.sin(y), lambda y: x.clone().copy_(y), lambda y: -y),
        *(lambda y: x.masked_fill(y > 0, 1), lambda y: torch.maximum(x, y)),
        *(lambda y: torch.add(x, y, alpha=2), lambda y: torch.add(x, y, out=x.clone())),
        *(lambda y: x - y, lambda y: x.clone().add_(y), lambda y: y.add(x, alpha=3)),
        *(lambda y: copy.deepcopy(y), lambda y: copy.copy(y), lambda y: y.contiguous()),
        *(lambda y: pickle.loads(pickle.dumps(y)), lambda y: torch.zeros_like(y)),
        *(
            lambda y: x[:1] + y,
            lambda y: x.double() + y,
            lambda y: y + 1,
            lambda y: y + y,
        ),
        *(lambda y: x.half() + y, lambda y: x.T.contiguous().T + y, lambda y: 2 + y),
        *(lambda y: torch.index_select(y, 0, torch.tensor([1])), lambda y: y.cpu()),
        *(lambda y: torch.utils._pytree.tree_map(torch.sin, {"y": [y]})["y"][0],),
    )
    return tuple(look(m.row(x)) for look in looks)


@use
def in_place_on_the_residual(m, x):
    alias = x[:]
    x += m.row(x)
    return m.norm(x), alias


@use
def copied_into(m, x):
    y = torch.zeros_like(x)
    y.copy_(m.row(x))
    z = torch.zeros(2, *x.shape)
    z[1] = m.other(x)
    return m.norm(x + y), z


@use
def parameters_as_residual(m, x):
    return (m.norm(m.row(x) + m.norm.weight.expand(x.shape)),)


@use
def its_memory(m, x):
    y = m.row(x)
    flat = torch.frombuffer(bytearray(y.untyped_storage()), dtype=y.dtype)
    assert m.row(x).data_ptr() != 0
    return (flat.view(x.shape),)


@use
def reduced_again(m, x):
    y = m.row(x)
    dist.all_reduce(y)
    z = m.row(x)
    st.all_reduce_(z)
    return m.norm(x + y), y, z


@use
def gathered(m, x):
    y = m.row(x)
    parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, y)
    return *parts, st.all_gather(m.row(x))


@use
def kept_in_a_list(m, x):
    kept = [m.row(x), m.other(x), m.row(2 * x)]
    return m.norm(x + kept[0]), m.norm(x + kept[2]), m.last(x + kept[1])


@use(fuses=True)
def side_by_side(m, x):
    return (m.norm(x + m.row(x) + m.other(x)),)


@use
def on_one_rank_only(m, x):
    y = m.row(x)
    said = y.sum() if m.rank == 0 else None
    out = m.norm(x + y)
    assert said is None or said == y.sum()
    return (out,)


@use
def on_one_rank_and_then_another_layer(m, x):
    y = m.row(x)
    if m.rank == 1:
        str(y)
    return m.other(x) * 1, m.norm(x + y)


@use
def dropped_on_one_rank(m, x):
    y = m.row(x)
    if m.rank == 0:
        y = y * 2
    del y
    return (m.norm(x + m.other(x)),)


@use
def dropped_on_all(m, x):
    m.row(x)
    return (m.norm(x + m.other(x)),)


@use
def an_error_between(m, x):
    total = x + m.row(x)
    with contextlib.suppress(TypeError):
        torch.cat([total, "no tensor"])
    return m.norm(total), total
