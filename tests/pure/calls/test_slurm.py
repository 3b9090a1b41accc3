"""What a Slurm step's environment says of where ranks meet."""

import pytest

from stretto.errors import LaunchEnvironmentError
from stretto.runtime.calls.joining.slurm import address, expanded


@pytest.mark.parametrize(
    ("nodes", "hosts"),
    [
        ("node7", ["node7"]),
        ("a,b", ["a", "b"]),
        ("node[001,007-009]", ["node001", "node007", "node008", "node009"]),
        ("r[1-2]n[08-09],x", ["r1n08", "r1n09", "r2n08", "r2n09", "x"]),
        ("10.0.0.1,10.0.0.2", ["10.0.0.1", "10.0.0.2"]),
    ],
)
def test_lists_of_hosts_are_expanded(nodes, hosts):
    """As Slurm folds them: zeros in front are kept."""
    assert hosts == list(expanded(nodes))


@pytest.mark.parametrize("nodes", ["a[1-", "a[x-y]", ",,", "a]b"])
def test_what_is_no_list_is_refused(nodes):
    """With what to give instead."""
    with pytest.raises(LaunchEnvironmentError):
        list(expanded(nodes))


def test_steps_of_a_job_meet_at_other_ports():
    """On the first host of the step, whatever else the job has."""
    env = {
        "SLURM_JOB_ID": "4711",
        "SLURM_STEP_ID": "0",
        "SLURM_JOB_NODELIST": "n[0-3]",
        "SLURM_STEP_NODELIST": "n[2-3]",
    }
    first, second = address(env), address({**env, "SLURM_STEP_ID": "1"})

    assert ("n2", "n2") == (first[0], second[0])
    assert first[1] != second[1]
    assert all(61440 <= port < 65536 for _, port in (first, second))
    assert address({}) is None
