"""PyTorch's own DistributedTest: what passes on Gloo passes on stretto."""

import json

import pytest

pytest.importorskip("torch")

from tests.host import warm
from tests.host.torch import torch_suite

BY_NAME = {"test_monitored_barrier_gloo", "test_monitored_barrier_gloo_subgroup"}
"""They call `dist.monitored_barrier`, which asks for the name "gloo" up to 2.13."""
CHOICE = {
    "test_accumulate_gradients_no_sync_allreduce_with_then_hook",
    "test_all_gather_coalesced_with_empty",
    "test_all_reduce_coalesced_full_group_product",
    "test_all_reduce_sum_complex",
    "test_barrier_timeout_full_group",
    "test_batch_isend_irecv_gloo_tags",
    "test_gather_checks",
    "test_get_future",
    "test_reduce_sum_twice",
    "test_scatter_object_list",
    "test_send_recv_any_source_autograd_profiler",
    "test_sparse_all_reduce_sum",
}


def outcomes(folder, world, backends, names=()):
    """Run the program; return what came of each test, by backend."""
    (folder / "names").write_text("\n".join(names))
    command = [torch_suite.__file__, "--world", str(world)]
    command += ["--report", str(folder / "report"), "--trace"]
    command += [word for backend in backends for word in ("--backend", backend)]
    command += ["--names", str(folder / "names")] if names else []
    done = warm.run(command, capture_output=True, text=True)
    assert (folder / "report").exists(), done.stderr
    return json.loads((folder / "report").read_text())


def test_a_choice_of_torchs_tests_passes(tmp_path):
    """A dozen tests of all kinds, chosen to be quick, pass on two ranks."""
    found = outcomes(tmp_path, 2, ["stretto"], CHOICE)["stretto"]
    assert set(found) == CHOICE
    assert {} == {
        name: text for name, (kind, text) in found.items() if kind != "passed"
    }


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("world", [2, 4])
def test_all_that_passes_on_gloo_passes(tmp_path, world):
    """Of torch's own tests none passes on Gloo alone, but the two that name it."""
    found = outcomes(tmp_path, world, ["gloo", "stretto"])
    good = {name for name, (kind, _) in found["gloo"].items() if kind == "passed"}
    assert len(good) > 90
    ours = found["stretto"]
    bad = {name: ours[name] for name in good - BY_NAME if ours[name][0] != "passed"}
    assert {} == bad
