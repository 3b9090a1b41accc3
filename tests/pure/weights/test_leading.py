"""A replica's leader, with ranks and a source that are stand-ins."""

import threading
from types import SimpleNamespace

import pytest

from stretto.errors import TransferError
from stretto.weights.leading import Leads
from stretto.weights.manifest import Held, Manifest
from stretto.weights.member import Who
from stretto.weights.version import Version

NEWEST = Version("run", 7)
MANIFEST = Manifest(
    groups=((Held(name="w", shape=(4,), box=((0, 4),), dtype="float32"),),)
)
SUMS = "01000000"


class Ranks:
    """A replica of one rank, and a source of one that offers a version."""

    name, team, of = "w", "b", 1
    patience, fault, is_closed, is_over = 30.0, None, False, False

    def __init__(self, manifest_of_source):
        self.changed = threading.Condition(threading.RLock())
        self.source = SimpleNamespace(identity="source")
        said = {
            "team": "",
            "rank": 0,
            "of": 1,
            "metadata": {},
            "version": str(NEWEST),
            "coming": "",
            "via": [],
        }
        self.known = {"source": Who(self.source, said)}
        self.puller = SimpleNamespace(manifest=manifest_of_source)
        loop = SimpleNamespace(at=lambda until, do: None, apart=lambda do: do())
        self.engine = SimpleNamespace(loop=loop)
        self.asked, self.told = [], []

    def send(self, peer, word, **body):
        self.asked.append((word, body["number"]))

    def tell_ranks(self, word, **body):
        self.told.append((word, body))

    def mates(self):
        return {}


def fetching(manifest_of_source=lambda peer, of: MANIFEST):
    """Return a leader whose rank fetches, and the rank's last message of it."""
    ranks = Ranks(manifest_of_source)
    leads = Leads(ranks, is_single=False, start=None)
    leads.consider()
    grant = {
        "number": ranks.asked[-1][1],
        "well": True,
        "identity": "source",
        "metadata": {},
        "tag": "t",
        "digest": MANIFEST.digest,
        "token": "",
        "whole": True,
        "sums": SUMS,
        "changes": [],
    }
    leads.held(ranks.source, grant)
    return leads, ranks, ranks.told[-1][1]["attempt"]


def report(attempt, manifest=MANIFEST.text, digest=MANIFEST.digest):
    return {
        "attempt": attempt, "manifest": manifest, "digest": digest, "sums": SUMS,
    }  # fmt: skip


def test_what_all_ranks_have_becomes_the_version_of_the_next_step():
    """Once what they have is what was pushed."""
    leads, ranks, attempt = fetching()

    leads.reported(0, report(attempt))

    assert leads.current == NEWEST
    assert ranks.fault is None


def is_asked_again(leads, ranks):
    """Whether the source is asked once more, when it has something new to offer."""
    before = len(ranks.asked)
    leads.forgive("")
    leads.consider()
    return [word for word, _ in ranks.asked[before:]] == ["hold"]


def test_a_rank_that_names_tensors_it_never_told_of_is_named():
    """The old version stays, and the newest is asked for again."""
    leads, ranks, attempt = fetching()

    leads.reported(0, report(attempt, manifest=""))

    assert isinstance(ranks.fault, TransferError)
    assert "rank 0 of replica 'b' has tensors as in" in str(ranks.fault)
    assert leads.current is None
    assert is_asked_again(leads, ranks)


@pytest.mark.parametrize("error", [KeyError("gone"), ValueError("odd"), MemoryError()])
def test_whatever_keeps_a_leader_from_comparing_ends_the_fetch(error):
    """Else the replica would wait for it, and never fetch again."""

    def manifest(peer, of):
        raise error

    leads, ranks, attempt = fetching(manifest)

    leads.reported(0, report(attempt))

    assert f"cannot be compared: {type(error).__name__}" in str(ranks.fault)
    assert leads.current is None
    assert not leads.state.wanted
    assert is_asked_again(leads, ranks)
