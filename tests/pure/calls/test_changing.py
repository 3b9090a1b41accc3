"""A change that breaks: it goes on where the others do, and where somebody is lost."""

from types import SimpleNamespace

import pytest

from stretto.errors import PeerLost
from stretto.runtime.calls import changing


class _Standing:
    """What one knows of the ranks, of which nobody is lost."""

    is_over = False
    generation = 0
    identities = ("a", "b")
    standbys = gone = dismissed = ()

    def __init__(self):
        self.facts, self.told, self.gone = {}, {}, {}

    def wait(self, condition, timeout_s):
        condition()

    def tell(self, **said):
        self.told |= said


def failing(standing, peers, generations):
    """Return what renews: it fails as long as another generation follows."""

    def renew():
        peers.group.generation = standing.generation
        if generations:
            standing.generation = generations.pop(0)  # the others have gone on
            raise PeerLost("rank 1 died: its connection ended")

    return renew


@pytest.fixture
def change(monkeypatch):
    """Return a function that changes to generations, one after the other."""
    standing = _Standing()
    peers = SimpleNamespace(standing=standing, broken=[1])
    peers.group = SimpleNamespace(generation=0)
    monkeypatch.setattr(changing, "peers_of", lambda group: peers)
    monkeypatch.setattr(changing, "_check_open", lambda comm, verb: None)

    def run(*generations):
        first, *rest = generations
        comm = SimpleNamespace(
            _group=peers, _wait_started=int, _renew=failing(standing, peers, rest)
        )
        standing.generation = first
        return changing.change(comm, lambda standing: None, 5.0) is comm

    return run


def test_who_fails_while_others_have_gone_on_follows_them(change):
    """What it has heard of is of the generation before: nobody is lost in this one."""
    assert change(1, 2)
    assert change(3, 4, 5)


def test_who_fails_in_the_newest_generation_raises(change):
    """Nobody is lost and nothing follows: it is the caller's to know."""
    with pytest.raises(PeerLost):
        change(1, 1)


def test_newcomers_are_not_blamed_for_what_follows():
    """Where another generation has begun meanwhile, its ranks are not told unfit."""
    standing = _Standing()

    def wait(condition, timeout_s):
        standing.generation += 1

    standing.wait = wait
    assert changing.give_up_newcomers(standing, ("a",), PeerLost("rank 1 died"))
    assert standing.told == {}
