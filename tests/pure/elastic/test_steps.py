"""The loop of one rank, with a world whose faults and answers are written down."""

import numpy as np
import pytest
import torch

from stretto.errors import CallError, MembershipError, PeerLost
from stretto.torch import elastic
from stretto.torch.elastic.plain import unpacked
from stretto.torch.elastic.state import State
from stretto.torch.elastic.steps import Steps


class Standing:
    """Whose job it is."""

    identity, identities, gone, facts, generation, since = "a", ("a", "b"), {}, {}, 0, 0
    is_over = False

    def tell(self, **said):
        """Hear it."""


class Comm:
    """Two ranks; the flags of this one end well but where it is said."""

    rank, num_ranks = 0, 2

    def __init__(self, breaks):
        self.breaks, self.flags = breaks, 0

    def all_reduce(self, x, op, *, out):
        self.flags += 1
        if self.flags - 1 in self.breaks:
            out[:] = 7  # whatever a sum that broke has left there
            raise PeerLost("rank 1 died")
        out[:] = x
        return out

    def repeated_into(self, x, out, op):
        """Have each call examined."""


class World:
    """What steps ask of their world; `others`: how far the other one is, each time."""

    stands_by = absorbs = False
    fault = None
    job, listen, secret, times = "", "", b"", {}

    def __init__(self, breaks=(), others=()):
        self.comm, self.standing = Comm(breaks), Standing()
        self.others, self.changes = list(others), 0

    def absorb(self, error):
        self.fault = error
        return True

    def rejoin(self):
        self.fault = None

    def go_on(self, change):
        self.changes += 1

    def note_places(self):
        """There is the group of all alone."""

    def exchange(self, said):
        if "entered" in said:
            return [said, self.others.pop(0)]
        return [said, said]


class Mover:
    """Moves nothing."""

    def __init__(self, *_):
        self.metadata = {}

    offer = take = withdraw = close = lambda self, *_: None


@pytest.fixture
def loop(monkeypatch):
    """Make a loop over a small model: `loop(world, **options)`."""
    monkeypatch.setattr("stretto.torch.elastic.sharing.StateMover", Mover)

    def made(world, *, scheduler=False, **options):
        torch.manual_seed(0)
        net = torch.nn.Linear(3, 2)
        opt = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        schedule = torch.optim.lr_scheduler.StepLR(opt, 1, 0.5) if scheduler else None
        state = State(model=net, optimizer=opt, scheduler=schedule, seed=3)
        return Steps(state, world, 1, 4, 2), state, net, opt

    return made


def train(steps, net, opt, *, every=1, hook=lambda step: None):
    """Run the loop; return the number of each batch, and whether it counted."""
    seen = []
    for n, batch in enumerate(steps.run()):
        net(torch.rand(4, 3) + batch).square().sum().backward()
        hook(steps)
        if (batch + 1) % every == 0:
            opt.step()
            if steps.state.scheduler is not None:
                steps.state.scheduler.step()
            opt.zero_grad()
        seen.append((batch, steps.state.committed))
        assert n < 40
    return seen


def weights(net):
    return [p.detach().clone() for p in net.parameters()]


def plain(loop, **options):
    """The weights of a run without faults."""
    steps, _, net, opt = loop(World(), **options)
    assert [(n, True) for n in range(4)] == train(steps, net, opt)
    return weights(net), opt.param_groups[0]["lr"]


def test_a_broken_step_is_undone_and_comes_again(loop):
    """Nobody had committed it: the weights are those of a run without faults."""
    expected, rate = plain(loop, scheduler=True)
    behind = {"step": 1, "entered": False}
    world = World(breaks=(1,), others=[behind])
    steps, state, net, opt = loop(world, scheduler=True)
    seen = train(steps, net, opt)

    assert [(0, True), (1, False), (1, True), (2, True), (3, True)] == seen
    assert (4, 1) == (state.step, world.changes)
    assert all(map(torch.equal, expected, weights(net)))
    assert rate == opt.param_groups[0]["lr"]


def test_a_step_that_another_has_committed_is_committed_here(loop):
    """It had entered: its gradients were whole."""
    expected, _ = plain(loop)
    world = World(breaks=(1,), others=[{"step": 2, "entered": False}])
    steps, state, net, opt = loop(world)

    assert [(n, True) for n in range(4)] == train(steps, net, opt)
    assert 4 == state.step
    assert all(map(torch.equal, expected, weights(net)))


def test_a_fault_after_the_commit_undoes_nothing(loop):
    """Such as in an all_reduce of the loss, for a log."""
    expected, _ = plain(loop)
    world = World(others=[{"step": 2, "entered": False}])
    steps, state, net, opt = loop(world)
    seen = []
    for batch in steps.run():
        net(torch.rand(4, 3) + batch).square().sum().backward()
        opt.step()
        opt.zero_grad()
        seen.append((batch, state.committed))
        if batch == 1:
            world.absorb(PeerLost("rank 1 died"))

    assert [(n, True) for n in range(4)] == seen
    assert 1 == world.changes
    assert all(map(torch.equal, expected, weights(net)))


def test_batches_of_one_step_come_again_together(loop):
    """Two of them make a step; the fault is in the second."""
    faults = iter([None, PeerLost("rank 1 died"), None, None, None, None])

    def hook(steps):
        if (error := next(faults)) is not None:
            steps.world.absorb(error)

    steps, state, net, opt = loop(World(others=[{"step": 0, "entered": False}]))
    seen = train(steps, net, opt, every=2, hook=hook)

    assert [0, 1, 0, 1, 2, 3] == [batch for batch, _ in seen]
    assert [False, False, False, True, False, True] == [done for _, done in seen]
    assert 2 == state.step


def test_nobody_goes_on_who_would_lack_a_step(loop, tmp_path):
    """Another one has committed what this one has no whole gradients for."""
    world = World(others=[{"step": 5, "entered": False}])
    steps, state, net, opt = loop(world)
    state.checkpoint = str(tmp_path / "kept")
    with pytest.raises(MembershipError, match=r"at step 0 without whole gradients"):
        train(steps, net, opt, hook=lambda s: s.world.absorb(PeerLost("rank 1 died")))
    assert (tmp_path / "kept").exists()


def test_a_step_is_called_once_and_in_the_loop(loop):
    """Else ranks would enter different flags."""
    steps, _, _, opt = loop(World())
    running = steps.run()
    next(running)
    opt.step()
    with pytest.raises(MembershipError, match="twice for one batch"):
        opt.step()
    assert np.array_equal([0, 0], steps._flag)
    with pytest.raises(CallError, match="ranks of this job stay as they came"):
        elastic.steps(steps.state)


class Lossy(World):
    """A world where somebody comes after each loss, and takes a state from here."""

    def __init__(self, breaks, others):
        super().__init__(breaks, others)
        self.given = []

    def exchange(self, said):
        if "comes" in said:
            return [said, {**said, "comes": True}]
        if "1" in said:
            self.given.append(said["1"]["values"])
        return super().exchange(said)


@pytest.mark.parametrize("at", [1, 2, 3])
@pytest.mark.parametrize("ahead", [0, 1])
def test_a_state_that_is_given_is_of_the_end_of_a_step(loop, at, ahead):
    """With all that the loop does after `optimizer.step()`: a schedule, say.

    Whoever comes begins with the next step, wherever the others were when one was lost.
    """
    world = Lossy((at,), [{"step": at + ahead, "entered": False}])
    steps, state, net, opt = loop(world, scheduler=True)
    train(steps, net, opt)

    (given,) = world.given
    schedule = unpacked(given["values"])["more"][0]
    assert at + ahead == given["step"] == schedule["last_epoch"]
    assert 4 == state.step == state.scheduler.last_epoch


@pytest.mark.parametrize("dies", [False, True])
def test_who_dies_before_it_has_left_is_a_loss_and_nobody_waits(loop, dies):
    """Between the step whose flag has said so, and its goodbye."""
    world = World(others=[{"step": 0, "entered": False}])
    steps, said = loop(world)[0], []
    standing = world.standing = steps._policy._world.standing
    standing.wait = lambda true, within_s: said.append(true())
    standing.agree = lambda attempt, failure="": said.append((attempt, bool(failure)))
    standing.dismissed = set()
    standing.gone = {"b": "died"} if dies else {}
    standing.facts = {} if dies else {"b": {"yields": 0}}
    steps._policy.attempt, steps._policy.goes = 5, {"b": True}
    steps._agreed = 5
    steps._change()
    assert [True, (5, dies)] == said
    assert 1 == world.changes


def test_one_that_stands_by_has_the_last_order_of_gradients(loop):
    """With `static_graph` DDP takes it a step later than one makes that stands by."""
    world = World()
    world.stands_by, world.seat = True, (1, 2)
    steps, _, net, opt = loop(world)
    done = []

    class Reducer:
        def _rebuild_buckets(self):
            done.append(len(done))

    net.reducer = Reducer()
    for batch in steps._warm_up():
        assert [] == done
        net(torch.rand(4, 3) + batch).square().sum().backward()
        opt.step()
    assert [0] == done
