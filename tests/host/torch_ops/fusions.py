"""What `fuse` finds, how often, and that the numbers stay."""

import tempfile

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from tests.host.torch_ops.checks import check, seeded
from torch import nn

import stretto.torch.operators as st
from stretto.torch import registry
from stretto.torch.fusing import fuse

HIDDEN = 64


def gloo(b):
    """Open the default group on gloo, for tracing; its name stands for ours, too."""
    if not dist.is_initialized():
        path = np.zeros(200, np.uint8)
        if b.rank == 0:
            with tempfile.NamedTemporaryFile(delete=False) as made:
                text = made.name.encode()
            path[: len(text)] = np.frombuffer(text, np.uint8)
        b.comm.broadcast(path)
        name = bytes(path).rstrip(b"\0").decode()
        dist.init_process_group(
            "gloo", init_method=f"file://{name}", rank=b.rank, world_size=b.n
        )
    registry.bind(dist.group.WORLD.group_name, b.comm)


class LlamaRMSNorm(nn.Module):
    """The norm as models of Hugging Face have it."""

    def __init__(self, dtype):
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, HIDDEN, dtype=dtype))
        self.variance_epsilon = 1e-5

    def forward(self, x):
        kind = x.dtype
        x = x.to(torch.float32)
        variance = x.pow(2).mean(-1, keepdim=True)
        x = x * torch.rsqrt(variance + self.variance_epsilon)
        return self.weight * x.to(kind)


def torch_norm(dtype):
    made = nn.RMSNorm(HIDDEN, eps=1e-5, dtype=dtype)
    with torch.no_grad():
        made.weight.copy_(seeded(3, HIDDEN).sigmoid() + 0.5)
    return made


def by_dist(x):
    dist.all_reduce(x)
    return x


def by_funcol(x):
    return funcol.all_reduce(x, "sum", dist.group.WORLD)


class Row(nn.Module):
    """A row-parallel layer, with the flag that serving engines have."""

    def __init__(self, rank, dtype, reduce):
        super().__init__()
        drawn = seeded(rank + 11, HIDDEN, HIDDEN) / HIDDEN**0.5
        self.weight = nn.Parameter(drawn.to(dtype))
        self.reduce_results, self.reduce = True, reduce

    def forward(self, x):
        y = nn.functional.linear(x, self.weight)
        return self.reduce(y) if self.reduce_results else y


class Layer(nn.Module):
    """A layer of a Llama shape, its matrices one each."""

    def __init__(self, rank, dtype, norm, reduce):
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = norm(dtype), norm(dtype)
        self.o_proj = Row(2 * rank, dtype, reduce)
        self.down_proj = Row(2 * rank + 1, dtype, reduce)

    def forward(self, hidden):
        residual = hidden
        hidden = self.o_proj(self.input_layernorm(hidden).tanh())
        hidden = residual + hidden
        residual = hidden
        hidden = self.down_proj(self.post_attention_layernorm(hidden).tanh())
        return residual + hidden


class Model(nn.Module):
    """Two layers and a last norm: four norms follow an all_reduce, one does not."""

    def __init__(self, rank, dtype, norm, reduce):
        super().__init__()
        self.layers = nn.Sequential(
            *(Layer(rank + 10 * n, dtype, norm, reduce) for n in range(2))
        )
        self.norm = norm(dtype)

    def forward(self, x):
        return self.norm(self.layers(x))


def made(b, dtype=torch.float32, norm=LlamaRMSNorm, reduce=by_dist):
    """Return a model, an input and the output as it is due."""
    gloo(b)
    model = Model(b.rank, dtype, norm, reduce).eval()
    x = b.randn(2, 5, HIDDEN).to(dtype)
    with torch.no_grad():
        return model, x, model(x)


def by_ours(x):
    st.all_reduce_(x)  # of the default group, whose name stands for ours
    return x


CLOSE = {torch.float32: 1e-5, torch.float16: 0.01, torch.bfloat16: 0.05}
CASES = (
    (LlamaRMSNorm, by_dist, torch.bfloat16),
    (torch_norm, by_funcol, torch.bfloat16),
    (LlamaRMSNorm, by_ours, torch.float32),
)


def fused_in_graph(b, norm, reduce, dtype, backend):
    """Note how a compiled model differs from what it was."""
    model, x, want = made(b, dtype, norm, reduce)
    torch._dynamo.reset()
    fused = fuse(model, compile=True, backend=backend, fullgraph=True)
    with torch.no_grad():
        got = fused(x)
    what = f"{norm.__name__} {reduce.__name__} {dtype}"
    b.same(what, got, want, CLOSE[dtype])
    b.true(f"{what}: {fused.fusion}", fused.fusion.fused == 4)


@check
def in_graphs(b):
    """A way to write the collective and the norm is found; all of them at night."""
    fused_in_graph(b, *CASES[1], "aot_eager")


@check(slow=True)
def in_all_graphs(b):
    """Every way in every type."""
    for norm in (LlamaRMSNorm, torch_norm):
        for reduce in (by_dist, by_funcol, by_ours):
            for dtype in (torch.float32, torch.float16, torch.bfloat16):
                fused_in_graph(b, norm, reduce, dtype, "aot_eager")


@check(slow=True)
def in_graphs_of_inductor(b):
    """The pass after gradients finds them among Inductor's own decompositions."""
    for case in CASES:
        fused_in_graph(b, *case, "inductor")


@check(slow=True)
def hooks_as_gpt_fast_has_them(b):
    """They sum `output[0]` of one sequence; the residual keeps its axis of one."""
    model, x, _ = made(b, torch.bfloat16, torch_norm)
    for row in (r for layer in model.layers for r in (layer.o_proj, layer.down_proj)):
        row.reduce_results = False
        row.register_forward_hook(lambda _row, _given, out: by_funcol(out[0]))
    for how in ({"backend": "aot_eager"}, {"mode": "reduce-overhead"}):
        torch._dynamo.reset()
        fused = fuse(model, compile=True, fullgraph=True, **how)
        with torch.no_grad():
            b.same(f"{how}", fused(x[:1]), model(x[:1]), CLOSE[torch.bfloat16])
        b.true(f"{how}: {fused.fusion}", fused.fusion.fused == 4)


@check(slow=True)
def casts_in_compiled_models(b):
    """A round trip that loses something is no part of a fused call."""
    gloo(b)
    norm, x = LlamaRMSNorm(torch.float32), b.randn(3, HIDDEN) * 4

    def model(x, r, where, cast):
        def on(here, t):
            return t.to(cast).to(t.dtype) if here == where else t

        total = on("residual", r) + on("summed", by_funcol(x))
        return norm(on("total", total)), total

    casts, edges = (torch.float8_e4m3fn, torch.int32), ("summed", "total", "residual")
    every = [("aot_eager", cast, where) for cast in casts for where in edges]
    every += [("inductor", torch.float8_e4m3fn, where) for where in edges]
    every += every[-1:]  # Inductor would keep it, and nobody would say what was fused
    for backend, cast, where in every:
        torch._dynamo.reset()
        fused = fuse(model, compile=True, backend=backend, fullgraph=True)
        with torch.no_grad():
            got, want = fused(x, x, where, cast), model(x, x, where, cast)
        for one, other in zip(got, want, strict=True):
            b.same(f"{backend} {cast} {where}", one, other)
        count = int(where == "residual")
        b.true(f"{backend} {cast} {where}", fused.fusion.fused == count)


@check
def compiled_graph_has_the_operator(b):
    """What runs is the fused operator: nothing of the old graph is left."""
    from torch._dynamo.backends.common import aot_autograd

    from stretto.torch.fusing.graph import fuse_graph
    from stretto.torch.fusing.report import FuseReport

    model, x, _ = made(b, torch.bfloat16)
    seen, report = [], FuseReport()

    def look(module, _):
        fuse_graph(module.graph, report)
        module.recompile()
        seen.extend(str(n.target) for n in module.graph.nodes)
        return module.forward

    torch._dynamo.reset()
    with torch.no_grad():
        torch.compile(model, backend=aot_autograd(fw_compiler=look))(x)
    count = sum("stretto.all_reduce_rmsnorm" in t for t in seen)
    b.true(f"{count} fused operators", count == 4)
    b.true("no collective else", not [t for t in seen if "_c10d_functional" in t])
    b.true("one norm else", sum("rsqrt" in t for t in seen) == 1)


@check
def left_alone(b):
    """What is another thing stays right, and the report says why."""
    gloo(b)
    norm = LlamaRMSNorm(torch.float32)
    x = b.randn(3, HIDDEN)

    def uses_it(x, r):
        y = by_funcol(x)
        return norm(r + y), y.sum()

    def largest(x, r):
        return norm(r + funcol.all_reduce(x, "max", dist.group.WORLD))

    def broadcasts(x, r):
        return norm(r[:1] + by_funcol(x))

    def layer_norm(x, r):
        return nn.functional.layer_norm(r + by_funcol(x), (HIDDEN,))

    cases = (
        (uses_it, "is used beside"),
        (largest, "'max'"),
        (broadcasts, "broadcasts"),
        (layer_norm, None),
    )
    for function, words in cases:
        torch._dynamo.reset()
        fused = fuse(function, compile=True, backend="aot_eager")
        with torch.no_grad():
            got, want = fused(x, x), function(x, x)
        for one, other in zip(got, want, strict=True):
            b.same(function.__name__, one, other)
        said = fused.fusion
        b.true(f"{function.__name__}: {said}", said.fused == 0)
        reasons = [why for _, why in said.refused]
        b.true(f"{function.__name__}: {said}", (words is None) == (not reasons))
        b.true(f"{function.__name__}: {said}", not words or words in reasons[0])
    torch._dynamo.reset()
    model = Model(b.rank, torch.float32, LlamaRMSNorm, by_funcol)
    fused = fuse(model, compile=True, backend="aot_eager")
    y = x.clone().requires_grad_()
    fused(y).sum().backward()
    grad = y.grad.clone()
    y.grad = None
    model(y).sum().backward()
    b.same("gradient", grad, y.grad, 1e-4)


@check
def without_residual(b):
    """A norm of the reduced tensor itself is fused, one without a weight too."""
    gloo(b)
    norm = LlamaRMSNorm(torch.float32)
    bare = nn.RMSNorm(HIDDEN, eps=1e-6, elementwise_affine=False)
    x = b.randn(6, HIDDEN)

    def post_norms(x, r):
        first = r + norm(by_funcol(x))
        second = bare(first.view(2, 3, HIDDEN) + by_funcol(x.sin()).view(2, 3, HIDDEN))
        flat = by_funcol(x.cos()) + first
        return second, norm(flat.view(3, 2, HIDDEN)), flat

    torch._dynamo.reset()
    fused = fuse(post_norms, compile=True, backend="aot_eager", fullgraph=True)
    with torch.no_grad():
        for got, want in zip(fused(x, x), post_norms(x, x), strict=True):
            b.same("post norms", got, want)
    b.true(f"{fused.fusion}", fused.fusion.fused == 3)


@check
def norms_of_one_operator(b):
    """ATen's own norm, which GPUs have in graphs, is found as well, or left alone."""
    gloo(b)
    weight = seeded(4, HIDDEN)
    x = b.randn(6, HIDDEN)
    whole = torch.ops.aten._fused_rms_norm.default

    def one(x, r):
        total = r + by_funcol(x)
        return whole(total, [HIDDEN], weight, 1e-6)[0], total

    def bare(x, r):
        return whole(r + by_funcol(x), [HIDDEN], None, None)[0], r

    def kept(x, r):
        return whole(r + by_funcol(x), [HIDDEN], weight, 1e-6)

    for function, count in ((one, 1), (bare, 1), (kept, 0)):
        torch._dynamo.reset()
        fused = fuse(function, compile=True, backend="aot_eager", fullgraph=True)
        with torch.no_grad():
            got, want = fused(x, x), function(x, x)
        for a, c in zip(got, want, strict=True):
            b.same(function.__name__, a, c)
        b.true(f"{function.__name__}: {fused.fusion}", fused.fusion.fused == count)


@check
def eager_modules(b):
    """Without a compiler: each norm that follows a layer is one fused call."""
    for norm in (LlamaRMSNorm, torch_norm):
        for dtype, tolerance in ((torch.float32, 1e-5), (torch.bfloat16, 0.05)):
            model, x, want = made(b, dtype, norm)
            same = fuse(model, b.comm)
            b.true("in place", same is model)
            with torch.no_grad():
                for turn in (1, 2):
                    got = model(x)
                    b.same(f"{norm.__name__} {dtype}", got, want, tolerance)
                    b.true(f"{model.fusion}", model.fusion.calls == 4 * turn)


@check
def eager_gradients(b):
    """Where a gradient is wanted everything is as it was, compiled code too."""
    model, x, want = made(b)
    weight = model.layers[0].o_proj.weight
    model(x).square().sum().backward()
    plain, weight.grad = weight.grad, None
    fuse(model, b.comm)
    model(x).square().sum().backward()
    b.same("gradient", weight.grad, plain, 1e-4)
    b.true(f"{model.fusion}", model.fusion.calls == 0)
    torch._dynamo.reset()
    with torch.no_grad():
        got = torch.compile(model, backend="aot_eager")(x)
        b.same("compiled", got, want)
        b.true(f"{model.fusion}", model.fusion.calls == 0)
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    b.same("nothing to learn", model(x), want)
    b.true(f"{model.fusion}", model.fusion.calls == 4)


@check
def eager_parts_are_tensors(b):
    """Whatever is done with a sum that is held back, its value is right."""
    model, x, _ = made(b)
    layer = model.layers[0].o_proj
    with torch.no_grad():
        want = layer(x)
        fuse(model, b.comm)
        b.same("itself", torch.clone(layer(x)), want)
        b.same("times", layer(x) * 2, want * 2)
        b.same("from", 1 - layer(x), 1 - want)
        b.same("part", layer(x)[0, :2], want[0, :2])
        b.same("method", layer(x).relu(), want.relu())
        b.true("shape", layer(x).shape == want.shape)
        b.same("joined", torch.cat([layer(x), x]), torch.cat([want, x]))
        b.same("sum", layer(x) + layer(x), want + want)
        b.same("number", 2 + layer(x), want + 2)
        pending = x + layer(x)
        b.same("sum with what was", pending.tanh(), (x + want).tanh())
        b.same("normed afterwards", model.norm(pending), model.norm(x + want))
        y = x.clone()
        y += layer(x)
        b.same("in place", y * 1, x + want)
