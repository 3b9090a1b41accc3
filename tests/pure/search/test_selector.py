"""The selector's problem: planted times, and a profile that the runtime reads."""

import json

import pytest

from stretto.errors import StrettoError
from stretto.runtime.choice import Profile, Question, Selector
from stretto.search import Settings, problem
from stretto.search.evolve import search
from stretto.search.found import spell

SMALL, LARGE = (
    "all_reduce/one_shot push packets staged",
    "all_reduce/ring push bulk staged",
)


def trials(path, sizes):
    """Write trials in which one pin is the faster up to 64 KB, the other above."""
    rows = []
    for nbytes in sizes:
        for pin, us in ((SMALL, 1 + nbytes / 1e3), (LARGE, 40 + nbytes / 4e3)):
            rows.append(
                {"how": "staged 4 float32 eager", "test": "all_reduce",
                 "nbytes": nbytes, "pin": pin, "times": [us, us * 2]}
            )  # fmt: skip
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_what_is_found_is_a_profile_that_the_runtime_reads(tmp_path):
    """Planted times are learned from half of the sizes, and hold at the others."""
    path = trials(tmp_path / "t.trials", [1 << k for k in range(10, 24)])
    made = problem("selector", trials=path, executor="cpu")
    found = search(made, Settings(evals=300, seed=1))
    extra = made.extra(made.parse(found.text))
    text = spell("selector", found, seed=1, extra=extra)
    selector = Selector("cpu", Profile.parse(text, "here"))
    chosen = {
        nbytes: str(
            selector.choose(
                Question(executor="cpu", collective="all_reduce", num_ranks=4,
                         nbytes=nbytes, dtypes="whole")
            )
        ).partition(" ")[0]
        for nbytes in (1 << 12, 1 << 21)
    }  # fmt: skip

    assert found.held_out["over_best"] < 1.1
    assert found.held_out["over_best"] <= found.first["over_best"]
    assert {1 << 12: "all_reduce/one_shot", 1 << 21: "all_reduce/ring"} == chosen


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", r":1: "), ("{}", r":1: .*how"), ("[]", r":1: "),
        ('{"how": "staged 4 f e", "test": "x", "nbytes": 8, "pin": "x", "times": []}',
         r":1: "),
        ('{"how": "staged 1 f e", "test": "x", "nbytes": 8, "pin": "x", "times": [1]}',
         "1 ranks|for 1"),
        ("", "want 2 sizes"),
    ],
)  # fmt: skip
def test_what_is_no_trial_is_refused_with_its_line(tmp_path, line, said):
    """One sentence; nothing is guessed."""
    (tmp_path / "t.trials").write_text(line)
    with pytest.raises(StrettoError, match=said):
        problem("selector", trials=str(tmp_path / "t.trials"))
