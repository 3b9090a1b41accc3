"""More of what models do with what a layer holds back: pairs, hooks, modes, threads."""

import threading

import torch
from tests.host.torch_ops.uses import use

# Pairs, hooks, modes.


@use(fuses=True)
def a_pair(m, x):
    y, residual = m.row(x), x.clone()
    out, total = m.paired(y, residual)
    return out.clone(), total.clone(), y * 1, residual


@use(fuses=True)
def a_pair_whose_result_is_dropped(m, x):
    y, residual = m.row(x), x.clone()
    m.paired(y, residual)
    return y * 1, residual


@use(fuses=True)
def pairs_in_a_row(m, x):
    residual, y = x.clone(), m.row(x)
    y, residual = m.paired(y, residual)
    y, residual = m.paired(m.other(y), residual)
    return y, residual


@use
def a_pair_of_sums(m, x):
    total = x + m.row(x)
    out, total = m.paired(total, x.clone())
    return out, total


@use
def a_pair_and_another_shape(m, x):
    out, total = m.paired(m.row(x), x.double().float().T.contiguous().T)
    return out, total


@use(fuses=True)
def hooks(m, x):
    seen = []
    handles = [
        m.row.register_forward_hook(lambda _, a, y: seen.append(y.shape[0])),
        m.norm.register_forward_pre_hook(lambda _, a: seen.append(a[0].shape[1])),
    ]
    made = m.norm(x + m.row(x))
    for one in handles:
        one.remove()
    return made, torch.tensor(seen)


@use
def hooks_that_look(m, x):
    seen = []
    handle = m.row.register_forward_hook(lambda _, a, y: seen.append(y.sum()))
    made = m.norm(x + m.row(x))
    handle.remove()
    return made, *seen


@use
def hooks_that_change(m, x):
    handle = m.row.register_forward_hook(lambda _, a, y: y.mul_(2))
    made = m.norm(x + m.row(x))
    handle.remove()
    return (made,)


@use(fuses=True)
def under_a_default_device(m, x):
    with torch.device(x.device):
        total = x + m.row(x)
        return m.norm(total), total, torch.ones(1)


@use
def casts(m, x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = m.row(x)
        return m.norm(x + y), y * 1


@use(fuses=True)
def casts_between(m, x):
    y = m.row(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        total = x + y
        first = m.norm(total)
    return first, total, m.norm(x + m.row(x))


@use(fuses=True)
def inference(m, x):
    with torch.inference_mode():
        total = x + m.row(x)
        x.add_(1)
        return m.norm(total).clone(), total.clone(), x.clone()


@use
def gradients_of_what_follows(m, x):
    y = m.row(x)
    with torch.enable_grad():
        w = x.clone().requires_grad_()
        m.norm(w + y).square().sum().backward()
    return w.grad, y * 1


@use
def training(m, x):
    m.train()
    made = m.norm(x + m.row(x))
    m.eval()
    return (made,)


@use
def flag_taken_away(m, x):
    m.row.reduce_results = False
    made = m.norm(x + m.row(x))
    m.row.reduce_results = True
    return (made,)


@use
def by_keyword(m, x):
    return m.norm(x + m.row(x=x)), m.norm(x=x + m.row(x))


@use
def other_types_and_shapes(m, x):
    return m.row(x[0]) * 1, m.row(x[None, None]) * 1, m.row(x[:0]) * 1


@use
def function_modes(m, x):
    class Mode(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    with Mode():
        return m.norm(x + m.row(x)), m.row(x) * 2


@use
def vmapped(m, x):
    y = m.row(x)
    return (torch.vmap(lambda a, b: a * b)(x, y),)


@use(fuses=True)
def from_two_threads(m, x):
    made = [m.norm(x + m.row(x))]

    def work():
        with torch.no_grad():
            y = m.row(x)
            made.extend([m.norm(x + y), y * 1])

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    return tuple(made)


@use(fuses=True)
def fused_copies(m, x):
    return m.norm(x + m.row(x)), m.norm(x + m.row(x.clone()))
