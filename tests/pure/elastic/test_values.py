"""What a place holds beside tensors: it comes as it was sent, or is refused at once."""

import json
from collections import Counter, OrderedDict

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.optim import lr_scheduler as rates

from stretto.errors import CallError, MembershipError
from stretto.torch.elastic import State
from stretto.torch.elastic.plain import packed, unpacked

_LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
_KEYS = st.integers() | st.text() | st.booleans() | st.just("//kind")
_VALUES = st.recursive(
    _LEAVES,
    lambda each: (
        st.lists(each)
        | st.lists(each).map(tuple)
        | st.dictionaries(_KEYS, each)
        | st.dictionaries(_KEYS, each).map(OrderedDict)
        | st.dictionaries(_KEYS, st.integers()).map(Counter)
        | st.sets(_KEYS)
        | st.frozensets(_KEYS)
    ),
    max_leaves=12,
)
RATES = {
    "multi": lambda o: rates.MultiStepLR(o, [3, 5]),
    "one after another": lambda o: rates.SequentialLR(
        o, [rates.ConstantLR(o, 0.1, 2), rates.MultiStepLR(o, [3, 5])], [2]
    ),
    "together": lambda o: rates.ChainedScheduler(
        [rates.ConstantLR(o, 0.1, 2), rates.MultiStepLR(o, [3, 5])]
    ),
    "one cycle": lambda o: rates.OneCycleLR(o, 1.0, total_steps=16),
    "cycles": lambda o: rates.CyclicLR(o, 0.1, 1.0, 3),
    "restarts": lambda o: rates.CosineAnnealingWarmRestarts(o, 3),
    "lambda": lambda o: rates.LambdaLR(o, lambda epoch: 0.5**epoch),
}


def model(make=lambda p: torch.optim.SGD(p, 1.0, momentum=0.9)):
    """Return a small model and its optimizer."""
    torch.manual_seed(0)
    net = torch.nn.Linear(4, 4, bias=False)
    return net, make(net.parameters())


def step(net, opt):
    """Make one step."""
    opt.zero_grad()
    net(torch.arange(8.0).view(2, 4)).square().mean().backward()
    opt.step()


def show(value):
    """Return what tells two values apart: types, too."""
    if isinstance(value, (list, tuple)):
        return type(value), [show(one) for one in value]
    if isinstance(value, (set, frozenset)):
        return type(value), sorted(map(repr, value))
    if isinstance(value, dict):
        return type(value), [(show(k), show(v)) for k, v in value.items()]
    return type(value), repr(value)


@given(_VALUES)
def test_values_come_as_they_were_sent(value):
    """Of every kind, in each other; through JSON."""
    assert show(value) == show(unpacked(json.loads(json.dumps(packed(value)))))


def test_what_is_no_plain_value_is_refused_by_its_type():
    """Numbers of NumPy are numbers."""
    assert [3, 0.5] == packed([np.int64(3), np.float32(0.5)])
    with pytest.raises(TypeError, match="a value of type Tensor"):
        packed({"a": (torch.ones(1),)})


@pytest.mark.parametrize("kind", RATES)
def test_every_schedule_goes_on_in_another_process(kind):
    """Also where it looks the number of its step up in a dict."""
    places = []
    for _ in "ab":
        net, opt = model()
        places.append((net, opt, RATES[kind](opt)))
    ours, theirs = (State(model=n, optimizer=o, scheduler=s) for n, o, s in places)
    for _ in range(2):
        step(*places[0][:2])
        places[0][2].step()
    theirs.take(ours.snapshot())
    for _ in range(8):
        for net, opt, schedule in places:
            step(net, opt)
            schedule.step()
        now, there = (opt.param_groups[0]["lr"] for _, opt, _ in places)
        assert now == there


class Counting(torch.optim.Optimizer):
    """Momentum, and a number of steps that is no tensor, as many have it."""

    def __init__(self, params):
        super().__init__(params, {"lr": 0.1})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                mine = self.state[p]
                if not mine:
                    mine |= {"step": 0, "sum": torch.zeros_like(p), "of": (1, 2)}
                mine["step"] += 1
                mine["sum"] += p.grad
                p -= group["lr"] * mine["sum"] / mine["step"]


@pytest.mark.parametrize("steps", [0, 2])
def test_who_takes_a_place_keeps_nothing_of_its_own_optimizer(steps):
    """Neither tensors nor numbers: it has made steps that count for nothing."""
    (net, opt), (other, ahead) = model(Counting), model(Counting)
    for _ in range(steps):
        step(net, opt)
    for _ in range(3):
        step(other, ahead)
    ours, theirs = State(model=net, optimizer=opt), State(model=other, optimizer=ahead)
    theirs.take(ours.snapshot())
    for _ in range(2):
        step(net, opt)
        step(other, ahead)
        assert torch.equal(net.weight, other.weight)


class Holds:
    """Something with a state, which may be empty."""

    def __init__(self, **held):
        self.held = held

    def __len__(self):
        return len(self.held)

    def state_dict(self):
        return dict(self.held)

    def load_state_dict(self, said):
        self.held = said


def test_what_is_empty_has_a_state_all_the_same():
    """Here or at the others."""
    for mine, its in [({}, {"a": (1,)}), ({"a": (1,)}, {})]:
        (net, opt), (other, fresh) = model(), model()
        held = Holds(**its)
        ours = State(model=net, optimizer=opt, extra=[Holds(**mine), Holds(b={1: 2})])
        theirs = State(model=other, optimizer=fresh, extra=[held, Holds()])
        theirs.take(ours.snapshot())
        assert (mine, {"b": {1: 2}}) == (held.held, theirs.extra[1].held)


def test_what_cannot_be_sent_is_refused_at_the_beginning():
    """And not when somebody is lost."""
    net, opt = model(lambda p: torch.optim.Adam(p, torch.tensor(0.1)))
    with pytest.raises(CallError, match=r"cannot be sent: a value of type Tensor"):
        State(model=net, optimizer=opt)
    net, opt = model()
    with pytest.raises(CallError, match=r"cannot be sent: a value of type object"):
        State(model=net, optimizer=opt, extra=[Holds(a=object())])


def test_groups_of_parameters_that_came_later_are_of_the_place_too():
    """Who has fewer is told so."""
    (net, opt), (other, fresh) = model(), model()
    ours, theirs = State(model=net, optimizer=opt), State(model=other, optimizer=fresh)
    more = torch.nn.Parameter(torch.ones(3))
    opt.add_param_group({"params": [more], "lr": 0.3})
    more.grad = torch.ones(3)
    step(net, opt)
    with pytest.raises(MembershipError, match="1 groups of parameters here, and 2 at"):
        theirs.take(ours.snapshot())
    fresh.add_param_group({"params": [torch.nn.Parameter(torch.ones(3))], "lr": 0.1})
    theirs.take(ours.snapshot())
    assert 0.3 == fresh.param_groups[1]["lr"]


class Moving(torch.nn.Module):
    """A sum that a pass writes into, one that it replaces, and one that it makes."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(2))
        for name in ("written", "replaced"):
            self.register_buffer(name, torch.zeros(2))
        self.register_buffer("made", None)

    def forward(self, x):
        self.written.mul_(0.9).add_(x)
        self.replaced = 0.9 * self.replaced + x * self.weight
        self.made = x if self.made is None else self.made + x
        return x * self.weight


def test_buffers_are_put_back_however_a_pass_changes_them():
    """Step after step: written into, replaced, and made."""
    net = Moving()
    state = State(model=net, optimizer=torch.optim.SGD(net.parameters(), lr=0.1))
    state.undo()  # nothing was kept
    for n in range(3):
        state.begin()
        before = {k: None if b is None else b.clone() for k, b in net._buffers.items()}
        for _ in range(2):
            net(torch.full((2,), 1.0 + n)).sum().backward()
        state.undo()
        assert list(before) == list(net._buffers)
        for name, b in net._buffers.items():
            was = before[name]
            assert (b is None) if was is None else torch.equal(was, b), name
        net(torch.ones(2))
