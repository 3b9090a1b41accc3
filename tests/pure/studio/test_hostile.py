"""Files of anybody: a clear message or a picture, never a crash, never much memory."""

import contextlib
import json
import tracemalloc

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.nightly import examples
from tests.pure.studio.made import recording

from stretto.errors import StrettoError
from stretto.studio import NamedInputs, Studio, views
from stretto.studio.ask import EXAMPLES
from stretto.studio.serve.pack import unpack
from stretto.trace import (
    CALL,
    STATES,
    STEP,
    STEP_KINDS,
    CallKind,
    Comm,
    RankInfo,
    Recording,
    write,
)

QUICK = settings(
    max_examples=examples(40),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def looked_at(path):
    """Look at every view and ask every example; whatever is wrong is ours to say."""
    studio = Studio(NamedInputs(recordings=(path, path)))
    studio.refresh()
    index = studio.index()
    assert index["state"] in ("ready", "failed")
    assert bool(index["failed"]) == (index["state"] == "failed")
    assert "\n" not in index["failed"]
    for view in index["views"]:
        for args in ({}, {"from": "1"}, {"by": "time", "call": "0"}, {"rank": "99"}):
            with contextlib.suppress(StrettoError):
                assert unpack(studio.view(view["name"], args))
    for text in EXAMPLES if index["asks"] else ():
        with contextlib.suppress(StrettoError):
            assert json.dumps(studio.ask(text), allow_nan=False)
    return index


@QUICK
@given(st.data())
def test_a_file_with_any_byte_changed_is_shown_or_refused(tmp_path, data):
    """Cut anywhere, or another byte anywhere."""
    path = tmp_path / "a.trace"
    write(path, recording(3, 4, steps_a_call=2))
    raw = bytearray(path.read_bytes())
    if data.draw(st.booleans()):
        del raw[data.draw(st.integers(0, len(raw))) :]
    else:
        at = data.draw(st.integers(0, len(raw) - 1))
        raw[at] ^= data.draw(st.integers(1, 255))
    path.write_bytes(raw)

    looked_at(path)


ANY64 = st.sampled_from(
    (0, 1, -1, 5, 1000, 1 << 20, (1 << 62), -(1 << 62), (1 << 63) - 1, -(1 << 63))
)
ANY32 = st.sampled_from((0, 1, 2, -1, 7, 1 << 30, -(1 << 31), (1 << 31) - 1))


@st.composite
def wild(draw):
    """Return a recording that refers to what there is, and says anything else."""
    ranks = draw(
        st.lists(st.integers(-3, 1 << 40), min_size=1, max_size=3, unique=True)
    )
    inside = [r for r in ranks if 0 <= r < 1 << 31] or [0]
    ranks = sorted({*ranks, *inside})
    others = draw(st.lists(st.sampled_from([*ranks, 77, -9, 1 << 50]), max_size=3))
    comms = (
        Comm(name="a", members=(*inside, *others)),
        Comm(name="", members=tuple(reversed(inside))),
    )
    kinds = (
        CallKind(collective="all_reduce", algorithm="all_reduce/ring", schedule="pull"),
        CallKind(collective="nonsense", algorithm="x", nbytes=-5),
    )

    def table(dtype, limits):
        rows = np.zeros(draw(st.integers(0, 4)), dtype)
        for row in rows:
            for name in dtype.names:
                if name == "rank":
                    row[name] = draw(st.sampled_from(inside))
                elif name in limits:
                    row[name] = draw(st.integers(0, limits[name] - 1))
                elif dtype[name].itemsize == 8:
                    row[name] = draw(ANY64)
                elif dtype[name].itemsize == 4:
                    row[name] = draw(ANY32)
                else:
                    row[name] = draw(st.integers(-(1 << 15), (1 << 15) - 1))
        return rows

    return Recording(
        calls=table(CALL, {"comm": 2, "kind": 2, "state": len(STATES)}),
        steps=table(STEP, {"comm": 2, "kind": len(STEP_KINDS)}),
        ranks=tuple(RankInfo(rank=r, error_ns=draw(ANY32)) for r in ranks),
        comms=comms,
        kinds=kinds,
    )


@settings(QUICK, max_examples=examples(80))
@given(made=wild())
@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_any_values_are_shown_or_refused(tmp_path, made):
    """Ranks, peers, numbers and times at the ends of their types."""
    path = tmp_path / "b.trace"
    write(path, made)

    assert "ready" == looked_at(path)["state"]


def test_a_step_that_ends_at_the_last_moment_is_shown(tmp_path):
    """The end of the time axis is beyond what such numbers can say."""
    made = recording(1, 1, steps_a_call=1)
    made.steps["end"][-1] = (1 << 63) - 1
    path = tmp_path / "e.trace"
    write(path, made)
    studio = Studio(NamedInputs(recordings=(path,)))
    studio.refresh()

    assert unpack(studio.view("timeline", {}))


def test_a_short_file_cannot_take_much_memory(tmp_path):
    """Ranks with large numbers, a communicator of many that are not there."""
    made = recording(2, 3, steps_a_call=2)
    many = Comm(name="many", members=tuple(range(0, 1 << 31, 1 << 11))[: 1 << 18])
    parts = {n: getattr(made, n) for n in ("calls", "steps", "ranks", "kinds")}
    path = tmp_path / "c.trace"
    write(path, Recording(**parts, comms=(*made.comms, many)))
    tracemalloc.start()
    looked_at(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert peak < 400e6


@pytest.mark.parametrize("name", views.names())
@QUICK
@given(args=st.dictionaries(
    st.sampled_from(("comm", "from", "to", "by", "call", "rank", "which", "x")),
    st.text(max_size=9) | st.integers().map(str), max_size=3,
))  # fmt: skip
def test_any_arguments_are_answered_or_refused(name, shared, args):
    """What an address says is checked like everything else."""
    with contextlib.suppress(StrettoError):
        assert unpack(shared.view(name, args))


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    path = tmp_path_factory.mktemp("shared") / "d.trace"
    write(path, recording(3, 5, steps_a_call=2))
    studio = Studio(NamedInputs(recordings=(path, path)))
    studio.refresh()
    return studio


def test_what_nobody_foresaw_is_said_on_the_page(tmp_path, monkeypatch):
    """It stayed at "loading": who reads the files had ended."""
    path = tmp_path / "a.trace"
    write(path, recording(2, 2))

    def fails(_):
        raise ValueError("cannot reshape\nthat")

    monkeypatch.setattr("stretto.studio.serve.studio.load", fails)
    studio = Studio(NamedInputs(recordings=(path,)))
    studio.refresh()

    said = "a.trace: cannot be shown: ValueError: cannot reshape that"
    assert ("failed", said) == (studio.index()["state"], studio.index()["failed"])
    with pytest.raises(StrettoError, match="cannot be shown"):
        studio.view("overview", {})
