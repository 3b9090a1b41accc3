"""Transfers by UCX, in a process that has loaded nothing else."""

import pytest
from tests.host.transfer.carriers import SOME, run_by
from tests.nightly import at_night

ON_GPUS = "bytes_go_from_a_gpu or many_at_once or taken_back or prepared"
pytestmark = [pytest.mark.host, pytest.mark.timeout(600)]


@pytest.mark.parametrize("which", [SOME, at_night("ucx")], ids=["some", "all"])
def test_paths_faults_and_gpus_by_ucx(which):
    """All that goes by UCX of the files on paths and faults; of those on GPUs, a part.

    What a GPU's memory goes through does not know by what it is carried: it is enough
    that large and small parts go both ways, and are taken back.
    """
    run_by(
        "ucx", ("test_paths", "test_faults", "test_gpu_staged"),
        f"two_carriers or ucx and ({which}) and (not gpu_staged or {ON_GPUS})",
    )  # fmt: skip
