"""Who am I: rank, size and job, as the launcher's environment tells, or explicitly."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from numbers import Integral

from stretto.errors import LaunchEnvironmentError

Environment = Mapping[str, str]
ADDRESS = "STRETTO_ADDRESS"
HOSTED = "STRETTO_HOSTED"
"""Set to 1 by whoever starts ranks and hosts their hub himself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A rank's place in its job."""

    rank: int
    num_ranks: int
    local_rank: int
    job: str
    """Equal for the ranks of a job, different between jobs."""
    launcher: str
    """`torchrun`, `mpirun` (Open MPI), `mpiexec` (MPICH), `srun` or `explicit`."""
    launcher_pid: int = 0
    address: tuple[str, int] | None = None
    """A TCP front door, where one was asked for."""
    on_this_host: int = 0
    """How many of the ranks are here, as the launcher says."""
    secret: bytes = field(default=b"", repr=False)
    """What all ranks know, where it is not in a file that users name."""
    is_hosted: bool = False
    """Whether the hub is in a process that is no rank."""

    @property
    def is_spread(self) -> bool:
        """Whether the ranks are on several hosts, by what the launcher says."""
        return self.on_this_host != self.num_ranks


def find_place(
    rank: int | None = None,
    num_ranks: int | None = None,
    address: str | None = None,
    *,
    environment: Environment | None = None,
    launcher_pid: int | None = None,
) -> Place:
    """Return this process's place; LaunchEnvironmentError when it cannot be told.

    Without arguments the environment of torchrun, mpirun, mpiexec or srun is read.
    `address` is a name for the job, `unix:NAME`, or `tcp://HOST:PORT`; without one,
    STRETTO_ADDRESS says it.
    """
    env = os.environ if environment is None else environment
    launcher = os.getppid() if launcher_pid is None else launcher_pid
    for name, given in (("rank", rank), ("num_ranks", num_ranks)):
        if given is not None and (
            not isinstance(given, Integral) or isinstance(given, bool)
        ):
            raise LaunchEnvironmentError(
                f"{name}={str(given)[:40]!r}; want a whole number"
            )
    if address is not None and not _is_text(address):
        raise LaunchEnvironmentError(f"address={address!r:.40}; want a text")
    if rank is not None or num_ranks is not None:
        if rank is None or num_ranks is None:
            raise LaunchEnvironmentError(
                f"rank={rank} and num_ranks={num_ranks}: give both, or neither to read "
                "the launcher's environment"
            )
        place = _checked("explicit", rank, num_ranks, rank, num_ranks, f"by {launcher}")
    else:
        place = _from_launcher(env, launcher)
    place = replace(place, launcher_pid=launcher, is_hosted=env.get(HOSTED) == "1")
    address = env.get(ADDRESS) or None if address is None else address
    return place if address is None else _at(place, address)


def _is_text(given: object) -> bool:
    """Return whether it is a text that UTF-8 can write: no half of a surrogate pair."""
    try:
        return isinstance(given, str) and given.encode() is not None
    except UnicodeEncodeError:
        return False


def _from_launcher(env: Environment, launcher: int) -> Place:
    readers: tuple[tuple[str, Callable[[Environment, int], Place]], ...] = (
        ("RANK", _torchrun),
        ("OMPI_COMM_WORLD_RANK", _open_mpi),
        ("PMI_RANK", _mpich),
        ("SLURM_PROCID", _srun),
    )
    for variable, read in readers:
        if variable in env:
            return read(env, launcher)
    if "WORLD_SIZE" in env:
        return _torchrun(env, launcher)
    raise LaunchEnvironmentError(
        "no launcher left its mark here (none of RANK, OMPI_COMM_WORLD_RANK, PMI_RANK, "
        "SLURM_PROCID is set); start with torchrun, mpirun or srun, give rank= and "
        "num_ranks=, or use stretto.spawn"
    )


def _torchrun(env: Environment, launcher: int) -> Place:
    rank, size = (_number(env, k, "torchrun") for k in ("RANK", "WORLD_SIZE"))
    local_rank = _number(env, "LOCAL_RANK", "torchrun", rank)
    master = env.get("MASTER_ADDR", "localhost")
    local = size if _is_here(master) else 0
    local = _number(env, "LOCAL_WORLD_SIZE", "torchrun", local)
    names = ("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT")
    known = [env.get(k, "") for k in (*names, "TORCHELASTIC_RESTART_COUNT")]
    job = ":".join(known) if any(known) else f"by {launcher}"
    return _checked("torchrun", rank, size, local_rank, local, job)


def _open_mpi(env: Environment, launcher: int) -> Place:
    prefix = "OMPI_COMM_WORLD_"
    rank = _number(env, prefix + "RANK", "mpirun")
    size = _number(env, prefix + "SIZE", "mpirun")
    local_rank = _number(env, prefix + "LOCAL_RANK", "mpirun", rank)
    local = _number(env, prefix + "LOCAL_SIZE", "mpirun", size)
    job = env.get("PMIX_NAMESPACE") or env.get("OMPI_MCA_ess_base_jobid")
    return _checked("mpirun", rank, size, local_rank, local, job or f"by {launcher}")


def _mpich(env: Environment, launcher: int) -> Place:
    rank, size = (_number(env, k, "mpiexec") for k in ("PMI_RANK", "PMI_SIZE"))
    local_rank = _number(env, "MPI_LOCALRANKID", "mpiexec", rank)
    local = _number(env, "MPI_LOCALNRANKS", "mpiexec", size)
    job = env.get("PMI_JOBID") or env.get("PMI_PORT") or f"by {launcher}"
    return _checked("mpiexec", rank, size, local_rank, local, job)


def _srun(env: Environment, launcher: int) -> Place:
    rank = _number(env, "SLURM_PROCID", "srun")
    total = _number(env, "SLURM_NTASKS", "srun", -1)
    size = _number(env, "SLURM_STEP_NUM_TASKS", "srun", total)
    if size < 0:
        raise _missing("SLURM_NTASKS", "srun")
    local_rank = _number(env, "SLURM_LOCALID", "srun", rank)
    hosts = _number(env, "SLURM_NNODES", "srun", 1)
    hosts = _number(env, "SLURM_STEP_NUM_NODES", "srun", hosts)
    job = ".".join(env.get(k, "") for k in ("SLURM_JOB_ID", "SLURM_STEP_ID"))
    local = size if hosts == 1 else size // max(1, hosts)
    return _checked("srun", rank, size, local_rank, local, job)


def _number(env: Environment, name: str, launcher: str, otherwise: int = -1) -> int:
    text = env.get(name)
    if text is None:
        if otherwise >= 0 or name.startswith("SLURM_"):
            return otherwise
        raise _missing(name, launcher)
    if not text.strip().isascii() or not text.strip().isdigit():
        raise LaunchEnvironmentError(
            f"{name}={text!r} in the environment ({launcher}) is not a number; unset "
            "it, or start the ranks again"
        )
    return int(text)


def _missing(name: str, launcher: str) -> LaunchEnvironmentError:
    return LaunchEnvironmentError(
        f"{name} is not set although {launcher} seems to have started this process; "
        "set it, or give rank= and num_ranks="
    )


def _checked(
    launcher: str, rank: int, size: int, local_rank: int, local: int, job: str
) -> Place:
    if not 0 <= rank < size:
        raise LaunchEnvironmentError(
            f"rank {rank} of {size} ranks ({launcher}): ranks go from 0 to one less "
            "than their number"
        )
    return Place(
        on_this_host=local,
        rank=rank,
        num_ranks=size,
        local_rank=local_rank,
        job=f"{launcher}:{job}",
        launcher=launcher,
    )


def _is_here(host: str) -> bool:
    return host in {
        "",
        "localhost",
        "::1",
        socket.gethostname(),
        socket.getfqdn(),
    } or host.startswith("127.")


def _at(place: Place, address: str) -> Place:
    tcp = None
    if address.startswith("tcp://"):
        host, _, port = address.removeprefix("tcp://").rpartition(":")
        if (
            not host
            or not port.isascii()
            or not port.isdigit()
            or not 0 < int(port) < 65536
        ):
            raise LaunchEnvironmentError(
                f"address {address!r}: wanted tcp://HOST:PORT, a name for the job, or "
                "unix:NAME"
            )
        tcp = (host.strip("[]"), int(port))
    elif not address.removeprefix("unix:"):
        raise LaunchEnvironmentError("address is empty: give a name for the job")
    return replace(place, job=f"at {address}", address=tcp)
