"""What the library writes and compiles itself is not taken for a user's line."""

import inspect

import numpy as np
import pytest
from tests.pure.calls.test_arguments import Alone

import stretto
from stretto import Communicator
from stretto.errors import is_library
from stretto.runtime.calls import VERBS


def test_verbs_that_were_written_are_the_librarys():
    """A user's traceback ends in a line of the user's."""
    written = {getattr(Communicator, name).__code__.co_filename for name in VERBS}

    assert all(map(is_library, written))
    assert "<stretto: all_reduce>" in written
    assert not is_library("<string>")


def test_every_verb_can_be_started():
    """Under its name and `_async`, with its own arguments, for type checkers too."""
    for name in VERBS:
        started = vars(Communicator)[f"{name}_async"]
        own, other = (
            inspect.signature(one) for one in (getattr(Communicator, name), started)
        )
        assert own.parameters == other.parameters
        assert "Work" == other.return_annotation


def test_what_verbs_may_be_told_is_shown():
    """`help` shows every keyword that a call takes, not `**options`."""
    for name, verb in VERBS.items():
        shown = inspect.signature(getattr(Communicator, name)).parameters
        assert ("self", *verb.parameters) == tuple(shown)
        assert all(p.kind is not p.VAR_KEYWORD for p in shown.values())


@pytest.mark.parametrize("pairs", [((0, 0),), [(0, 0)], [[0, 0]], {(0, 0)}])
def test_pairs_of_any_kind_are_known_from_their_second_call_on(pairs, monkeypatch):
    """A list is as usual as a tuple, and as quick; others are read, and known too."""
    x, out = np.arange(4.0), np.zeros(4)
    with stretto.Communicator(Alone(), profiles=None) as comm:
        comm.permute(x, pairs, out=out)
        out[:] = 0
        monkeypatch.setattr(comm, "_enter", lambda *_: pytest.fail("it is not known"))
        if type(pairs) is list and type(pairs[0]) is tuple:
            monkeypatch.setattr(
                comm, "_caller", lambda *_: pytest.fail("it is read again")
            )
        comm.permute(x, pairs, out=out)
        monkeypatch.undo()
        assert out.tolist() == x.tolist()
