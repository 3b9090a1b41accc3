"""Every carrier does what a carrier must do: `stretto.testing.carriers` says what.

TCP here; `test_libraries.py` runs this file by every other carrier that is installed,
and `tests/host/hop/test_own_carrier.py` by one of a user's own.
"""

import ast
import os
from pathlib import Path

import pytest

from stretto.errors import StrettoError, UnknownNameError
from stretto.fabric import hop
from stretto.testing import carriers

CARRIER = os.environ.get("STRETTO_TEST_LIBRARY", "tcp")
pytestmark = pytest.mark.timeout(120)


@pytest.mark.parametrize("case", carriers.CASES, ids=lambda case: case.__name__)
def test_a_carrier_does_what_it_must(case):
    """One thing each; what a carrier says that it cannot is not asked of it."""
    case(hop.get(CARRIER))


class Wrong(hop.Carrier):
    """Raises words to what they say, also when that is less."""

    name = "wrong"

    def new_hop(self, window):
        made = hop.get("tcp").new_hop(window)
        made.do_signal = lambda *given: False
        return made


def test_the_case_that_fails_is_named(monkeypatch):
    """With the carrier: here one that never takes a signal."""
    from stretto.testing import ends

    monkeypatch.setattr(ends, "WITHIN_S", 0.2)
    with pytest.raises(AssertionError, match=r"carrier wrong, .*: it does not come in"):
        carriers.check(Wrong())


@pytest.mark.parametrize(
    ("offered", "said"),
    [
        *((one, "is .*; want a") for one in (None, object, 7)),
        (Wrong, "is named 'wrong'"),
    ],
)
def test_an_entry_point_that_is_no_carrier_is_named(monkeypatch, offered, said):
    """With what it is, and what is wanted: also where its name is another one."""
    monkeypatch.setattr(hop._carriers, "get", lambda name: offered)
    with pytest.raises(StrettoError, match=rf"'mine' of stretto\.carriers {said}"):
        hop.get("mine")


def test_an_unknown_carrier_is_named():
    """With those that there are."""
    with pytest.raises(UnknownNameError, match="tcp"):
        hop.get("tpc")


def test_nobody_asks_for_a_carriers_name_to_know_what_it_can():
    """What it can, it says; `bench` alone compares the names of its contests."""
    sources = Path(hop.__file__).parents[1]
    compared = [
        f"{path.relative_to(sources)}:{node.lineno}"
        for path in sources.rglob("*.py")
        if path.relative_to(sources).parts[0] not in ("hop", "bench")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Compare)
        for one in ast.walk(node)
        if isinstance(one, ast.Constant) and one.value in hop.names()
    ]

    assert [] == compared
