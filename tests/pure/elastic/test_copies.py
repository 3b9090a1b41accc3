"""From where who comes takes its state: the order, and that all can begin there."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stretto.errors import CallError, MembershipError
from stretto.torch.elastic import State
from stretto.torch.elastic.copies import (
    FILE,
    LEAVER,
    Restoring,
    StateCopies,
    choose,
    keepers_of,
)
from stretto.torch.elastic.moving import Snapshot


def rank(part, *, comes=False, step=9, leaver=None, own=(), held=(), files=()):
    """What a rank says."""
    return {
        "comes": comes, "step": step, "part": part, "leaver": leaver,
        "own": list(own), "held": [list(one) for one in held], "files": list(files),
    }  # fmt: skip


def comer(part, **said):
    return rank(part, comes=True, step=0, **said)


def test_sources_are_tried_in_order():
    """Who left the place, a replica, a neighbour's copy, a checkpoint."""
    replica = rank("a", own=[8], files=[6])
    keeper = rank("b", own=[8], held=[(0, 8)], files=[6])
    assert Restoring(None, {0: LEAVER}) == choose([comer("a", leaver=9), replica])
    assert Restoring(None, {0: 1}) == choose([comer("a", leaver=8), replica])
    assert Restoring(8, {0: 1}) == choose([comer("a", files=[6]), keeper])
    without = {**keeper, "held": []}
    assert Restoring(6, {0: FILE}) == choose([comer("a", files=[6]), without])
    with pytest.raises(MembershipError, match=r"part of rank 0 \(a\), or a copy of it"):
        choose([comer("a"), without])
    nobody = rank("b", own=[8], files=[6])
    with pytest.raises(MembershipError, match=r"want replicas of each part \(HSDP\)"):
        choose([comer("a", files=[6]), nobody, rank("c", own=[8])])


def test_a_replica_gives_its_own_copy_where_all_go_back():
    """One part is whole, another comes from a copy."""
    said = [
        comer("a"),
        comer("b"),
        rank("a", own=[4, 8]),
        rank("c", own=[4, 8], held=[(1, 4)]),
    ]
    assert Restoring(4, {0: 2, 1: 3}) == choose(said)


steps = st.sets(st.integers(0, 3))


@given(st.data())
def test_where_all_go_back_to_everybody_has_it(data):
    """And to no earlier step than must be, of copies."""
    n = data.draw(st.integers(2, 4))
    said = []
    for r in range(n):
        held = [(q, s) for q in range(n) if q != r for s in data.draw(steps)]
        said.append(
            rank(
                f"{r}", comes=r == 0 or data.draw(st.booleans()), own=data.draw(steps),
                held=held, files=data.draw(steps),
            )
        )  # fmt: skip
    said[-1]["comes"] = False
    try:
        found = choose(said)
    except MembershipError:
        found = None
    whole = [r for r in range(n) if not said[r]["comes"]]

    def copied(r, step):
        return any([r, step] in said[q]["held"] for q in whole)

    def has(r, step, files):
        mine = step in said[r]["own"] if r in whole else copied(r, step)
        return mine or (files and step in said[r]["files"])

    for files in (False, True):
        can = [s for s in range(4) if all(has(r, s, files) for r in range(n))]
        if can:
            assert found.step == max(can)
            for r, source in found.sources.items():
                wants = said[r]["files"] if source == FILE else said[source]["held"]
                assert (found.step if source == FILE else [r, found.step]) in wants
            return
    assert found is None


@given(st.integers(2, 9), st.integers(1, 3), st.data())
def test_keepers_are_others_and_of_other_hosts_first(n, copies, data):
    """As many as there can be; each rank keeps as many as it has, of one host."""
    hosts = data.draw(st.lists(st.integers(0, 2), min_size=n, max_size=n))
    for r in range(n):
        found = keepers_of(r, hosts, n, copies)
        assert min(copies, n - 1) == len(set(found) - {r}) == len(found)
        elsewhere = sum(h != hosts[r] for h in hosts)
        assert min(copies, elsewhere) == sum(hosts[q] != hosts[r] for q in found)
    every = [q for r in range(n) for q in keepers_of(r, (), n, copies)]
    assert {every.count(q) for q in range(n)} == {min(copies, n - 1)}


def state(**options):
    """A state with a small model that has made a step."""
    torch.manual_seed(0)
    net = torch.nn.Linear(4, 3)
    opt = torch.optim.Adam(net.parameters())
    net(torch.randn(8, 4)).square().sum().backward()
    opt.step()
    return State(model=net, optimizer=opt, **options)


def test_checkpoints_are_whole_and_the_last_two_stay(tmp_path):
    """Of this rank; one that is damaged is refused by name."""
    path = str(tmp_path / "at-{rank}")
    ours = state(checkpoint=path, checkpoint_every=2)
    ours.rank = 1
    copies = StateCopies(ours, None, job=7)
    for ours.step in range(8):
        copies.save()
        copies.save()
    assert [4, 6] == copies.files()
    assert ["at-1.4", "at-1.6", "at-1.steps"] == sorted(
        one.name for one in tmp_path.iterdir()
    )
    assert 6 == copies.at(6).said["values"]["step"]
    assert [] == StateCopies(ours, None, job=8).files()
    found = Snapshot.read(str(tmp_path / "at-1.6"))
    found.tensors["model.0.bias"] += 1
    found.write(str(tmp_path / "at-1.6"))
    with pytest.raises(MembershipError, match="the checkpoint came otherwise"):
        copies.at(6)


def test_odd_wishes_for_copies_are_refused():
    """With what is wanted."""
    with pytest.raises(CallError, match="copies=-1; want a whole number, at least 0"):
        state(copies=-1)
    with pytest.raises(CallError, match="every=0; want a whole number, at least 1"):
        state(every=0)
    with pytest.raises(CallError, match=r"want a path with \{rank\} in it"):
        state(checkpoint="x", checkpoint_every=3)
