"""The pattern of an all_reduce, an add and a norm, written in many ways.

Each is (function of part, residual and weight; how many norms are fused).
"""

import torch

NAME, ROWS, HIDDEN, EPS = "a group of graphs", 6, 16, 1e-3


def summed(x):
    return torch.ops.stretto.all_reduce(x, "sum", NAME)


def norm(part, residual, weight, on=None):
    """The pattern, with `on(edge, tensor)` on every edge of it."""
    on = on or (lambda edge, x: x)
    total = on("residual", residual) + on("summed", summed(on("part", part)))
    read = on("total", total)
    wide = on("base", read.float())
    mean = on("mean", on("square", wide.pow(2)).mean(-1, keepdim=True))
    root = on("root", torch.rsqrt(on("shifted", mean + EPS)))
    scaled = on("scaled", on("operand", wide) * root).to(part.dtype)
    return on("out", scaled * on("weight", weight)), total


def written(p, r, w, *, square=None, mean=None, scale=None, apply=None):
    """The pattern, of whose steps some are written otherwise."""
    square = square or (lambda x: x.pow(2))
    mean = mean or (lambda x: x.mean(-1, keepdim=True))
    scale = scale or (lambda m: torch.rsqrt(m + EPS))
    apply = apply or (lambda y, w: y.to(p.dtype) * w)
    total = r + summed(p)
    wide = total.float()
    return apply(wide * scale(mean(square(wide))), w), total


def whole(form):
    def function(p, r, w):
        total = r + summed(p)
        return form(total, w), total

    return function


def view_between(shape, back=(ROWS, HIDDEN)):
    def function(p, r, w):
        total = (r + summed(p)).view(shape)
        return norm_of(total, w).view(back), total.sum()

    return function


def norm_of(x, w, axis=-1, eps=EPS):
    wide = x.float()
    return (wide * torch.rsqrt(wide.pow(2).mean(axis, keepdim=True) + eps)).to(
        x.dtype
    ) * w


def into(target):
    """Copy the sum into what `target` makes of the residual, as all_reduce_ does."""

    def function(p, r, w):
        y = torch.ops.aten.copy(target(r), summed(p))
        return norm_of(r + y, w), y

    return function


def one_into(target):
    def function(p, r, w):
        y = torch.ops.aten.copy(target(r), summed(p))
        return (norm_of(r + y, w),)

    return function


def used(what):
    """Use something of the norm a second time."""

    def function(p, r, w):
        y = summed(p)
        total = r + y
        wide = total.float()
        mean = wide.pow(2).mean(-1, keepdim=True)
        root = torch.rsqrt(mean + EPS)
        scaled = wide * root
        out = scaled.to(p.dtype) * w
        again = {"y": y, "total": total, "wide": wide, "mean": mean, "root": root}
        again |= {"scaled": scaled, "out": out}
        return out, again[what] * 3

    return function


def changed(where):
    """Change something in place, which functional graphs hold as a new tensor."""

    def function(p, r, w):
        y = summed(p)
        if where == "sum":
            y.mul_(3)
        total = r + y
        if where == "residual":
            r.add_(1)
        if where == "total":
            total[:, 0] = 0
        out = norm_of(total, w)
        if where == "out":
            out.neg_()
        return out, total, r

    return function


def weighed_by_the_sum(p, r, w):
    total = r + summed(p)
    return norm_of(total, total.sum(0)), total


def weighed_by_chance(p, r, w):
    total = r + summed(p)
    return norm_of(total, torch.ops.aten.bernoulli(w.clamp(0, 1))) * 0, total


def copied_narrow(p, r, w):
    y = torch.ops.aten.copy(torch.empty_like(r, dtype=torch.float8_e5m2), summed(p))
    return (norm_of(r + y.to(p.dtype), w),)


def computed_narrow(p, r, w):
    """Squares of 16 bits overflow where those of float32 do not."""
    total = (r + summed(p)).half()
    scale = torch.rsqrt(total.pow(2).mean(-1, keepdim=True) + EPS)
    return total * scale * w.half(), total


def kept(p, r, w):
    y = summed(p)
    return norm_of(y, w), y * 2


def left(form):
    return form, 0


def either(form):
    """Be fused as far as the scaled rows in float32, and not in 16 bits."""
    return form, None


def fuses(form):
    return form, 1


FORMS = {
    "as it is": fuses(lambda p, r, w: written(p, r, w)),
    "x * x": fuses(lambda p, r, w: written(p, r, w, square=lambda x: x * x)),
    "square": fuses(lambda p, r, w: written(p, r, w, square=torch.square)),
    "cubes": left(lambda p, r, w: written(p, r, w, square=lambda x: x.pow(3).abs())),
    "x * |x|": left(
        lambda p, r, w: written(p, r, w, square=lambda x: (x * x.abs()).abs())
    ),
    "dim=": fuses(
        lambda p, r, w: written(p, r, w, mean=lambda x: x.mean(dim=-1, keepdim=True))
    ),
    "dim=1": fuses(lambda p, r, w: written(p, r, w, mean=lambda x: x.mean(1, True))),
    "the first axis": left(
        lambda p, r, w: written(p, r, w, mean=lambda x: x.mean(0, keepdim=True))
    ),
    "both axes": left(
        lambda p, r, w: written(p, r, w, mean=lambda x: x.mean((0, 1), keepdim=True))
    ),
    "sum for mean": left(
        lambda p, r, w: written(p, r, w, mean=lambda x: x.sum(-1, keepdim=True))
    ),
    "mean less its mean": left(
        lambda p, r, w: written(
            p, r, w, mean=lambda x: x.mean(-1, keepdim=True) - x.mean()
        )
    ),
    "eps outside": left(
        lambda p, r, w: written(p, r, w, scale=lambda m: 1 / (m.sqrt() + EPS))
    ),
    "eps at the root": left(
        lambda p, r, w: written(p, r, w, scale=lambda m: torch.rsqrt(m) + EPS)
    ),
    "eps twice": left(
        lambda p, r, w: written(
            p, r, w, scale=lambda m: torch.rsqrt(torch.add(m, EPS, alpha=2))
        )
    ),
    "eps as a floor": left(
        lambda p, r, w: written(p, r, w, scale=lambda m: torch.rsqrt(m.clamp(min=EPS)))
    ),
    "no eps": left(lambda p, r, w: written(p, r, w, scale=torch.rsqrt)),
    "Gemma": fuses(
        lambda p, r, w: written(
            p, r, w, apply=lambda y, w: (y * (1.0 + w.float())).to(p.dtype)
        )
    ),
    "Gemma, narrow": fuses(
        lambda p, r, w: written(p, r, w, apply=lambda y, w: y.to(p.dtype) * (w + 1))
    ),
    "weight wide": fuses(
        lambda p, r, w: written(p, r, w, apply=lambda y, w: (y * w.float()).to(p.dtype))
    ),
    "weight by chance": left(weighed_by_chance),
    "computed narrow": left(computed_narrow),
    "no residual, kept": fuses(kept),
    "mean in float64": fuses(
        lambda p, r, w: written(
            p, r, w, mean=lambda x: x.mean(-1, keepdim=True, dtype=torch.float64)
        )
    ),
    "weight of rows": either(
        lambda p, r, w: written(
            p, r, w, apply=lambda y, w: y * w.expand(ROWS, -1).float()
        )
    ),
    "weight of the sum": left(weighed_by_the_sum),
    "weight of another sum": fuses(lambda p, r, w: norm(p, r, summed(w))),
    "then more": fuses(
        lambda p, r, w: written(p, r, w, apply=lambda y, w: (y.to(p.dtype) * w).relu())
    ),
    "rms_norm of two axes": left(
        whole(
            lambda x, w: torch.nn.functional.rms_norm(
                x, (ROWS, HIDDEN), w.expand(ROWS, -1).contiguous(), eps=EPS
            )
        )
    ),
    "layer_norm": left(
        whole(lambda x, w: torch.nn.functional.layer_norm(x, (HIDDEN,), w, eps=EPS))
    ),
    "rows apart": fuses(view_between((2, 3, HIDDEN))),
    "rows together": fuses(view_between((1, ROWS, HIDDEN))),
    "rows in one more": fuses(lambda p, r, w: written(p, r[None], w)),
    "residual in one less": fuses(lambda p, r, w: (norm_of(r + summed(p[None]), w), p)),
    "of the one, as gpt-fast": fuses(
        lambda p, r, w: (norm_of(r[None] + summed(p[None][0]), w),)
    ),
    "indexed": fuses(lambda p, r, w: (norm_of((r[None] + summed(p[None]))[0], w),)),
    "sum indexed": fuses(lambda p, r, w: (norm_of(r + summed(p[None])[0], w),)),
    "squeezed": fuses(
        lambda p, r, w: (norm_of((r[None] + summed(p[None])).squeeze(0), w),)
    ),
    "sum squeezed": fuses(
        lambda p, r, w: (norm_of(r + summed(p[None]).squeeze(0), w),)
    ),
    "unsqueezed": fuses(lambda p, r, w: (norm_of((r + summed(p)).unsqueeze(1), w),)),
    "one of two": left(
        lambda p, r, w: (norm_of((r + summed(p)).view(2, -1, HIDDEN)[0], w),)
    ),
    "many of one": left(lambda p, r, w: (norm_of(r.expand(2, -1, -1) + summed(p), w),)),
    "half rows": left(
        lambda p, r, w: view_between((2 * ROWS, HIDDEN // 2))(p, r, w[: HIDDEN // 2])
    ),
    "transposed": left(lambda p, r, w: (norm_of((r + summed(p)).t(), w[:ROWS], -1),)),
    "copied": fuses(one_into(torch.empty_like)),
    "copied, kept": left(into(torch.empty_like)),
    "copied wider": left(one_into(lambda r: r.new_empty(ROWS, ROWS, HIDDEN))),
    "copied to 8 bits": left(copied_narrow),
    "copied to integers": left(
        one_into(lambda r: torch.empty_like(r, dtype=torch.int32))
    ),
    "a row as residual": left(lambda p, r, w: norm(p, r[:1], w)),
    "residual of float64": left(lambda p, r, w: norm(p, r.double(), w)),
    "the other way round": fuses(lambda p, r, w: (norm_of(summed(p) + r, w),)),
    "twice the sum": left(
        lambda p, r, w: (norm_of(torch.add(r, summed(p), alpha=2), w),)
    ),
    "a number": left(lambda p, r, w: (norm_of(summed(p) + 1, w),)),
    "no residual": fuses(lambda p, r, w: (norm_of(summed(p), w),)),
    "two sums": fuses(lambda p, r, w: (norm_of(summed(r) + summed(p), w),)),
    "a sum with itself": left(
        lambda p, r, w: (lambda y: (norm_of(y + y, w),))(summed(p))
    ),
    "largest": left(
        lambda p, r, w: (norm_of(r + torch.ops.stretto.all_reduce(p, "max", NAME), w),)
    ),
    "strided part": left(
        lambda p, r, w: (
            norm_of(r + summed(p.t().contiguous().t()).view(-1).view_as(r), w),
        )
    ),
    **{
        f"{what} used": (used(what), n)
        for what, n in (
            ("y", 0),
            ("total", 1),
            ("wide", 1),
            ("mean", 0),
            ("root", 0),
            ("scaled", None),
            ("out", 1),
        )
    },
    **{
        f"{where} changed": (changed(where), n)
        for where, n in (
            ("sum", 0),
            ("residual", 1),
            ("total", 0),
            ("out", 1),
        )
    },
}
