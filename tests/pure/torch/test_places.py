"""Groups of places: who comes hears of them from who is left, or who has known them."""

import itertools

import pytest

from stretto.errors import MembershipError

pytest.importorskip("torch")

from stretto.torch.elastic.places import places_of

RANKS = 6
KINDS = (  # each rank is in one group of each kind: rows and columns, and alone
    [("row0", [0, 1, 2]), ("row1", [3, 4, 5])],
    [("col0", [0, 3]), ("col1", [1, 4]), ("col2", [2, 5])],
    [(f"own!{rank}", [rank]) for rank in range(RANKS)],
)


def groups_of(rank):
    """Return the groups that a rank is in."""
    return [next(g for g in kind if rank in g[1]) for kind in KINDS]


def said(lost, known):
    """Return what ranks say when some have just come, each with groups of rank 5."""
    places = [groups_of(rank) for rank in range(RANKS)] if known else []
    come = [(name.partition("!")[0], members) for name, members in groups_of(5)]
    return [
        {"parts": come, "comes": True, "places": []}
        if rank in lost
        else {"parts": groups_of(rank), "comes": False, "places": places}
        for rank in range(RANKS)
    ]


@pytest.mark.parametrize("many", range(RANKS))
def test_whoever_is_lost_places_are_what_they_were(many):
    """Any of the ranks at once, as long as one is left that knew all places."""
    for lost in itertools.combinations(range(RANKS), many):
        found = places_of(said(lost, known=True))
        assert found == [groups_of(rank) for rank in range(RANKS)]


def test_a_group_that_nobody_has_known_is_named():
    """Before all have told their groups, one of each has to be left."""
    for lost in itertools.combinations(range(RANKS), 2):
        whole = [g for kind in KINDS[:2] for g in kind if {*g[1]} <= {*lost}]
        if whole:
            with pytest.raises(MembershipError, match=r"nobody is left of group 2 of"):
                places_of(said(lost, known=False))
        else:
            found = places_of(said(lost, known=False))
            assert found == [groups_of(rank) for rank in range(RANKS)]
