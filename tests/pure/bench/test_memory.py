"""What a search remembers: what failed, what worked, what was measured."""

import types

from stretto.bench import tune
from stretto.bench.measuring.control import Control
from stretto.bench.tune.memory import SearchMemory
from stretto.bench.workload.task import BenchTask


def test_a_way_that_only_fails_is_given_up(tmp_path):
    """Each failure costs a deadline; what works somewhere goes on being tried."""
    task = BenchTask(
        tests=("all_reduce",), sizes=(64,), num_ranks=2,
        options={"state": str(tmp_path / "s.json")},
    )  # fmt: skip
    memory = SearchMemory(task, Control())
    case = types.SimpleNamespace(nbytes=64)
    pins = [f"all_reduce/{a} push packets staged" for a in "abcd"]
    bulk = [f"all_reduce/{a} push bulk staged" for a in "abcd"]
    memory.worked([f"{bulk[3]} blocks=8"], case)

    tried = []
    for pin in (*pins, *bulk):
        if not memory.has_failed(pin, case):
            tried.append(pin)
            memory.fail(pin, case, "timeout")

    assert [*pins[:3], *bulk] == tried
    again = SearchMemory(task, Control())
    assert again.has_failed(pins[3], case)


def trial(pin, nbytes=64, batches=5):
    return {
        "test": "all_reduce", "nbytes": nbytes, "pin": pin, "us": 2.0, "min_us": 1.0,
        "batches": batches, "simulated_us": 3.0, "times": [1.0, 2.0, 3.14159265],
    }  # fmt: skip


def memory_at(path, **options):
    task = BenchTask(
        tests=("all_reduce",), sizes=(64,), num_ranks=2,
        options={"state": str(path / "s.json")}, **options,
    )  # fmt: skip
    return SearchMemory(task, Control())


def test_what_was_measured_before_is_told_again(tmp_path):
    """Even when the ranks ended in the middle of a line; for other memory it is not."""
    pin, other = (f"all_reduce/{a} push packets staged" for a in "ab")
    memory_at(tmp_path).note([trial(pin), trial(other, batches=2)])
    with (tmp_path / "s.trials").open("a") as file:
        file.write('{"how": "sta')
    case = types.SimpleNamespace(test="all_reduce", nbytes=64)

    again = memory_at(tmp_path)

    assert {pin: [1.0, 2.0, 3.1416]} == again.recalled([pin, other], case, 5)
    assert 2 == len(again.recalled([pin, other], case, 2))
    assert {} == memory_at(tmp_path, registered=True).recalled([pin], case, 5)
    tune.forget(tmp_path / "s.json")
    assert {} == memory_at(tmp_path).recalled([pin], case, 5)


def test_of_ways_that_nobody_has_tried_one_pin_each_goes_ahead(tmp_path):
    """What hangs takes those beside it along; so it stands alone until it worked."""
    memory = memory_at(tmp_path)
    case = types.SimpleNamespace(test="all_reduce", nbytes=64)
    packets, pulled, bulk = (
        [f"all_reduce/{a} {how} staged blocks=8" for a in "ab"]
        for how in ("push packets", "pull bulk", "push bulk")
    )

    first = memory.together([*packets, *pulled, *bulk], case)
    memory.worked([packets[0], bulk[0]], case)
    memory.fail(pulled[0], case, "timeout")
    second = memory.together([packets[1], pulled[1], bulk[1]], case)
    memory.worked([pulled[1]], case)

    assert [packets[0], pulled[0], bulk[0]] == first
    assert [pulled[1]] == second
    assert [packets[1], bulk[1]] == memory.together([packets[1], bulk[1]], case)
