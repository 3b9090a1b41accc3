"""Congestion control by a policy: what is proved holds; where not, Cubic is."""

import json
import random

import numpy as np
import pytest
from tests.nightly import examples

from stretto.cli import main
from stretto.errors import ParseError
from stretto.fabric import jit
from stretto.search import evolve, load, problem
from stretto.search.language import Form, bounds, code_of, evaluate, grown, parse
from stretto.search.problems import _steering as steering

NAMES = ("a", "b", "c")


def boxes(rng, many=1):
    """Return boxes of features: around 0, tiny, wide, huge, and single points."""
    made = {}
    for name in NAMES:
        middle = rng.choice([0, 1, -5, 1e3, -1e200, 0.3], many)
        half = rng.choice([0, 1e-3, 1, 50, 1e250], many)
        made[name] = (middle - half, middle + half)
    return made


def rows_of(rng, box, count):
    """Return points of a box, one in five of them on its edges."""
    at = rng.uniform(0, 1, (count, len(NAMES)))
    at = np.where(at < 0.1, 0, np.where(at > 0.9, 1, at))
    lows, highs = (np.array([box[n][side][0] for n in NAMES]) for side in (0, 1))
    return np.clip(lows + at * (highs - lows), lows, highs)


def test_every_value_lies_within_its_bounds():
    """A million of sampled values at night, a fifth by day: none is outside."""
    rng, draw = np.random.default_rng(1), random.Random(3)
    for _ in range(examples(400)):
        term, box = grown(Form(NAMES), "number", 5, draw), boxes(rng)
        low, high = bounds(term, box)
        values = evaluate(code_of(term, NAMES), rows_of(rng, box, 2500))

        assert low <= values.min(), str(term)
        assert values.max() <= high, str(term)


def test_bounds_of_what_is_linear_are_exact_and_never_widen_in_halves():
    """Each feature once: corners are met. A half lies in the bounds of the whole."""
    rng, draw = np.random.default_rng(2), random.Random(5)
    corner = {"a": (np.array([-1.0]), np.array([2.0])),
              "b": (np.array([0.0]), np.array([4.0])),
              "c": (np.array([1.0]), np.array([3.0]))}  # fmt: skip
    low, high = bounds(parse("3 * a - 0.5 * b + c", NAMES), corner)
    assert (-4.0, 9.0) == (low[0], high[0])
    for _ in range(60):
        term, box = grown(Form(NAMES), "number", 5, draw), boxes(rng)
        whole = bounds(term, box)
        least, most = box["a"]
        middle = (least + most) / 2
        for half in ((least, middle), (middle, most)):
            low, high = bounds(term, {**box, "a": half})
            assert low >= whole[0]
            assert high <= whole[1]


@pytest.mark.parametrize(
    ("text", "broken"),
    [
        ("0", ""), ("min(0, 1 - wait)", ""), ("0.1", "does not grow where much waits"),
        ("-0.1", "does not cut where nothing waits"), ("wait", "much waits"),
        ("where(wait > 0.5, -1, 1)", "hears no noise"),
        ("where(wait > 1, -1, 0.2)", "much is lost"),
    ],
)  # fmt: skip
def test_promises_are_proved_where_they_hold_alone(text, broken):
    """Each planted violation lowers its own promise; what keeps all has all proved."""
    found = steering.certified(parse(text, steering.FEATURES))
    failed = [name for name, share in found.items() if share < 1]

    assert bool(broken) == bool(failed)
    assert not broken or any(broken in name for name in failed)


def heard(term, wait, lost, *, spared=True):
    """Return a flow's state after an ACK that waited so long, and after such losses."""
    control = steering.steered(parse(term, steering.FEATURES), spared=spared)
    state = np.zeros(6 + control.slots)
    state[:6] = 12_500, np.inf, np.inf, 12_500, 4.0, 1000
    params = np.array([p.value for p in control.parameters])
    told = np.array([0.0, 1000, 0, 4.0, 0, 0, 1000, 50_000])
    control.begin(state, params, told)
    control.on_ack(state, params, told)
    if lost:
        control.on_loss(state, params, told)
    told[[0, 3]] = 50.0, 4.0 * (1 + wait)
    control.on_ack(state, params, told)
    return state


@pytest.mark.parametrize("seed", range(20))
def test_what_breaks_a_promise_is_not_done(seed):
    """Cubic's window is taken, always, and only then."""
    draw = random.Random(seed)
    wait, size = draw.uniform(1.01, 7), draw.uniform(0.05, 1)
    for text, at, lost in ((f"{size}", wait, False), (f"{size}", 0.5, True),
                           (f"-{size}", 0.05, False)):  # fmt: skip
        state, bare = (heard(text, at, lost, spared=s) for s in (True, False))
        assert state[1] == state[steering._BASE] != bare[1]
        assert state[steering.FELL] > bare[steering.FELL] == 0
    kept = heard(f"-{size}", wait, True)
    assert kept[1] < kept[steering._BASE] or kept[1] == 1000


@pytest.mark.skipif(bool(jit.missing()), reason=jit.missing() or "-")
def test_a_scene_is_the_same_compiled_and_as_it_stands(monkeypatch):
    """The same picoseconds, so the same figures."""
    made = problem("cc", scenes=1)
    policy = made.parse("0.3 - wait - trend")
    fast = made.figures(policy, [3], 60.0)
    monkeypatch.setattr(jit, "missing", lambda: "not here")
    assert fast == made.figures(policy, [3], 60.0)


def test_a_control_is_searched_written_and_simulated(tmp_path, capsys):
    """What is found is a file that `simulate --cc` and `cc show` read."""
    out = tmp_path / "mine.toml"
    words = ["search", "cc", "--scenes", "1", "--evals", "12", "-o", str(out)]
    assert main(words) == 0
    assert 0 <= load(out).congestion().slots
    assert isinstance(load(out).value(wait=1, trend=0, loss=0, used=1, window=2), float)
    capsys.readouterr()
    words = ["simulate", "all_reduce/ring", "--machine", "clos1x4", "--size", "64K"]
    assert main([*words, "--network", "packet", "--cc", f"cubic,{out}", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert ["cubic", "mine"] == [row["cc"] for row in rows]
    assert main(["cc", "show", str(out)]) == 0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "problem"), ("problem = 3", "problem"), ("problem = 'config'", "policies"),
        ("problem = 'cc'\nfound = 'sofar + 1'", "found: no feature"), ("[", "TOML"),
        ("problem = 'nothing'", "no problem"), ("problem = 'cc'", "found"),
    ],
)  # fmt: skip
def test_files_that_hold_no_policy_are_refused(tmp_path, text, said):
    """In a line that names the file or the word."""
    (tmp_path / "p.toml").write_text(text)
    with pytest.raises(Exception, match=said) as told:
        load(tmp_path / "p.toml")
    assert "Error" in type(told.value).__name__
    assert len(str(told.value).splitlines()) == 1


def test_a_file_that_is_not_there_is_refused(tmp_path):
    """As every other."""
    with pytest.raises(ParseError, match="No such file"):
        load(tmp_path / "p.toml")


@pytest.mark.slow
def test_proofs_that_count_are_searched_for():
    """With a price on what is not proved, what is found has more of it proved."""
    shares = []
    for certify in (0.0, 2.0):
        found = evolve(problem("cc", certify=certify, scenes=1), evals=40, seed=2)
        shares.append(found.held_out["certified"])

    assert shares[0] <= shares[1]
    assert shares[1] > 0.9
