"""What the operators and plain functions have to do, said with plain PyTorch."""

import torch
from tests.host.torch_ops.checks import check
from torch.library import opcheck

import stretto.torch.operators as st
from stretto.errors import CallError

OPS = torch.ops.stretto


def forms(b):
    """Return (what, function, inputs, want) of every call that makes a new tensor.

    `want` maps everybody's inputs to everybody's outputs, in plain PyTorch.
    """
    return [*even_forms(b), *uneven_forms(b), *rooted_forms(b)]


def summed(xs):
    return torch.stack(list(xs)).sum(0)


def even_forms(b):
    """Return the forms in which all ranks give and get as much."""
    n, g = b.n, st.named(b.comm)

    def axes(xs):
        cut = [x.chunk(n, 1) for x in xs]
        return [torch.cat([cut[q][r] for q in range(n)], 0) for r in range(n)]

    wide = b.draw(2 * n, 3)
    drawn = b.draw(2, 2 * n, 3)
    return [
        ("all_reduce", lambda x: OPS.all_reduce(x, "sum", g), wide,
         lambda xs: [summed(xs)] * n),
        ("all_reduce avg", lambda x: OPS.all_reduce(x, "avg", g), wide,
         lambda xs: [summed(xs) / n] * n),
        ("all_gather", lambda x: OPS.all_gather(x, g), wide,
         lambda xs: [torch.cat(list(xs))] * n),
        ("all_gather dim", lambda x: st.all_gather(x, b.comm, dim=1), wide,
         lambda xs: [torch.cat(list(xs), 1)] * n),
        ("reduce_scatter", lambda x: OPS.reduce_scatter(x, "sum", g), wide,
         lambda xs: list(summed(xs).chunk(n))),
        ("reduce_scatter avg", lambda x: OPS.reduce_scatter(x, "avg", g), wide,
         lambda xs: list((summed(xs) / n).chunk(n))),
        ("reduce_scatter dim", lambda x: st.reduce_scatter(x, group=b.comm, dim=1),
         drawn, lambda xs: list(summed(xs).chunk(n, 1))),
        ("all_to_all", lambda x: OPS.all_to_all(x, g), wide,
         lambda xs: [torch.cat([x.chunk(n)[r] for x in xs]) for r in range(n)]),
        ("all_to_all_axes", lambda x: st.all_to_all(x, b.comm, split=1, concat=0),
         drawn, axes),
    ]  # fmt: skip


def uneven_forms(b):
    """Return the forms in which every rank's part has a size of its own."""
    n, g = b.n, st.named(b.comm)
    sizes, back = [r + 1 for r in range(n)], [b.rank + 1] * n

    def exchanged(xs):
        cut = [x.split(sizes) for x in xs]
        return [torch.cat([cut[q][r] for q in range(n)]) for r in range(n)]

    uneven = [x[: sizes[r]] for r, x in enumerate(b.draw(n, 3))]
    total = b.draw(sum(sizes), 3)
    return [
        ("all_gather_v", lambda x: OPS.all_gather_v(x, sizes, g), uneven,
         lambda xs: [torch.cat(list(xs))] * n),
        ("reduce_scatter_v", lambda x: OPS.reduce_scatter_v(x, sizes, "sum", g), total,
         lambda xs: list(summed(xs).split(sizes))),
        ("all_to_all_v", lambda x: OPS.all_to_all_v(x, back, sizes, g), total,
         exchanged),
    ]  # fmt: skip


def rooted_forms(b):
    """Return the forms that name ranks: a root, or whom each sends to."""
    n, g = b.n, st.named(b.comm)
    ring = [(r, (r + 1) % n) for r in range(n)]

    def gathered_at(xs, root):
        none = xs[0].new_zeros((0, *xs[0].shape[1:]))
        return [torch.cat(list(xs)) if r == root else none for r in range(n)]

    def at(xs, root, value):
        return [value if r == root else torch.zeros_like(xs[r]) for r in range(n)]

    def rung(xs):
        return [xs[(r - 1) % n] for r in range(n)]

    wide = b.draw(2 * n, 3)
    return [
        ("broadcast", lambda x: OPS.broadcast(x, n - 1, g), wide,
         lambda xs: [xs[n - 1]] * n),
        ("reduce", lambda x: OPS.reduce(x, "sum", 0, g), wide,
         lambda xs: at(xs, 0, summed(xs))),
        ("gather", lambda x: OPS.gather(x, n - 1, g), wide,
         lambda xs: gathered_at(xs, n - 1)),
        ("scatter", lambda x: OPS.scatter(x, [2, 3], 0, g), wide,
         lambda xs: list(xs[0].chunk(n))),
        ("permute", lambda x: st.permute(x, ring, b.comm), wide, rung),
    ]  # fmt: skip


@check
def values_and_gradients(b):
    """Every operator's values and gradient are those of the same in one process."""
    for what, call, xs, want in forms(b):
        ours = xs[b.rank].clone().requires_grad_()
        theirs = [x.clone().requires_grad_() for x in xs]
        with torch.no_grad():
            b.same(f"{what}, no gradient", call(xs[b.rank]), want(xs)[b.rank])
        made, due = call(ours), want(theirs)
        b.same(what, made.detach(), due[b.rank].detach())
        pulls = [b.randn(d.shape) for d in due]
        (made * pulls[b.rank]).sum().backward()
        sum((d * p).sum() for d, p in zip(due, pulls, strict=True)).backward()
        wanted = theirs[b.rank].grad
        if wanted is None:
            wanted = torch.zeros_like(ours)
        b.same(f"gradient of {what}", ours.grad, wanted)


@check
def in_place_and_out(b):
    """Forms that write keep the tensor they were given, strided ones too."""
    rows = 2 * b.n
    xs = b.draw(rows, 6)
    total = torch.stack(xs).sum(0)
    x = xs[b.rank].clone()
    b.true("all_reduce_ returns x", st.all_reduce_(x, group=b.comm) is x)
    b.same("all_reduce_", x, total)
    wide = torch.full((rows, 12), 7.0)
    wide[:, ::2] = xs[b.rank]
    st.all_reduce_(wide[:, ::2], "max", b.comm)
    b.same("strided all_reduce_", wide[:, ::2], torch.stack(xs).amax(0))
    b.same("between the strides", wide[:, 1::2], torch.full((rows, 6), 7.0))
    out = torch.empty(rows, 6)
    b.true("out is given back", st.all_reduce(x, "min", b.comm, out=out) is out)
    b.same("out", out, total)
    turned = xs[b.rank].t()
    b.same("of a transposed", st.all_reduce(turned, group=b.comm), total.t())
    out = torch.empty(rows * b.n, 6)
    st.all_gather(xs[b.rank], b.comm, out=out)
    b.same("all_gather out", out, torch.cat(xs))
    out = torch.empty(6, rows * b.n)
    st.all_gather(turned, b.comm, dim=1, out=out)
    b.same("all_gather dim out", out, torch.cat(xs).t())
    part = torch.empty(2, 6)
    st.reduce_scatter(xs[b.rank], "sum", b.comm, out=part)
    b.same("reduce_scatter out", part, total.chunk(b.n)[b.rank])
    x = xs[b.rank].clone()
    b.same("broadcast_", st.broadcast_(x, 1, b.comm), xs[1])
    st.barrier(b.comm)


@check
def types_and_sizes(b):
    """Types of all kinds, no elements, no axes."""
    g = b.comm
    for dtype in (torch.bfloat16, torch.float16, torch.int32, torch.int64, torch.uint8):
        x = torch.full((5,), b.rank + 1).to(dtype)
        want = torch.full((5,), sum(range(1, b.n + 1))).to(dtype)
        b.same(f"{dtype}", st.all_reduce(x, "sum", g), want)
    z = torch.full((3,), complex(b.rank, 1))
    made = st.all_reduce(z.conj(), "sum", g)
    b.true("conjugated complex", bool((made.imag == -b.n).all()))
    b.same(
        "a number", st.all_reduce(torch.tensor(2.0), "sum", g), torch.tensor(2.0 * b.n)
    )
    b.same(
        "of numbers",
        st.all_gather(torch.tensor(1.0 * b.rank), g),
        torch.arange(1.0 * b.n),
    )
    b.same("no elements", st.all_reduce(torch.zeros(0, 3), "sum", g), torch.zeros(0, 3))
    b.same("no rows", st.all_gather(torch.zeros(0, 3), g), torch.zeros(0, 3))


@check
def refusals(b):
    """What cannot be done is said, on every rank alike, and the next call is right."""
    x = torch.ones(2 * b.n + 1, 3)
    b.raises("odd rows", CallError, "divide", st.reduce_scatter, x, "sum", b.comm)
    b.raises(
        "one split",
        CallError,
        "both or none",
        st.all_to_all,
        x,
        b.comm,
        in_splits=[1] * b.n,
    )
    b.raises("a name", CallError, "nobody", st.all_reduce, x, "sum", "nobody")
    leaf = torch.ones(3, requires_grad=True)
    b.raises("in place", CallError, "gradient", st.all_reduce_, leaf, "sum", b.comm)
    made = st.all_reduce(leaf, "max", b.comm)
    b.raises("max", CallError, "no gradient", made.sum().backward)
    b.same("next", st.all_reduce(x, "sum", b.comm), b.n * x)


@check(slow=True)
def registered_well(b):
    """PyTorch's own checks of an operator: schema, shapes, gradient, tracing."""
    g = st.named(b.comm)
    x = b.randn(2 * b.n, 3)
    ring = list(range(b.n)), [(r + 1) % b.n for r in range(b.n)]
    cases = [
        (OPS.all_reduce, (x, "sum", g)),
        (OPS.all_gather, (x, g)),
        (OPS.reduce_scatter, (x, "sum", g)),
        (OPS.all_to_all, (x, g)),
        (OPS.all_to_all_axes, (x, 0, 1, g)),
        (OPS.broadcast, (x, 0, g)),
        (OPS.permute, (x, *ring, g)),
    ]
    for op, args in cases:
        given = (args[0].clone().requires_grad_(), *args[1:])
        opcheck(op.default, given)
    opcheck(OPS.all_reduce_.default, (x.clone(), "sum", g))
    opcheck(OPS.all_reduce_out.default, (x, x.clone(), "sum", g))


class Layer(torch.nn.Module):
    """Calls of several kinds, as a model would make them."""

    def __init__(self, group):
        super().__init__()
        self.group = group
        self.weight = torch.nn.Parameter(torch.linspace(-1, 1, 6))

    def forward(self, x):
        y = st.all_reduce(x * self.weight, "sum", self.group)
        y = st.all_gather(y.relu(), self.group, dim=1)
        y = st.reduce_scatter(y, "sum", self.group)
        return st.all_to_all(y, self.group)


@check
def compiled(b):
    """In compiled code calls are operators: one graph, same values and gradients."""
    layer, x = Layer(st.named(b.comm)), b.draw(2 * b.n * b.n, 6)[b.rank]
    plain = layer(x)
    plain.square().mean().backward()
    want, layer.weight.grad = layer.weight.grad, None
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    b.same("traced", torch.compile(layer, backend=backend, fullgraph=True)(x), plain)
    b.true(f"{len(graphs)} graphs", len(graphs) == 1)
    torch._dynamo.reset()
    made = torch.compile(layer, backend="aot_eager", fullgraph=True)(x)
    made.square().mean().backward()
    b.same("aot_eager", made.detach(), plain.detach())
    b.same("its gradient", layer.weight.grad, want)


@check
def written_in_graphs(b):
    """Compiled code that writes in place writes to the caller's tensor."""
    g = st.named(b.comm)

    def step(x):
        y = x * 2
        st.all_reduce_(y, "sum", g)
        st.all_reduce_(x, "sum", g)
        return y + x

    xs = b.draw(4, 4)
    x = xs[b.rank].clone()
    torch._dynamo.reset()
    made = torch.compile(step, backend="aot_eager", fullgraph=True)(x)
    total = torch.stack(xs).sum(0)
    b.same("what was passed", x, total)
    b.same("what comes back", made, 3 * total)
