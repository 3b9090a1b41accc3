"""What a rank's place consists of: hashes, positions, random numbers, what is alike."""

from itertools import islice

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    RandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)
from torch.utils.data.distributed import DistributedSampler

from stretto.errors import CallError, MembershipError
from stretto.torch.answered import Sandbox
from stretto.torch.elastic import State
from stretto.torch.elastic.batches import Batches
from stretto.torch.elastic.hashes import differences, hash_of
from stretto.torch.elastic.seeds import Seeds


@given(st.integers(1, 5000), st.data())
def test_a_hash_tells_any_byte_that_differs_and_places_that_were_swapped(size, data):
    """Of any length, and at any address."""
    x = torch.randint(0, 256, (size + 1,), dtype=torch.uint8)
    at = data.draw(st.integers(0, 1))
    one = x[at : at + size]
    assert hash_of(one) == hash_of(one.clone())
    i, j = (data.draw(st.integers(0, size - 1)) for _ in "ij")
    other = one.clone()
    other[i] ^= data.draw(st.integers(1, 255))
    assert hash_of(one) != hash_of(other)
    swapped = one.clone()
    swapped[i], swapped[j] = one[j], one[i]
    assert (hash_of(one) == hash_of(swapped)) == (one[i] == one[j])
    assert hash_of(one) != hash_of(one.view(1, -1))


def test_large_tensors_are_told_by_every_word():
    """Across rows and columns of the words that are summed."""
    x = torch.arange(1 << 14)
    for i, j in [(0, 1), (0, 1024), (5, 3000), (1023, 1024)]:
        other = x.clone()
        other[i], other[j] = x[j], x[i]
        assert hash_of(x) != hash_of(other)
    assert ["b"] == differences({"a": "1", "b": "2"}, {"a": "1"})


@pytest.mark.parametrize("workers", [0, 1])
def test_batches_go_on_where_they_were_whoever_asks(workers):
    """By the order of the epoch and of the rank; nothing that is skipped is read."""
    read = []

    class Data(TensorDataset):
        def __getitem__(self, i):
            read.append(i)
            return super().__getitem__(i)

    data = Data(torch.arange(40))
    sampler = DistributedSampler(data, num_replicas=2, rank=0, shuffle=True, seed=1)
    loader = DataLoader(data, batch_size=4, sampler=sampler, num_workers=workers)
    batches = Batches(loader, 3, None)
    batches.seat(1, 2)
    whole = [(e, n, b[0].tolist()) for e, n, b in batches.begin(0, 0, lambda e: None)]
    assert 15 == len(whole)
    for start in (0, 3, 5, 9):
        read.clear()
        later = batches.begin(*whole[start][:2], lambda e: None)
        assert whole[start:] == [(e, n, b[0].tolist()) for e, n, b in later]
        assert workers or len(read) == 4 * (15 - start)


def _drawn(kind, data):
    """A loader whose order is drawn: from PyTorch's generator, or from its own."""
    own = {"generator": torch.Generator().manual_seed(4)}
    if kind in ("plain", "own"):
        more = own if kind == "own" else {}
        return DataLoader(data, batch_size=4, shuffle=True, **more)
    if kind == "sampler":
        return DataLoader(data, batch_size=4, sampler=RandomSampler(data, **own))
    weights = WeightedRandomSampler(torch.arange(40.0), 40, **own)
    return DataLoader(data, batch_sampler=BatchSampler(weights, 4, drop_last=False))


@pytest.mark.parametrize("kind", ["plain", "own", "sampler", "batches"])
def test_who_comes_finds_the_batches_that_were_drawn_whatever_it_drew_before(kind):
    """Two batches, as one that stands by; each epoch has another order."""
    data = TensorDataset(torch.arange(40))
    ours, theirs = (Batches(_drawn(kind, data), 3, None) for _ in "ab")

    def all_from(batches, *at):
        found = batches.begin(*at, torch.manual_seed)
        return [(e, n, b[0].tolist()) for e, n, b in found]

    whole = all_from(ours, 0, 0)
    assert 3 == len({str([b for e, _, b in whole if e == one]) for one in range(3)})
    standing = theirs.begin(0, 0, torch.manual_seed)
    assert whole[:2] == [(e, n, b[0].tolist()) for e, n, b in islice(standing, 2)]
    for start in (0, 3, 11, 25):
        assert whole[start:] == all_from(theirs, *whole[start][:2])


@given(
    st.integers(-(1 << 70), 1 << 70),
    st.lists(
        st.tuples(st.integers(0, 9), st.integers(-3, 2000), st.integers(0, 3)),
        min_size=1,
        max_size=20,
    ),
)
def test_seeds_are_those_of_rank_and_step_in_whatever_order_they_are_asked(seed, asked):
    """Computed here one by one, with whole numbers of any size."""
    found, mask = Seeds(seed), (1 << 64) - 1
    for rank, step, nth in asked:
        x = nth * 0xC2B2AE3D27D4EB4F + seed * 0x9E3779B97F4A7C15
        x = (x + rank * 0xBF58476D1CE4E5B9) & mask
        x = (x ^ (step + 1) * 0x94D049BB133111EB) & mask
        x = ((x ^ (x >> 31)) * 0xD6E8FEB86659FD93) & mask
        assert x ^ (x >> 32) == found.of(rank, step, nth)


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("now", [1, 2, 3, 5])
def test_more_or_fewer_ranks_divide_the_samples_anew(now, drop_last):
    """As if each sampler had been made for so many; its epoch stays, and its order."""
    data = TensorDataset(torch.arange(40))
    for rank in range(now):
        ours, new = (
            DistributedSampler(
                data, num_replicas=n, rank=r, seed=7, drop_last=drop_last
            )
            for n, r in ((3, 2), (now, rank))
        )
        ours.set_epoch(4)
        new.set_epoch(4)
        Batches(DataLoader(data, sampler=ours), 1, None).seat(rank, now)
        assert (list(new), len(new)) == (list(ours), len(ours))


def model(width=4):
    """A small model with an optimizer that has a state."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(width, 3), torch.nn.BatchNorm1d(3))
    opt = torch.optim.Adam(net.parameters(), lr=0.1)
    return net, opt


def step(net, opt, x):
    opt.zero_grad()
    net(x).square().sum().backward()
    opt.step()


def test_a_state_goes_from_one_to_another_and_both_train_alike(tmp_path):
    """Also where one optimizer has no state yet; by a file, too."""
    net, opt = model()
    schedule = torch.optim.lr_scheduler.StepLR(opt, 1)
    ours = State(model=net, optimizer=opt, scheduler=schedule)
    for _ in range(3):
        step(net, opt, torch.randn(8, 4))
        schedule.step()
    ours.step = 3
    path = str(tmp_path / "state")
    ours.save(path)
    other, fresh = model()
    theirs = State(
        model=other, optimizer=fresh,
        scheduler=torch.optim.lr_scheduler.StepLR(fresh, 1),
    )  # fmt: skip
    theirs.load(path)

    assert 3 == theirs.step
    assert ours.values() == theirs.values()
    x = torch.randn(8, 4)
    step(net, opt, x)
    step(other, fresh, x)
    found = theirs.tensors()
    for name, tensor in ours.tensors().items():
        assert torch.equal(tensor, found[name]), name


def test_another_model_is_refused_by_name():
    """With both shapes; and what cannot be a state at all."""
    ours, theirs = (State(model=m, optimizer=o) for m, o in (model(4), model(5)))
    assert ours.digest() != theirs.digest()
    with pytest.raises(
        MembershipError, match=r"0.weight is .*\(3, 5\).*want the same model"
    ):
        ours.conform(theirs.layout())
    with pytest.raises(CallError, match=r"optimizer=int; want one of torch\.optim"):
        State(model=model()[0], optimizer=1)
    with pytest.raises(CallError, match=r"want a torch\.nn\.Module, or several"):
        State(model=[1], optimizer=model()[1])
    with pytest.raises(CallError, match="no loader and no number of steps"):
        ours.batches(1, None)


def test_random_numbers_are_of_the_rank_and_the_step():
    """Whoever has the place draws the same; no other place and no other step does."""
    net, opt = model()
    drawn = {}
    for rank in range(3):
        for at in range(3):
            for nth in range(2):
                state = State(model=net, optimizer=opt, seed=7)
                state.rank, state.step = rank, at
                state.begin(nth)
                drawn[rank, at, nth] = torch.rand(4).tolist()
                state.begin(nth)
                assert drawn[rank, at, nth] == torch.rand(4).tolist()
    assert 18 == len({tuple(one) for one in drawn.values()})


def test_what_a_broken_step_has_changed_is_undone():
    """Statistics of batches, and gradients."""
    net, opt = model()
    state = State(model=net, optimizer=opt)
    state.begin()
    before = [b.clone() for b in net.buffers()]
    net(torch.randn(8, 4)).sum().backward()
    assert not all(map(torch.equal, before, net.buffers()))
    state.undo()
    assert all(map(torch.equal, before, net.buffers()))
    assert all(p.grad is None for p in net.parameters())


def test_a_sandbox_answers_finitely_and_counts():
    """Its own part for everybody's; ones where there is nothing."""
    box = Sandbox(1, 3)
    x = torch.arange(6.0)
    assert x is box.all_reduce(x)
    out = torch.full((3, 6), torch.nan)
    assert box.all_gather(x, out=out).tolist() == [x.tolist()] * 3
    assert box.reduce_scatter(x, out=torch.empty(2)).tolist() == [2.0, 3.0]
    assert box.broadcast(torch.tensor([torch.nan, 2.0]), root=0).tolist() == [1.0, 2.0]
    got = torch.full((2,), torch.nan)
    box.recv_async(got, 0).wait()
    assert [1.0, 1.0] == got.tolist()
    assert {"all_reduce": 1, "all_gather": 1, "reduce_scatter": 1} | {
        "broadcast": 1, "recv": 1,
    } == box.counts  # fmt: skip
