"""Who a rank is, from what launchers leave in the environment."""

import pytest

from stretto.errors import LaunchEnvironmentError
from stretto.fabric.meeting.environment import find_place
from stretto.runtime.calls.joining.published import agree

TORCHRUN = {
    "RANK": "1",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "job7",
    "TORCHELASTIC_RESTART_COUNT": "0",
}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
    "PMIX_NAMESPACE": "job7",
}
MPICH = {
    "PMI_RANK": "1",
    "PMI_SIZE": "4",
    "MPI_LOCALRANKID": "1",
    "MPI_LOCALNRANKS": "4",
}
SRUN = {
    "SLURM_PROCID": "1",
    "SLURM_NTASKS": "4",
    "SLURM_LOCALID": "1",
    "SLURM_NNODES": "1",
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_ID": "0",
}
LAUNCHERS = [
    ("torchrun", TORCHRUN),
    ("mpirun", OPEN_MPI),
    ("mpiexec", MPICH),
    ("srun", SRUN),
]


@pytest.mark.parametrize(("name", "environment"), LAUNCHERS)
def test_every_launcher_says_who_we_are(name, environment):
    """Rank, size, local rank and launcher are read."""
    place = find_place(environment=environment, launcher_pid=7)

    assert name == place.launcher
    assert (1, 4, 1) == (place.rank, place.num_ranks, place.local_rank)


@pytest.mark.parametrize(("name", "environment"), LAUNCHERS)
def test_ranks_of_a_job_agree_on_its_name(name, environment):
    """Only what all ranks share makes the job's name."""
    key = next(k for k in environment if k.endswith(("RANK", "PROCID")))
    other = {**environment, key: "2"}

    one, two = (find_place(environment=e, launcher_pid=7) for e in (environment, other))
    assert one.job == two.job
    assert one.rank != two.rank


def test_torchrun_goes_before_the_slurm_job_it_runs_in():
    """The innermost launcher counts."""
    place = find_place(environment={**SRUN, **TORCHRUN}, launcher_pid=7)

    assert "torchrun" == place.launcher


def test_a_restart_is_another_job():
    """Elastic restarts do not meet the sockets of the round before."""
    again = {**TORCHRUN, "TORCHELASTIC_RESTART_COUNT": "1"}

    assert (
        find_place(environment=TORCHRUN, launcher_pid=7).job
        != find_place(environment=again, launcher_pid=7).job
    )


@pytest.mark.parametrize(("name", "environment"), LAUNCHERS)
def test_several_hosts_need_an_address(name, environment):
    """The line says what is needed, where nobody can publish one."""
    hosts = {
        "LOCAL_WORLD_SIZE": "2",
        "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
        "MPI_LOCALNRANKS": "2",
        "SLURM_NNODES": "2",
    }
    changed = {k: hosts.get(k, v) for k, v in environment.items()}

    place = find_place(environment=changed, launcher_pid=7)
    assert place.is_spread
    assert not find_place(environment=environment, launcher_pid=7).is_spread
    with pytest.raises(LaunchEnvironmentError, match="give address='tcp://HOST:") as e:
        agree(place, 1.0, modules={})
    assert "\n" not in str(e.value)
    named = {**changed, "STRETTO_ADDRESS": "tcp://nodea:2000"}
    place = find_place(environment=named, launcher_pid=7)
    assert (place, None) == agree(place, 1.0, modules={})


def test_a_master_elsewhere_means_several_hosts():
    """Without LOCAL_WORLD_SIZE the master's address tells."""
    env = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "203.0.113.9"}

    assert find_place(environment=env, launcher_pid=7).is_spread


@pytest.mark.parametrize(
    ("environment", "text"),
    [
        ({}, "no launcher left its mark"),
        ({"RANK": "0"}, "WORLD_SIZE is not set although torchrun"),
        ({"WORLD_SIZE": "2"}, "RANK is not set although torchrun"),
        ({"SLURM_PROCID": "0"}, "SLURM_NTASKS is not set although srun"),
        ({**TORCHRUN, "RANK": "one"}, r"RANK='one' .* is not a number"),
        ({**TORCHRUN, "RANK": "-1"}, r"RANK='-1' .* is not a number"),
        ({**TORCHRUN, "RANK": ""}, r"RANK='' .* is not a number"),
        ({**TORCHRUN, "RANK": "9"}, "rank 9 of 4 ranks"),
        ({**OPEN_MPI, "OMPI_COMM_WORLD_SIZE": "4x"}, "is not a number"),
        ({**OPEN_MPI, "OMPI_COMM_WORLD_SIZE": "0"}, "rank 1 of 0 ranks"),
    ],
)
def test_a_malformed_environment_gets_one_clear_line(environment, text):
    """The variable, what it held, and what to do."""
    with pytest.raises(LaunchEnvironmentError, match=text) as e:
        find_place(environment=environment, launcher_pid=7)
    assert "\n" not in str(e.value)


def test_explicit_numbers_win():
    """Arguments go before any environment."""
    place = find_place(0, 2, "mine", environment=TORCHRUN)

    assert ("explicit", 0, 2) == (place.launcher, place.rank, place.num_ranks)
    assert place.job == find_place(1, 2, "mine", environment={}).job


def test_half_an_explicit_place_is_refused():
    """Rank without number is a mistake, not a guess."""
    with pytest.raises(LaunchEnvironmentError, match="give both"):
        find_place(rank=1, environment=TORCHRUN)


def test_a_tcp_address_is_read():
    """Host and port, with brackets for IPv6."""
    assert ("h", 5) == find_place(0, 1, "tcp://h:5").address
    assert ("::1", 5) == find_place(0, 1, "tcp://[::1]:5").address


@pytest.mark.parametrize("address", ["tcp://h", "tcp://:5", "tcp://h:x", "tcp://h:0"])
def test_a_wrong_address_is_refused(address):
    """The text says what an address looks like."""
    with pytest.raises(LaunchEnvironmentError, match="tcp://HOST:PORT"):
        find_place(0, 1, address)


def test_an_empty_address_is_refused():
    """A name must be there."""
    with pytest.raises(LaunchEnvironmentError, match="address is empty"):
        find_place(0, 1, "unix:")
