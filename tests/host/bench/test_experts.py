"""`stretto bench experts`: contenders beside one another, each checked in the run."""

from __future__ import annotations

import json

import numpy as np
import pytest

from stretto import cli
from stretto.bench import experts
from stretto.errors import CallError

pytestmark = pytest.mark.host


@pytest.mark.parametrize("spread", experts.SPREADS)
def test_tokens_choose_different_experts(spread):
    """Evenly, or a few most often, or the same for all."""
    ids = experts.ids_of(spread, 400, 16, 4, np.random.default_rng(0))
    loads = np.bincount(ids.reshape(-1), minlength=16)

    assert (400, 4) == ids.shape
    assert (np.diff(np.sort(ids, 1)) > 0).all()
    assert {"uniform": loads.max() < 2 * loads.mean(),
            "zipf": loads[0] > 4 * loads[-1],
            "one hot": loads[:4].tolist() == [400] * 4}[spread]  # fmt: skip


def test_a_run_says_who_was_there_and_that_results_were_right(tmp_path, capsys):
    """By the command, with Gloo beside."""
    pytest.importorskip("torch")
    page = tmp_path / "rows.json"
    words = ["bench", "experts", "--peers", "gloo", "--sizes", "24", "--shape"]
    assert 0 == cli.main([*words, "8,2,32", "--json", str(page)])
    rows = json.loads(page.read_text())["rows"]

    assert 3 * 5 == len(rows)
    assert all(row["right"] for row in rows)
    assert set(experts.SPREADS) == {row["spread"] for row in rows}
    assert {"all_to_all_v", "stretto expert", "stretto token", "Gloo sorted",
            "Gloo gathered"} == {row["contender"] for row in rows}  # fmt: skip
    assert all(row["times_gloo"] > 0 for row in rows)


def test_a_wrong_result_would_be_seen():
    """Of a combine that gives something else."""

    class Alone:
        """A communicator of one rank."""

        def barrier(self):
            """Wait for nobody."""

        def all_gather_object(self, value):
            """Return what it gave."""
            return [value]

    x = np.ones((2, 3), np.float32)
    steps = {"good": (lambda: x, lambda sent: sent, x), "bad": (
        lambda: x, lambda sent: sent + 1, x)}  # fmt: skip
    rows = experts._timed(Alone(), steps)
    assert [True, False] == [row["right"] for row in rows]


def test_shapes_that_cannot_be_are_refused(capsys):
    """One sentence each."""
    with pytest.raises(CallError, match="2 ranks"):
        experts.measure((8,), (7, 2, 16))
    assert 0 != cli.main(["bench", "experts", "--shape", "8,2"])
    assert "want E,K,H" in capsys.readouterr().err
