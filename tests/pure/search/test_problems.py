"""The shipped problems: each against what is known of its answers."""

import random
import re
import shlex
import struct
import sys
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest

from stretto.errors import CallError, ParseError, StrettoError
from stretto.search import OnlineTuner, Settings, evolve
from stretto.search.evolve import search
from stretto.search.language import code_of
from stretto.search.problems import problem
from stretto.search.problems._caching import replay
from stretto.search.problems._traces import RequestTrace, load_trace, sampled
from stretto.search.problems.config import ConfigProblem
from stretto.search.problems.online import accumulated
from stretto.search.spaces import Knob, Space, load_space

ONE = struct.pack("<IQIq", 1, 2, 3, 4)


def requests(count=3000, objects=400, seed=1, sizes=(1, 9)):
    rng = random.Random(seed)
    size = {o: rng.randint(*sizes) for o in range(objects)}
    ids = [min(objects - 1, int(rng.paretovariate(0.7)) - 1) for _ in range(count)]
    return [(o, size[o]) for o in ids]


def oracle_file(path, rows):
    path.write_bytes(
        b"".join(struct.pack("<IQIq", t, o, s, -1) for t, (o, s) in enumerate(rows))
    )
    return str(path)


def lru(rows, capacity):
    held, used, missed = OrderedDict(), 0, 0
    for one, size in rows:
        if one in held:
            held.move_to_end(one)
            continue
        missed += 1
        if size > capacity:
            continue
        held[one], used = size, used + size
        while used > capacity:
            used -= held.popitem(last=False)[1]
    return missed


def fifo(rows, capacity):
    held, used, missed = OrderedDict(), 0, 0
    for one, size in rows:
        if one not in held:
            missed += 1
            held[one], used = size, used + size
            while used > capacity:
                used -= held.popitem(last=False)[1]
    return missed


@pytest.fixture
def cache(tmp_path):
    rows = requests()
    return rows, problem(
        "cache", trace=oracle_file(tmp_path / "t.bin", rows), size="5%", sample=64
    )


def test_a_score_that_is_lru_misses_as_lru_does(cache):
    """A score that is lru misses as lru does."""
    rows, made = cache
    trace, capacity = made._whole, made._capacity
    for text, exact in (("score = -age", lru), ("score = -life", fifo)):
        got = made.misses(made.parse(text), trace) * len(rows)
        assert got == pytest.approx(exact(rows, capacity), rel=0.02)


def test_the_cache_runs_the_same_compiled_and_as_it_stands(cache):
    """The cache runs the same compiled and as it stands."""
    _, made = cache
    policy = made.parse("probation = 0.2\nscore = count / (age * size)")
    before = made.misses(policy, made._whole)
    ids, sizes = made._whole.ids[:500], made._whole.sizes[:500]
    packed = []
    for name in ("direct", "promote", "score"):
        code = code_of(policy[name], made.form.features)
        packed += [code.words, code.values]
    given = (ids, sizes, made._whole.count, made._capacity, 40, 8, 0, *packed)
    with np.errstate(all="ignore"):
        assert replay(*given) == replay.py_func(*given)
    assert made.misses(policy, made._whole) == before


@pytest.mark.parametrize("share", ["0", "0.0001", "0.5", "1e300", "-1", "age / 0"])
@pytest.mark.parametrize("direct", ["1 < 2", "2 < 1"])
def test_no_policy_breaks_the_cache(cache, share, direct):
    """No policy breaks the cache."""
    _, made = cache
    for score in ("0", "-1e300 * age", "age / 0", "where(age > 3, 1e300, -1e300)"):
        text = f"probation = {share}\ndirect = {direct}\npromote = {direct}"
        text += f"\nscore = {score}"
        assert 0 < made.judge(made.parse(text), 2, fresh=0).cost <= 1


def test_a_search_beats_what_it_began_with_on_the_second_half(cache):
    """A search beats what it began with on the second half."""
    _, made = cache
    found = evolve(made, evals=150, seed=1)
    assert found.held_out["second_half"] < found.first["second_half"]


def test_traces_of_both_kinds_are_read_alike(tmp_path):
    """Traces of both kinds are read alike."""
    rows = requests(200)
    binary = load_trace(Path(oracle_file(tmp_path / "t.bin", rows)))
    lines = tmp_path / "t.csv"
    lines.write_text(
        "time,id,size\n" + "".join(f"{t},{o},{s}\n" for t, (o, s) in enumerate(rows))
    )
    text = load_trace(lines)
    assert binary.footprint == text.footprint
    assert len(binary.ids) == len(text.ids) == 200
    assert sampled(binary, 1.0) is binary
    few = sampled(load_trace(lines), 0.3)
    assert 0 < few.count < text.count
    assert isinstance(few, RequestTrace)


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("t.bin", ONE + b"123", r"truncated at byte 27.*byte 24"),
        ("t.bin", struct.pack("<IQIq", 1, 2, 0, 4), r"request 0, at byte 0, is empty"),
        ("t.bin", b"", "want a trace"), ("t.csv", b"1,a,-5\n", r"t.csv:1: .*least 1"),
        ("t.csv", b"id,size\na,b\n", r"t.csv:2: "), ("t.csv", b"\xff\xfe", "utf-8"),
        ("t.csv", b"id,size\n", "no requests"),
    ],
)  # fmt: skip
def test_traces_that_cannot_be_read_name_the_place(tmp_path, name, data, said):
    """Traces that cannot be read name the place."""
    (tmp_path / name).write_bytes(data)
    with pytest.raises(ParseError, match=said):
        load_trace(tmp_path / name)


SPACE = """
[knobs]
parallel = { values = ["tensor", "pipeline", "data"] }
stages = { values = [2, 4, 8], when = { parallel = ["pipeline"] } }
overlap = { values = [true, false] }
bucket_mb = { low = 1, high = 256, log = true, whole = true }
share = { low = 0.0, high = 1.0 }
[must]
hold = ["stages * bucket_mb <= 1000"]
"""


def cost(parallel, overlap, bucket_mb, share, stages=1):
    base = {"tensor": 1.0, "pipeline": 0.8 + abs(stages - 4) / 10, "data": 1.3}[
        parallel
    ]
    return (
        base * (1 + abs(np.log2(bucket_mb / 32)) / 10) * (1.0 if overlap else 1.2)
        + abs(share - 0.3) / 4
    )


@pytest.fixture
def space(tmp_path):
    (tmp_path / "space.toml").write_text(SPACE)
    return load_space(tmp_path / "space.toml")


def test_configurations_are_read_as_they_are_printed(space):
    """Configurations are read as they are printed."""
    rng = random.Random(1)
    for _ in range(300):
        chosen = space.draw(rng)
        assert space.parse(space.spell(chosen)) == chosen
        assert ("stages" in dict(chosen)) == (dict(chosen)["parallel"] == "pipeline")
        assert space.broken(dict(chosen)) == ""


def test_the_best_configuration_is_found_in_few_measurements(space):
    """The best configuration is found in few measurements."""
    costs = []
    for seed in range(5):
        found = evolve(ConfigProblem(space, objective=cost), evals=60, seed=seed)
        costs.append(found.verdict.cost)
    rng = random.Random(1)
    drawn = [min(cost(**dict(space.draw(rng))) for _ in range(60)) for _ in range(5)]
    assert np.median(costs) < 0.8 * 1.05
    assert np.median(costs) < np.median(drawn)


@pytest.mark.parametrize("truth", ["right", "wrong"])
def test_a_cheap_judge_is_asked_while_it_is_right(space, truth):
    """A cheap judge is asked while it is right."""

    def cheap(**knobs):
        return cost(**knobs) * 1.5 if truth == "right" else -cost(**knobs) + 10

    found = evolve(ConfigProblem(space, objective=cost, cheap=cheap), evals=150, seed=1)
    asked = [one.trial.rung for one in found.run.rows()]
    cheaply = asked[len(asked) // 2 :].count(0)
    assert (cheaply > len(asked) // 3) == (truth == "right")
    assert found.verdict.cost < 0.9


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("print(1.5)", ""), ("print('{\"cost\": 2}')", ""), ("print('x')", "no number"),
        ("print(float('nan'))", "cost is nan|no number"), ("print('[1]')", "no number"),
        ("raise SystemExit('broken')", "ended with 1: broken"),
        ("print('{}')", "no cost"),
        ("import time; time.sleep(60)", "did not end in 1 s"), ("pass", "no number"),
    ],
)  # fmt: skip
def test_what_commands_do_is_a_cost_or_a_refusal(space, command, said):
    """What commands do is a cost or a refusal."""
    line = f"{sys.executable} -c {shlex.quote(command)} {{args}}"
    made = ConfigProblem(
        space, objective=line, deadline_s=1.0 if "sleep" in command else 60
    )
    verdict = made.judge(made.seeds()[0], 0, fresh=0)
    assert re.search(said, verdict.refused) if said else verdict.passed


def test_a_recorded_table_is_searched_and_checked(space, tmp_path):
    """A recorded table is searched and checked."""
    small = Space((Knob("a", (1, 2, 3, 4)), Knob("b", ("x", "y"))), name="small")
    table = tmp_path / "t.csv"
    rows = [f"{a},{b},{a + (b == 'y')}" for a in (1, 2, 3, 4) for b in "xy"]
    table.write_text("a,b,cost\n" + "\n".join(rows) + "\n")
    found = evolve(ConfigProblem(small, recorded=str(table)), evals=8)
    assert (found.text, found.verdict.cost) == ("a=1 b=x", 1.0)
    table.write_text("a,b,cost\n1,z,3\n")
    with pytest.raises(ParseError, match=r"t\.csv:2"):
        ConfigProblem(small, recorded=str(table))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "want a table"), ("[knobs]\na = 1", "knobs.a: want a table"),
        ("[knobs]\na = {values = []}", "want a list"),
        ("[knobs]\na = {low = 1}", "low and high"),
        ("[knobs]\na = {low = 2, high = 1}", "low < high"),
        ("[knobs]\na = {low = 0, high = 1, log = true}", "above 0"),
        ("[knobs]\na = {values = [1], oops = 2}", "oops means nothing"),
        ("[knobs]\na = {values = [1], when = {b = [1]}}", "does not come before"),
        ("[knobs]\na = {values = [1]}\nb = {values = [1], when = {a = [2]}}", "never"),
        ("[knobs]\na = {values = [1, 1]}", "each once"), ("[knobs", "line|declaration"),
        ("[knobs]\na = {values = [1]}\n[must]\nhold = ['a']", "want a truth"),
        ("[knobs]\na = {values = [1]}\n[must]\nhold = ['c < 1']", "no feature"),
    ],
)  # fmt: skip
def test_spaces_that_mean_nothing_are_refused(tmp_path, text, said):
    """Spaces that mean nothing are refused."""
    (tmp_path / "s.toml").write_text(text)
    with pytest.raises(StrettoError, match=said):
        load_space(tmp_path / "s.toml")


def test_an_impossible_space_names_what_never_holds(tmp_path):
    """An impossible space names what never holds."""
    (tmp_path / "s.toml").write_text(
        "[knobs]\na = {values = [1, 2]}\n[must]\nhold = ['a > 5']"
    )
    made = ConfigProblem(str(tmp_path / "s.toml"), objective=lambda a: a)
    with pytest.raises(CallError, match="'a > 5'"):
        evolve(made, evals=5)


@pytest.mark.parametrize(
    ("knobs", "noise"), [(50, 0.0), (50, 0.001), (100, 0.0), (100, 0.001)]
)
def test_online_steps_cost_what_exact_slopes_cost(knobs, noise):
    """Online steps cost what exact slopes cost."""
    reach = 0.1 if noise else 0.01
    costs = {
        method: np.mean(
            [
                accumulated(knobs, 5, method, s, noise=noise, reach=reach)
                for s in range(10)
            ]
        )
        for method in ("sparse", "exact")
    }
    assert costs["sparse"] <= 1.02 * costs["exact"]


def test_few_tries_find_which_knobs_matter_now():
    """Where others matter in every round, noise in all knobs is what SPSA pays for."""
    costs = {
        method: np.mean([accumulated(50, 5, method, s, moving=True) for s in range(4)])
        for method in ("exact", "sparse", "spsa")
    }
    assert costs["sparse"] <= 1.05 * costs["exact"]
    assert costs["spsa"] > 1.3 * costs["sparse"]


def test_an_online_tuner_refuses_what_it_cannot_take():
    """An online tuner refuses what it cannot take."""
    with pytest.raises(CallError, match="matter=9"):
        OnlineTuner([0.0] * 5, matter=9)
    tuner = OnlineTuner([0.0] * 5, matter=1)
    with pytest.raises(CallError, match=r"after ask\(\)"):
        tuner.tell([1.0])
    points = tuner.ask()
    with pytest.raises(CallError, match="finite"):
        tuner.tell([float("nan")] * len(points))
    assert tuner.tell([float(p[0] ** 2) for p in points]).shape == (5,)


def test_programs_are_proved_and_become_faster():
    """Programs are proved and become faster."""
    made = problem("program", collective="all_reduce", machine="dgx1", size=1 << 24)
    found = search(made, Settings(evals=150, seed=1))
    assert found.held_out["us"] < 0.6 * found.first["us"]
    assert found.held_out["us"] >= found.held_out["bound_us"]


@pytest.mark.parametrize("text", ["", "0,1", "0,0,0,0,0,0,0,0", "x"])
def test_trees_that_do_not_reach_everybody_are_refused(text):
    """Trees that do not reach everybody are refused."""
    made = problem("program", collective="all_gather", machine="dgx1")
    assert not made.judged(text, 0).passed
    loop = " ".join(
        ",".join("1" if r == 0 else "0" for r in range(8)) for _ in range(8)
    )
    assert "never has it" in made.judged(loop, 0).refused
