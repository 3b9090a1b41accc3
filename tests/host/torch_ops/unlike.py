"""A hundred models that look as if they would fuse: half of them are left alone.

All compute what they did: bit for bit where nothing was fused and for every sum, and
within roundings of the type for a norm, which is computed in float32 to its end.
"""

import torch
from tests.host.torch_ops import uses_modes
from tests.host.torch_ops.checks import check, seeded
from tests.host.torch_ops.fusions import HIDDEN, LlamaRMSNorm, Row, by_ours, gloo
from tests.host.torch_ops.unlike_layers import LAYERS, ChangedRow, no_rows_together
from tests.host.torch_ops.unlike_norms import NORMS, MadeRMSNorm, fails
from tests.host.torch_ops.uses import AT_LEAST_ONE_CALL, USES, Model
from torch import nn

from stretto.torch.fusing import fuse

assert uses_modes.__doc__  # importing it has registered its uses


class LayerBlock(nn.Module):
    """A layer and a norm, as models have them."""

    def __init__(self, rank, function, attributes):
        super().__init__()
        self.row = ChangedRow(rank, function, attributes)
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
        model = LayerBlock(b.rank, function, attributes)
        plain = LayerBlock(b.rank, function, attributes)
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
        pair = [LayerBlock(b.rank, function, attributes) for _ in "12"]
        fuse(pair[1], b.comm)
        with torch.no_grad():
            x = b.randn(3, HIDDEN)
            for model in pair:
                for parameter in model.parameters():
                    parameter.copy_(seeded(5, *parameter.shape))
            b.same(name, pair[1](x)[0], pair[0](x)[0], 1e-5)


class NormBlock(nn.Module):
    """A layer, and a norm with a residual in one of two ways."""

    def __init__(self, rank, function, how, attributes):
        super().__init__()
        self.row = Row(rank, torch.float32, by_ours)
        self.norm, self.how = MadeRMSNorm(function, attributes), how

    def forward(self, x):
        y, residual = self.row(x), x.clone()
        made = []
        if self.how != "only":
            total = residual + y
            out = self.norm(total)
            made += [*(out if isinstance(out, tuple) else (out,)), total * 1]
        if self.how:
            y = self.row(x)
            out, total = self.norm(y, residual)
            made += [out, total, residual, y * 1]
        return made


@check
def norms_that_are_none_are_left(b):
    """Right in all; those that compute something else say that they are left alone."""
    gloo(b)
    for name, (function, fuses, how, attributes) in NORMS.items():
        pair = [NormBlock(b.rank, function, how, attributes).eval() for _ in "12"]
        said = fuse(pair[1], b.comm).fusion
        b.true(f"{name}: {said}", said.fused == fuses)
        b.true(f"{name}: {said}", fuses or said.refused[0][0] == "norm")
        if function is fails:
            continue
        with torch.no_grad():
            for size in (1e-3, 1.0, 1e2):
                x = b.randn(3, HIDDEN) * size
                for one, other in zip(pair[1](x), pair[0](x), strict=True):
                    b.true(f"{name}: bits", fuses or torch.equal(one, other))
                    near = 32 * torch.finfo(torch.float32).eps
                    off = (one - other).abs()
                    b.true(
                        f"{name}: {off.max()}", bool((off <= near * other.abs()).all())
                    )
            both = fuses and how is True
            b.true(f"{name}: {said.calls} calls", said.calls == 3 * (fuses + both))


@check
def norms_of_narrow_models(b):
    """In 16 bits each number is within eight steps of the model's own."""
    gloo(b)
    for name in ("llama", "rounded_once", "gemma", "pair", "pair_in_place"):
        function, _, how, attributes = NORMS[name]
        for dtype in (torch.bfloat16, torch.float16):
            pair = [
                NormBlock(b.rank, function, how, attributes).to(dtype) for _ in "12"
            ]
            said = fuse(pair[1], b.comm).fusion
            with torch.no_grad():
                x = b.randn(3, HIDDEN).to(dtype)
                for one, other in zip(pair[1](x), pair[0](x), strict=True):
                    near = 8 * torch.finfo(dtype).eps * other.double().abs()
                    fits = (one.double() - other.double()).abs() <= near
                    b.true(f"{name} {dtype}", bool(fits.all()))
            b.true(f"{name} {dtype}: {said}", said.calls == 1 + (how is True))


@check
def norms_are_what_they_are_when_they_are_called(b):
    """Weights and eps are read in every call; what else has changed is left alone."""
    gloo(b)
    for name in ("llama", "gemma", "pair_alone"):
        function, _, how, attributes = NORMS[name]
        pair = [NormBlock(b.rank, function, how, attributes) for _ in "12"]
        said = fuse(pair[1], b.comm).fusion
        x = b.randn(3, HIDDEN)
        with torch.no_grad():
            for turn in range(3):
                for model in pair:
                    model.norm.weight.data.copy_(seeded(turn, HIDDEN))
                for one, other in zip(pair[1](x), pair[0](x), strict=True):
                    b.same(f"{name}, turn {turn}", one, other)
            b.true(f"{name}: {said.calls} calls", said.calls == 3)
            for model in pair:
                model.norm.eps = 0.5
            for one, other in zip(pair[1](x), pair[0](x), strict=True):
                b.same(f"{name}, another eps", one, other)


def compiled_in_part(m, x):
    torch._dynamo.reset()
    compiled = torch.compile(lambda t: t.sin() + 1, backend="eager")
    made = compiled(x + m.row(x)), compiled(m.row(x))
    return *made, m.norm(x + m.row(x))


@check(slow=True)
def compiled_code_sees_a_tensor(b):
    """A part of a model that is compiled may be given what another holds back."""
    gloo(b)
    plain, fused = Model(b.rank).eval(), Model(b.rank).eval()
    said = fuse(fused, b.comm).fusion
    x = b.randn(3, HIDDEN)
    with torch.no_grad():
        got, want = compiled_in_part(fused, x), compiled_in_part(plain, x)
    for one, other in zip(got, want, strict=True):
        b.same("each", one, other)
    b.true(f"{said.calls} calls", said.calls == 1)


@check
def uses_of_what_is_held_back(b):
    """Numbers are the model's own; where nothing was fused, bit for bit."""
    gloo(b)
    plain, fused = Model(b.rank).eval(), Model(b.rank).eval()
    said = fuse(fused, b.comm).fusion
    b.true(str(said), said.layers == 2 and said.fused == 3)
    for seed, (name, function) in enumerate(USES.items()):
        x, calls = seeded(seed, 3, HIDDEN), said.calls
        with torch.no_grad():
            try:
                got = function(fused, x.clone())
            except Exception as e:
                b.true(f"{name}: {type(e).__name__}: {e}", False)
                return  # the other rank may be waiting somewhere else
            want = function(plain, x.clone())
        calls = said.calls - calls
        for at, (one, other) in enumerate(zip(got, want, strict=True)):
            if calls:
                b.same(f"{name}[{at}]", one, other)
            else:
                b.true(f"{name}[{at}]: bits", torch.equal(one, other))
        b.true(f"{name}: {calls} calls", (calls > 0) or name not in AT_LEAST_ONE_CALL)
    b.true(str(said), not said.refused)
