"""Gradients through experts on several ranks are those of the same layer on one."""

from __future__ import annotations

import numpy as np
import pytest

import stretto

torch = pytest.importorskip("torch")

pytestmark = [pytest.mark.host, pytest.mark.timeout(120)]


def layer(x, ids, weights, scales):
    """Return what a layer of experts gives, on one rank."""
    out = torch.zeros_like(x)
    for j in range(ids.shape[1]):
        chosen = ids[:, j] >= 0
        made = torch.tanh(x * scales[ids[:, j].clamp(min=0)][:, None])
        out = out + torch.where(chosen[:, None], made * weights[:, j, None], 0)
    return out


def by_source(sent, scales):
    """Return the layer's rows of layout "rank": what is behind them stays zero."""
    rows, at = [], 0
    for part, count in zip(sent.rows, sent.sources.tolist(), strict=True):
        mine = slice(at, at + count)
        made = layer(part[:count], sent.ids[mine].long(), sent.weights[mine], scales)
        rows.append(torch.nn.functional.pad(made, (0, 0, 0, len(part) - count)))
        at += count
    return torch.stack(rows)


def trained(comm, layout, order, dtype):
    """Return how far gradients are from those of one rank."""
    made = torch.Generator().manual_seed(3)
    scales = torch.rand(6, generator=made) + 0.5
    made.manual_seed(10 + comm.rank)
    tokens = 5 + 3 * comm.rank
    x = torch.randn(tokens, 32, generator=made).to(dtype)
    ids = torch.randint(-1, 6, (tokens, 3), generator=made)
    weights = torch.rand(tokens, 3, generator=made)
    aim = torch.randn(tokens, 32, generator=made)
    both = []
    for spread in (False, True):
        one = [t.clone().requires_grad_() for t in (x, weights, scales)]
        if spread:
            ep = comm.experts(
                6, 3, 32, 16, layout=layout, order=order,
                dtype=str(dtype).removeprefix("torch."), placement=[0, 1, 1, 0, 1, 0],
            )  # fmt: skip
            sent = ep.dispatch(one[0], ids, one[1])
            mine = torch.tensor(
                [e for e in range(6) if ep.geometry.owner[e] == comm.rank]
            )
            if layout == "expert":
                counts = sent.starts[1:] - sent.starts[:-1]
                per_line = one[2][mine].repeat_interleave(counts)
                rows = torch.tanh(sent.rows * per_line[:, None]).to(dtype)
            elif layout == "token":
                rows = layer(sent.rows, sent.ids.long(), sent.weights, one[2][mine]).to(
                    dtype
                )
            else:
                rows = by_source(sent, one[2][mine])
            out = ep.combine(rows, sent)
        else:
            out = layer(one[0].float(), ids, one[1], one[2])
        (out.float() * aim).sum().backward()
        if spread:
            one[2].grad = torch.from_numpy(comm.all_reduce(one[2].grad.numpy().copy()))
        both.append([t.grad for t in one])
    alone = torch.from_numpy(comm.all_reduce(both[0][2].numpy().copy()))
    both[0][2] = alone
    return [
        float((a.float() - b.float()).abs().max()) for a, b in zip(*both, strict=True)
    ]


def all_kinds(comm):
    torch.set_num_threads(1)
    kinds = [("expert", "rank"), ("expert", "k"), ("token", "rank"), ("rank", "rank")]
    found = [trained(comm, *kind, torch.float32) for kind in kinds]
    found.append([one / 30 for one in trained(comm, "expert", "rank", torch.bfloat16)])
    return np.array(found).max(1).tolist()


def test_gradients_are_those_of_one_rank():
    """Of tokens, of weights, and of the experts' own parameters."""
    for errors in stretto.spawn(all_kinds, num_ranks=2):
        assert 5 == len(errors)
        assert max(errors[:4]) < 1e-4, errors
        assert errors[4] < 5e-3, errors


def refused(comm):
    ep = comm.experts(4, 2, 128, 4, quantise="fp8_128", dtype="float32")
    x = torch.ones(2, 128, requires_grad=True)
    try:
        ep.dispatch(x, torch.zeros(2, 2, dtype=torch.int64))
    except stretto.CallError as e:
        return str(e)
    return ""


def test_a_gradient_through_fp8_is_refused():
    """It would be one of another function."""
    (said,) = stretto.spawn(refused, num_ranks=1)
    assert "a gradient through quantise='fp8_128'" in said
