"""Memory that a group's ranks take and give back: whatever they do, no late writes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stretto.fabric.region import GroupRegions, unlike

RANKS, ROOM, GRAIN, PAGE = 3, 64 << 10, 128, 4096


def take(ranks, nbytes):
    """Have all ranks take a region, as sessions do; return what each was given."""
    said = [one.ask(f"{nbytes}") for one in ranks]
    assert [""] * RANKS == [one.hear(said) for one in ranks]
    return [one.begin(nbytes) for one in ranks]


@given(st.lists(st.tuples(st.integers(0, 9000), st.booleans()), max_size=40), st.data())
def test_nobody_is_given_what_somebody_still_has(takes, data):
    """All ranks are given the same; a region comes again when all have let it go."""
    ranks = [GroupRegions(GRAIN, PAGE) for _ in range(RANKS)]
    for one in ranks:
        one.give(0, ROOM)
    held = [{} for _ in ranks]
    epochs = set()
    for nbytes, withdraws in takes:
        given_out = take(ranks, nbytes)
        assert [given_out[0]] * RANKS == given_out
        new = given_out[0]
        if new is not None:
            assert new.epoch not in epochs
            assert 0 == new.offset % (PAGE if nbytes >= PAGE else GRAIN)
            assert max(1, nbytes) <= new.nbytes
            epochs.add(new.epoch)
            for old in (region for mine in held for region in mine.values()):
                assert new.offset + new.nbytes <= old.offset or (
                    old.offset + old.nbytes <= new.offset
                )
            for mine in held:
                mine[new.epoch] = new
        if withdraws:  # on one rank, whichever it is
            nth = data.draw(st.integers(0, RANKS - 1))
            if held[nth]:
                epoch = data.draw(st.sampled_from(sorted(held[nth])))
                del held[nth][epoch]
                ranks[nth].withdraw(epoch)
    for mine, one in zip(held, ranks, strict=True):
        for epoch in mine:
            one.withdraw(epoch)

    assert (0, ROOM) == take(ranks, ROOM)[0][:2]


def test_a_region_that_is_withdrawn_twice_takes_no_others_place():
    """An epoch is used once: what says it again is about nobody's memory."""
    ranks = [GroupRegions(GRAIN, PAGE) for _ in range(RANKS)]
    for one in ranks:
        one.give(0, GRAIN)
    first = take(ranks, 1)[0]
    for one in ranks:
        one.withdraw(first.epoch)
    second = take(ranks, 1)[0]
    for one in ranks:
        one.withdraw(first.epoch)

    assert first.offset == second.offset
    assert [None] * RANKS == take(ranks, 1)


def test_ranks_that_want_other_memory_are_told_so():
    """Each says who wants what."""
    ranks = [GroupRegions(GRAIN, PAGE) for _ in range(RANKS)]
    said = [one.ask(f"{nth // 2}") for nth, one in enumerate(ranks)]

    assert [unlike(["0", "0", "1"])] * RANKS == [one.hear(said) for one in ranks]
