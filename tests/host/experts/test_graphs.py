"""Experts in one graph of torch.compile: results and gradients are those without."""

from __future__ import annotations

import pytest

import stretto

torch = pytest.importorskip("torch")

pytestmark = [pytest.mark.host, pytest.mark.timeout(240)]

KINDS = (("expert", "rank"), ("expert", "k"), ("token", "rank"), ("rank", "rank"))


class Layer(torch.nn.Module):
    """A layer of experts whose rows may have room that nothing came to."""

    def __init__(self, comm, layout, order, align):
        super().__init__()
        self.ep = comm.experts(
            6, 3, 32, 16, layout=layout, order=order, dtype="float32", align=align,
            placement=[0, 1, 1, 0, 1, 0],
        )  # fmt: skip
        made = torch.Generator().manual_seed(comm.rank)
        self.scale = torch.nn.Parameter(torch.rand(32, generator=made) + 0.5)

    def forward(self, x, ids, weights):
        sent = self.ep.dispatch(x, ids, weights)
        rows = torch.tanh(sent.rows * self.scale)
        if self.ep.geometry.layout == "token":
            used = sent.weights.masked_fill(sent.ids < 0, 0).sum(1, keepdim=True)
            rows = rows * used[: len(rows)]
        return self.ep.combine(rows, sent)


def ran(layer, given, aim):
    """Return a result, and gradients of everything."""
    leaves = [given[0].clone().requires_grad_(), given[2].clone().requires_grad_()]
    out = layer(leaves[0], given[1], leaves[1])
    layer.zero_grad()
    (out * aim).sum().backward()
    return [out.detach(), *(one.grad for one in leaves), layer.scale.grad.clone()]


def compiled(comm, kinds, backend, fullgraph=True):
    """Return how far compiled layers are from plain ones."""
    torch.set_num_threads(1)
    found = []
    for layout, order in kinds:
        align = 4 if layout == "expert" else 1
        layer = Layer(comm, layout, order, align)
        graph = torch.compile(layer, fullgraph=fullgraph, backend=backend, dynamic=True)
        off = 0.0
        for seed in range(3):
            made = torch.Generator().manual_seed(10 * comm.rank + seed)
            tokens = (5 + 3 * comm.rank, 9, 4)[seed]
            given = (
                torch.randn(tokens, 32, generator=made),
                torch.randint(-1, 6, (tokens, 3), generator=made),
                torch.rand(tokens, 3, generator=made),
            )
            aim = torch.randn(tokens, 32, generator=made)
            both = [ran(one, given, aim) for one in (layer, graph)]
            for a, b in zip(*both, strict=True):
                if a is None or b is None:
                    assert a is b or not (a if b is None else b).any(), layout
                    continue
                off = max(off, float((a - b).abs().max()))
        found.append(off)
    return found


def test_one_graph_gives_the_same():
    """With other numbers of tokens at each call."""
    for found in stretto.spawn(
        compiled, KINDS[1:3], "aot_eager", num_ranks=2, deadline_s=120
    ):
        assert max(found) < 1e-5


@pytest.mark.slow
def test_compiled_code_gives_the_same():
    """By inductor, and of every layout and order."""
    for backend in ("aot_eager", "inductor"):
        for found in stretto.spawn(
            compiled, KINDS, backend, num_ranks=2, deadline_s=200
        ):
            assert max(found) < 1e-5


def served(comm):
    """Return whether a graph of fp8 rows has those of a plain call."""
    torch.set_num_threads(1)
    ep = comm.experts(4, 2, 128, 8, quantise="fp8_128", dtype="bfloat16")
    x = torch.randn(5, 128).bfloat16()
    ids = torch.tensor([[0, 3], [1, -1], [2, 2], [-1, -1], [3, 0]])

    def both(x, ids):
        sent = ep.dispatch(x, ids)
        return sent.rows, sent.scales, sent.counts

    with torch.no_grad():
        plain = both(x, ids)
        graph = torch.compile(both, fullgraph=True, backend="aot_eager")(x, ids)
        many = len(plain[0])
        same = torch.equal(
            plain[0].view(torch.uint8), graph[0][:many].view(torch.uint8)
        )
        rest = not graph[0][many:].view(torch.uint8).any()
    x = x.clone().requires_grad_()
    try:
        torch.compile(both, fullgraph=True, backend="aot_eager")(x, ids)
    except Exception as e:
        said = "a gradient through quantise" in str(e)
    return same, rest, said, torch.equal(plain[1], graph[1][:many])


def test_fp8_rows_in_a_graph():
    """The same bits, zeros behind them; no gradient."""
    assert [(True,) * 4] * 2 == stretto.spawn(served, num_ranks=2)


def checked(comm):
    """Let PyTorch judge both operators, on a rank alone."""
    ep = comm.experts(4, 2, 8, 6, dtype="float32")
    x = torch.randn(5, 8, requires_grad=True)
    weights = torch.rand(5, 2, requires_grad=True)
    ids = torch.randint(-1, 4, (5, 2))
    from stretto.experts.operators import OPS

    tests = ("test_schema", "test_autograd_registration", "test_faketensor")
    given = x, ids, weights, ep.name
    torch.library.opcheck(OPS.experts_dispatch.default, given, test_utils=tests)
    rows, _, got_ids, got, *_, way = OPS.experts_dispatch(*given)
    given = rows, got, ids, weights, got_ids, way, True, ep.name
    torch.library.opcheck(OPS.experts_combine.default, given, test_utils=tests)
    return True


def test_operators_are_what_they_say():
    """Schemas, shapes and registrations."""
    assert [True] == stretto.spawn(checked, num_ranks=1)
