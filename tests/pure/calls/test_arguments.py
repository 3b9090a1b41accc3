"""Whatever is passed at the door of the public interface: a clear error."""

import ast
import math
from pathlib import Path

import numpy as np
import pytest

import stretto
from stretto.errors import StrettoError
from stretto.executors import Group
from stretto.fabric.meeting.environment import find_place
from stretto.fabric.patience import check_deadline, check_num_ranks
from stretto.runtime.calls.requests.arguments import ARGUMENTS
from stretto.runtime.choice import own

ODD = [math.inf, math.nan, -1, 0, "30", None, True, [1], 1e300, 10**400, 1j, b"\xff"]


@pytest.mark.parametrize("given", ODD, ids=lambda g: str(g)[:8])
def test_a_deadline_is_seconds(given):
    """Of everything else the error names what was got."""
    with pytest.raises(StrettoError, match=r"deadline_s=.*want seconds"):
        check_deadline(given, "connect")


@pytest.mark.parametrize("given", [0, -3, 10**5, 10**8, 10**400, 2.5, "4", None, True])
def test_a_number_of_ranks_is_one_that_can_meet(given):
    """Before anything is started, and in a short message."""
    with pytest.raises(StrettoError, match="at least one rank is needed") as e:
        check_num_ranks(given, "spawn")
    assert len(str(e.value)) < 200


def test_spawn_and_connect_check_first():
    """In no time."""
    for options in ({"num_ranks": 10**8}, {"num_ranks": 2, "deadline_s": math.nan}):
        with pytest.raises(StrettoError, match=r"want|needed"):
            stretto.spawn(print, **options)
    with pytest.raises(StrettoError, match="at least one rank is needed"):
        stretto.connect(0, 10**8, "job")
    with pytest.raises(StrettoError, match="deadline_s=nan"):
        stretto.connect(0, 1, "job", deadline_s=math.nan)


@pytest.mark.parametrize(
    "given", [(0.5, 2, "j"), ("0", 2, "j"), (0, 2, 7), (0, 2, "tcp://h:\u00b2")]
)
def test_a_place_is_numbers_and_a_text(given):
    """Everything else is refused in one line."""
    with pytest.raises(StrettoError, match="want"):
        find_place(*given)


class Alone(Group):
    """Rank 0 of 1, which exchanges with itself."""

    rank, num_ranks, deadline_s = 0, 1, 1.0
    broken = np.zeros(1, np.int64)

    def exchange(self, payload, fds=()):
        """Return its own part."""
        return [(payload, ())]

    def split(self, color, key):
        """Return no group."""


X = np.ones(4, np.float32)
CALLS = {
    "op=[]": lambda c: c.all_reduce(X, op=["sum"]),
    "op={}": lambda c: c.reduce(X, op={}),
    "algorithm=[]": lambda c: c.broadcast(X, algorithm=["a"]),
    "root=[]": lambda c: c.gather(X, root=[0]),
    "dtype=[]": lambda c: c.all_gather(X, dtype=["a"]),
    "split=[]": lambda c: c.all_to_all(X, split=[0]),
    "counts=3.9": lambda c: c.all_gather_v(X, [3.9]),
    "counts=nan": lambda c: c.scatter_v(X, [math.nan]),
    "counts=text": lambda c: c.gather_v(X, ["4"]),
    "counts=inf": lambda c: c.reduce_scatter_v(X, [math.inf]),
    "counts=dict": lambda c: c.reduce_scatter_v(X, {}),
    "empty(-5)": lambda c: c.empty(-5),
    "empty(2.5)": lambda c: c.empty(2.5),
    "empty(text)": lambda c: c.empty("four"),
    "empty(huge)": lambda c: c.empty((1 << 40, 1 << 40)),
    "empty(None)": lambda c: c.empty(None),
    "empty(dtype)": lambda c: c.empty(4, object()),
    "color=text": lambda c: c.split("a"),
    "color=1.5": lambda c: c.split(1.5),
    "color=huge": lambda c: c.split(1 << 80),
    "key=text": lambda c: c.split(0, "a"),
    "deadline": lambda c: c.split(0, deadline_s=-1),
}


@pytest.mark.parametrize("name", CALLS)
def test_odd_arguments_are_refused_and_break_nothing(name):
    """A clear error; then the communicator works as before."""
    comm = stretto.Communicator(Alone(), profiles=None)
    with pytest.raises(StrettoError):
        CALLS[name](comm)

    assert [1.0] * 4 == comm.all_reduce(np.ones(4, np.float32)).tolist()


@pytest.mark.parametrize(
    "text", ["a = [", "", "executor = 1\nrule = 3", "rule = [[1]]\n", "a=" + "[" * 5000]
)
def test_a_bad_profile_is_passed_over_and_named(tmp_path, monkeypatch, text):
    """No job stops for it."""
    monkeypatch.setenv("STRETTO_PROFILES", str(tmp_path))
    (tmp_path / "cpu.toml").write_text(text)

    with pytest.warns(RuntimeWarning, match=r"cpu\.toml.*passed over"):
        assert {} == own.texts()


def test_a_profile_that_is_too_long_is_named(tmp_path, monkeypatch):
    """As is one that is no text."""
    monkeypatch.setenv("STRETTO_PROFILES", str(tmp_path))
    (tmp_path / "a.toml").write_text('executor = "cpu"\n' + "#" * (1 << 20))
    (tmp_path / "b.toml").write_bytes(b"\xff\xfe")

    with pytest.warns(RuntimeWarning, match="passed over") as w:
        assert {} == own.texts()
    assert {"a.toml", "b.toml"} == {
        n for n in ("a.toml", "b.toml") if any(n in str(one.message) for one in w)
    }


def test_every_argument_that_a_call_reads_is_described():
    """Also of calls that only GPUs can make, which no test here gets as far as."""
    found = set()
    for path in Path(stretto.__file__).parent.joinpath("runtime").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            is_read = isinstance(node, ast.Call) and isinstance(
                node.func, ast.Attribute
            )
            if is_read and node.func.attr == "_read":
                found |= {one.arg for one in node.keywords if one.arg}

    assert {"nbytes", "blocks", "name"} <= found
    assert found <= ARGUMENTS.keys()
