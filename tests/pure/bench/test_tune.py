"""Searching, writing profiles, fitting: on times that are made up."""

import json
from dataclasses import asdict, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.nightly import at_night

from stretto import topology
from stretto.bench import tune
from stretto.bench.tune.fit import Observation
from stretto.errors import CallError, TopologyError
from stretto.executors import sim
from stretto.runtime.choice import Profile, Question, dtype_class, proved_plan


class Bench:
    """Measures pins whose true times are known, with some noise."""

    def __init__(self, us, seed=0, noise=0.02):
        self.us, self.noise, self.batches = us, noise, 0
        self.rng = np.random.default_rng(seed)

    def __call__(self, pins, batches):
        self.batches += batches * len(pins)
        noisy = 1 + self.noise * self.rng.random((len(pins), batches))
        found = {p: (self.us[p] * n).tolist() for p, n in zip(pins, noisy, strict=True)}
        return {p: t for p, t in found.items() if np.isfinite(self.us[p])}


def search(us, untuned, pins, seed=0, over=lambda: False, bench=None, **options):
    """Run a search to its end, on times that are known."""
    bench = bench or Bench(us, seed)
    space = tune.SearchSpace(
        pins=pins,
        untuned=untuned,
        **{"expand": lambda _: (), "refine": lambda _: ()} | options,
    )
    asking = tune.search(space, over, seed=seed)
    ask = next(asking)
    while True:
        try:
            ask = asking.send(bench(ask.pins, ask.batches))
        except StopIteration as e:
            return e.value


@given(
    st.dictionaries(st.text("abcdef", min_size=1), st.floats(1, 1000), min_size=2),
    st.integers(0, 9),
)
def test_what_is_chosen_is_never_worse_than_what_would_have_been(us, seed):
    """Noise cannot make tuning a loss; where it takes another, that one is faster."""
    pins = list(us)

    found = search(us, pins[0], pins[1:], seed)

    assert us[found.pin] <= us[pins[0]]
    assert found == search(us, pins[0], pins[1:], seed)


def test_the_fastest_of_many_is_found():
    """Halving keeps it from the first short look to the last long one."""
    us = {f"p{i}": 10.0 + i for i in range(40)}

    found = search(us, "p39", list(us))

    assert "p0" == found.pin
    assert found.interval.high < 1


def test_halving_measures_less_than_everything_at_length():
    """Most are given up after a few batches."""
    us = {f"p{i}": 10.0 + i for i in range(64)}
    bench = Bench(us)

    found = search(us, "p63", list(us), bench=bench)

    assert "p0" == found.pin
    assert bench.batches < 64 * 5 * 4


def test_when_the_time_is_over_the_best_so_far_is_confirmed():
    """It stops asking for more, and still compares with what would serve untuned."""
    us = {f"p{i}": 10.0 + i for i in range(64)}
    bench = Bench(us)

    found = search(us, "p5", list(us), over=lambda: bench.batches > 100, bench=bench)

    assert us[found.pin] <= us["p5"]
    assert bench.batches < 64 * 5 + 5 * 30


def test_what_fails_is_left_out():
    """A candidate that gives wrong results has no time."""
    us = {"wrong": float("inf"), "slow": 9.0, "fast": 3.0}

    assert "fast" == search(us, "slow", ["wrong", "fast"]).pin


def test_the_numbers_of_the_best_families_are_tried():
    """A leader stands for its family; a sister may be faster, and her neighbour too."""
    us = {
        "base": 9.0,
        "a": 5.0,
        "b": 7.0,
        "c": 8.0,
        "a blocks=8": 4.0,
        "a blocks=9": 3.0,
    }

    found = search(
        us,
        "base",
        ["a", "b", "c"],
        expand=lambda some: ["a blocks=8"] if "a" in some else [],
        refine=lambda some: ["a blocks=9"] if "a blocks=8" in some else [],
    )

    assert "a blocks=9" == found.pin
    assert 6 == found.tried


def test_from_scratch_the_shipped_choice_is_measured_beside_the_winner():
    """So that one can say who is faster; here the search."""
    us = {"plain": 9.0, "a": 4.0, "hand-picked": 5.0}

    found = search(us, "plain", ["a"], shipped="hand-picked")

    assert ("a", "hand-picked", "") == (found.pin, found.shipped, found.found)
    assert 5.0 <= found.shipped_us < 5.2
    assert found.shipped_interval.high < 1


def decision(pin, us=1.0):
    return tune.Decision(
        pin=pin, us=us, untuned=pin, untuned_us=us, interval=None, tried=1
    )


def test_a_profile_is_read_by_the_runtime():
    """Up to the middle between two sizes the smaller one's choice serves."""
    small, large = "all_reduce/one_shot push packets staged", "all_reduce/ring"
    decided = {1024: decision(small), 16384: decision(large)}
    rule = tune.rule_of("all_reduce", "staged", 2, decided, "float32")
    text = tune.text_of("cpu", [rule], 'a "quoted" machine')

    profile = Profile.parse(text, "test")

    asked = Question(executor="cpu", collective="all_reduce", num_ranks=2, nbytes=4096)
    assert small == str(profile.choose(asked))
    for nbytes in (4097, 32768):
        assert "all_reduce/ring" in str(profile.choose(replace(asked, nbytes=nbytes)))
    for nbytes in (511, 32769, 1 << 39):  # nobody measured anything like it
        assert profile.choose(replace(asked, nbytes=nbytes)) is None
    assert small == str(profile.choose(replace(asked, nbytes=512)))
    assert profile.choose(replace(asked, num_ranks=3)) is None
    assert 'a "quoted" machine' == profile.about


def test_every_size_that_was_measured_gets_what_was_decided_for_it():
    """However near the next one is: half-way between 32K and 64K is neither."""
    sizes = (1 << 10, 16384, 32768, 45056, 65536)
    pins = [f"all_reduce/one_shot push packets staged blocks={b + 1}" for b in range(5)]
    decided = {n: decision(p) for n, p in zip(sizes, pins, strict=True)}
    rule = tune.rule_of("all_reduce", "staged", 2, decided, "float32")

    profile = Profile.parse(tune.text_of("cuda", [rule], ""), "test")

    asked = Question(executor="cuda", collective="all_reduce", num_ranks=2, nbytes=0)
    for nbytes, pin in zip(sizes, pins, strict=True):
        found = str(profile.choose(replace(asked, nbytes=nbytes)))
        assert pin.replace(" blocks=1", "") == found, nbytes


def test_sums_of_half_types_are_tuned_apart(tmp_path):
    """What is fast for float32 is not asked for bfloat16; copies know no types."""
    path = tmp_path / "cpu.toml"
    pins = {"float32": "all_reduce/ring", "bfloat16": "all_reduce/one_shot"}
    for dtype, pin in pins.items():
        rule = tune.rule_of("all_reduce", "staged", 2, {8: decision(pin)}, dtype)
        path.write_text(tune.merged(path, "cpu", [rule], ""))
    copies = tune.rule_of(
        "all_gather", "staged", 2, {8: decision("all_gather/ring")}, "float32"
    )
    profile = Profile.parse(tune.merged(path, "cpu", [copies], ""), "test")

    asked = Question(executor="cpu", collective="all_reduce", num_ranks=2, nbytes=8)
    for dtype, pin in (*pins.items(), ("int8", "all_reduce/ring")):
        one = replace(asked, dtypes=dtype_class(dtype))
        assert str(profile.choose(one)).startswith(pin), dtype
    one = replace(asked, collective="all_gather", dtypes=dtype_class("float16"))
    assert str(profile.choose(one)).startswith("all_gather/ring")
    assert 3 == len(profile.rules)


def test_a_class_that_nobody_knows_is_refused():
    """A profile written by hand says what is wrong with it."""
    rule = tune.rule_of(
        "all_reduce", "staged", 2, {8: decision("all_reduce/ring")}, "int8"
    )
    text = tune.text_of("cpu", [rule], "").replace('"whole"', '"double"')

    with pytest.raises(TopologyError, match="dtypes = 'double', not half or whole"):
        Profile.parse(text, "test")


def test_other_rules_of_a_profile_stay(tmp_path):
    """Tuning four ranks forgets nothing of two."""
    path = tmp_path / "cpu.toml"
    pin = "all_reduce/ring push bulk staged"
    one, other = (
        tune.rule_of("all_reduce", "staged", n, {8: decision(pin)}, "int8")
        for n in (2, 4)
    )
    path.write_text(tune.text_of("cpu", [one], ""))

    both = tune.merged(path, "cpu", [other], "")

    assert 2 == len(Profile.parse(both, "test").rules)
    path.write_text(both)
    assert both == tune.merged(path, "cpu", [other], "")


def test_a_broken_profile_is_not_overwritten(tmp_path):
    """Somebody wrote it by hand: say so."""
    path = tmp_path / "cpu.toml"
    path.write_text("executor = ")

    with pytest.raises(TopologyError, match="want it whole, or gone"):
        tune.merged(path, "cpu", [], "")


@pytest.mark.parametrize("executor", ["cpu", "cuda"])
@pytest.mark.parametrize("memory", [at_night("staged"), "zero_copy"])
def test_leaders_are_different_families_that_work(executor, memory):
    """One a family; numbers are those that the executor has."""
    asked = Question(
        executor=executor, collective="all_reduce", num_ranks=4,
        nbytes=64 << 20, memory=memory, in_place=False,
    )  # fmt: skip

    found = [str(choice) for choice in tune.leaders(asked, 8)]

    assert 8 == len(found) == len(set(found))
    blocks = {"blocks=" in pin for pin in found}
    assert executor == "cuda" or {False} == blocks
    assert ("zero_copy" in " ".join(found)) == (memory == "zero_copy")
    assert "hierarchical" not in " ".join(found), "in one box it is another's plan"
    assert found[0] in tune.expanded(found[0], asked)


def test_neighbours_differ_in_one_step_and_work():
    """More blocks, fewer, other threads, another depth; never the pin itself."""
    asked = Question(
        executor="cuda", collective="all_reduce", num_ranks=4,
        nbytes=4 << 20, memory="zero_copy", in_place=False,
    )  # fmt: skip
    pin = str(tune.leaders(asked, 1)[0])

    found = tune.refined([pin], asked)

    assert len(found) >= 5
    assert pin not in found
    assert len(found) == len(set(found))


@pytest.mark.slow
def test_constants_that_were_bent_are_found_again():
    """From another machine's times, the fit comes back to within a tenth."""
    machine = topology.load("cpux2")
    truth = replace(
        machine, costs=replace(machine.costs, launch_us=2.0, lane_gbytes_per_s=7.0)
    )
    seen = [
        observed(name, words, nbytes, truth)
        for name in ("all_reduce/one_shot", "all_reduce/ring")
        for words in ("push packets", "push bulk")
        for nbytes in (64, 65536, 1 << 22)
    ]

    found = tune.fit(seen, machine)

    assert found.median_error < 0.1 < found.median_before
    assert "[costs]" in tune.toml_of(found)


def observed(name, words, nbytes, machine):
    from stretto.compiler.plan import Schedule
    from stretto.program import algorithms

    plan = proved_plan(algorithms.get(name), 2, (), Schedule.parse(words), True)
    us = sim.simulate(plan, machine, nbytes=nbytes).time_us
    return Observation(plan=plan, nbytes=nbytes, us=us)


def test_nothing_to_fit_is_said():
    """A document without algorithms teaches nothing."""
    with pytest.raises(CallError, match="no row names an algorithm"):
        tune.observations({"rows": []})


def test_rows_that_no_plan_serves_teach_nothing():
    """Of an algorithm, or a schedule, that this version does not have."""
    rows = [
        {
            "test": "all_reduce", "collective": "all_reduce", "algorithm": pin,
            "ranks": 2, "nbytes": 64, "ok": True, "p50_us": 2.0, "min_us": 1.0,
        }
        for pin in (
            "all_reduce/one_shot push bulk staged",
            "all_reduce/one_shot push lines staged",
            "all_reduce/of_another_version push bulk staged",
        )
    ]  # fmt: skip

    (seen,) = tune.observations({"rows": rows})

    assert (1.0, 2) == (seen.us, seen.plan.value.num_ranks)


def test_from_scratch_a_faster_incumbent_is_kept_and_the_find_is_told():
    """A search that ran out of time cannot make anything worse than what is shipped."""
    us = {"plain": float("inf"), "a": 5.0, "hand-picked": 4.0}

    found = search(us, "plain", ["a"], shipped="hand-picked")

    assert ("hand-picked", "a") == (found.pin, found.found)
    assert found.us == found.shipped_us < 4.1 < 5.0 <= found.found_us
    assert found == tune.decision_of(json.loads(json.dumps(asdict(found))))


def test_where_nothing_of_the_search_works_what_is_shipped_is_kept():
    """All that was tried failed, or there was no time for any of it."""
    us = {"plain": float("inf"), "a": float("inf"), "hand-picked": 4.0}

    assert "hand-picked" == search(us, "plain", ["a"], shipped="hand-picked").pin
    assert search(us, "plain", ["a"]) is None


@pytest.mark.parametrize(
    ("nbytes", "algorithm", "shape"),
    [  # the fastest on four H200 GPUs, and none of it is named in the space
        (1 << 10, "all_reduce/one_shot", "threads=128"),
        at_night(1 << 14, "all_reduce/one_shot", "blocks=32 threads=64"),
        at_night(1 << 20, "all_reduce/two_shot", "blocks=96 threads=256"),
        at_night(1 << 14, "all_reduce/one_shot", "blocks=8 threads=128"),
        at_night(1 << 16, "all_reduce/one_shot", "blocks=64 threads=128"),
        at_night(1 << 18, "all_reduce/two_shot", "blocks=128 threads=64"),
        at_night(1 << 22, "all_reduce/two_shot", "blocks=132"),
    ],
)
def test_the_numbers_of_a_family_hold_what_was_fast_when_picked_by_hand(
    nbytes, algorithm, shape
):
    """From 64 to 768 threads, and as many blocks as the GPU has multiprocessors."""
    asked = Question(
        executor="cuda", collective="all_reduce", num_ranks=4,
        nbytes=nbytes, memory="zero_copy", in_place=False,
    )  # fmt: skip
    leaders = [str(choice) for choice in tune.leaders(asked, 12)]
    own = next(p for p in leaders if f"{algorithm} push packets" in p)

    found = tune.expanded(own, asked)

    assert f"{algorithm} push packets staged {shape} tile_bytes=1048576" in found
    assert len(found) <= 40


def test_among_equals_a_family_is_led_by_a_shape_that_fills_the_gpu():
    """The simulator knows nothing of threads: 128 led because of its spelling."""
    asked = Question(
        executor="cuda", collective="all_reduce", num_ranks=4,
        nbytes=4 << 20, memory="zero_copy", in_place=False,
    )  # fmt: skip

    packets = [str(c) for c in tune.leaders(asked, 12) if "packets" in str(c)]

    assert packets[0].startswith("all_reduce/two_shot")
    assert "threads=128" not in packets[0]
    assert "blocks=1" in packets[0], "128 or 132"


def test_a_family_far_behind_is_not_widened():
    """Its numbers are not compiled: the time goes to those that may win."""
    us = {"base": 9.0, "a": 4.0, "near": 5.0, "far": 6.0}
    widened = []

    def expand(some):
        widened.extend(some)
        return []

    found = search(us, "base", ["far", "near", "a"], expand=expand)

    assert "a" == found.pin
    assert ["a", "near"] == widened
