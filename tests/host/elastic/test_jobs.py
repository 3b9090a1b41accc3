"""`stretto launch --standby`: a job that its ranks do not end."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.host.elastic.test_training import TRAIN
from tests.host.meeting.conftest import JOIN
from tests.waiting import until

from stretto import elastic
from stretto.elastic.rehearsal import PHASES
from stretto.fabric.meeting.watching import watching

pytestmark = [pytest.mark.host, pytest.mark.slow, pytest.mark.timeout(300)]
WORK = """
import os, sys, time, numpy as np, stretto
comm = stretto.connect()
until = time.monotonic() + 60
while comm.generation < 2:
    assert time.monotonic() < until
    try:
        total = comm.all_reduce(np.full(100, comm.rank + 1.0))[7]
        time.sleep(0.001)
    except stretto.PeerLost:
        while not comm.standbys:
            time.sleep(0.01)
        comm.replace()
os.write(1, f"{comm.rank} {comm.all_reduce(np.ones(4))[0]}\\n".encode())
comm.close()
"""


@pytest.fixture
def launch(environment, tmp_path, monkeypatch):
    """Launch a job named `job`; it is ended after the test."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    begun = []

    def begin(what, *options, command="launch"):
        words = [sys.executable, "-m", "stretto", command, *options]
        one = subprocess.Popen(
            [*words, "--", sys.executable, "-c", what], env=environment, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        begun.append(one)
        return one

    yield begin
    for one in begun:
        one.terminate()
        one.communicate()


def pids_at(meeting, generation, standbys=0):
    """Return the ranks' process ids, once a generation has begun."""

    def is_there():
        seen = elastic.look(meeting)
        free = [one for one in seen.members if one.rank < 0]
        return seen.generation == generation and len(free) >= standbys

    until(is_there, 60)
    return [one.pid for one in elastic.look(meeting).ranks]


def test_a_job_goes_on_without_those_it_lost(launch, tmp_path):
    """Rank 0, then the one that came for it; a fresh one stands by each time."""
    options = ["--ranks", "2", "--standby", "1", "--min", "2", "--job", "job"]
    job = launch(WORK, *options)
    until(lambda: [*tmp_path.glob("stretto/*.sock")], 60)
    with watching("job") as meeting:
        first = pids_at(meeting, 0, standbys=1)
        os.kill(first[0], signal.SIGKILL)
        then = pids_at(meeting, 1, standbys=1)
        assert first[1] == then[1]
        os.kill(then[0], signal.SIGKILL)
    out, said = job.communicate(timeout=90)

    assert 0 == job.returncode, said
    assert ["0 2.0", "1 2.0"] == sorted(out.splitlines())
    assert "stretto launch: rank 0 was killed by SIGKILL" in said
    assert "generation 2 has begun, of 2 ranks" in said


DIES = """
import os, pathlib, signal
def die_once(where):
    path = pathlib.Path(os.environ["XDG_RUNTIME_DIR"], "died")
    if os.environ["RANK"] == "0" and not path.exists():
        path.touch()
        os.kill(os.getpid(), signal.SIGKILL)
"""
EARLY = """
import torch, torch.distributed as dist
import stretto.torch
import stretto.torch.elastic as elastic
dist.init_process_group("stretto")
die_once("in PyTorch")
net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for step in elastic.steps(elastic.State(model=net, optimizer=opt), number=3):
    opt.zero_grad()
    net(torch.ones(2, 4)).sum().backward()
    opt.step()
os.write(1, f"{dist.get_rank()} {step}\\n".encode())
"""
MEETS = """
import stretto
die_once("before all have come")
comm = stretto.connect()
comm.barrier()
os.write(1, f"{comm.rank} 2\\n".encode())
comm.close()
"""


@pytest.mark.parametrize("program", [MEETS, EARLY], ids=["meeting", "torch"])
def test_a_job_that_has_not_begun_begins_anew(launch, program):
    """There is no state yet, and so nobody to go on with."""
    job = launch(DIES + program, "--ranks", "2", "--min", "2", "--job", "job")
    out, said = job.communicate(timeout=120)

    assert 0 == job.returncode, said
    assert ["0 2", "1 2"] == sorted(out.splitlines())
    assert 1 == said.count("stretto launch: it had not begun yet, and begins anew")


def test_a_launcher_that_is_ended_leaves_nothing(launch, tmp_path):
    """Neither ranks, nor who stands by, nor a socket."""
    job = launch(WORK, "--ranks", "2", "--standby", "1", "--min", "2", "--job", "job")
    until(lambda: [*tmp_path.glob("stretto/*.sock")], 60)
    with watching("job") as meeting:
        pids = pids_at(meeting, 0, standbys=1)
    job.terminate()
    job.communicate(timeout=30)

    assert 128 + signal.SIGTERM == job.returncode
    assert [] == [pid for pid in pids if Path(f"/proc/{pid}").exists()]
    assert [] == [*tmp_path.glob("stretto/*.sock")]


INTERRUPTED = """
import os, subprocess, sys
from stretto.elastic import Starter

class Popen(subprocess.Popen):
    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        os.write(1, f"{self.pid}\\n".encode())
        raise KeyboardInterrupt

subprocess.Popen = Popen
try:
    Starter(words=["sleep", "60"]).start("", {})
except KeyboardInterrupt:
    os._exit(0)
"""
IMPORTS = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.write(1, f"{os.getpid()}\\n".encode())
time.sleep(60)
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT], ids=["killed", "^C"])
def test_processes_that_have_not_come_yet_end_with_their_launcher(launch, how):
    """They hear of nothing; one may just have been started, and be in no list."""
    job = launch(IMPORTS, "--ranks", "2", "--standby", "1", "--min", "2")
    pids = [int(job.stdout.readline()) for _ in range(3)]
    job.send_signal(how)
    job.communicate(timeout=30)

    until(lambda: not [p for p in pids if Path(f"/proc/{p}").exists()], 5)


def test_a_start_that_is_interrupted_leaves_no_process(environment):
    """Wherever in it the interrupt comes."""
    said = subprocess.run(
        [sys.executable, "-c", INTERRUPTED], env=environment, timeout=60,
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    pids = [int(pid) for pid in said.stdout.split()]
    assert pids, said.stderr
    until(lambda: not [p for p in pids if Path(f"/proc/{p}").exists()], 5)


HOOKED = """
import os, signal
from stretto.elastic import Starter

os.register_at_fork(after_in_parent=lambda: signal.raise_signal(signal.SIGINT))
try:
    Starter(words=["sleep", "60"]).start("", {})
    os.write(1, b"lost")
except KeyboardInterrupt:
    os.write(1, b"heard")
"""


def test_an_interrupt_amid_a_start_is_not_lost(environment):
    """Python drops what is raised in hooks that run when it forks."""
    said = subprocess.run(
        [sys.executable, "-c", HOOKED], env=environment, timeout=60,
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "heard" == said.stdout, said.stderr


def test_who_joins_by_hand_stands_by_too(launch, tmp_path):
    """It finds in the job what its program needs to know."""
    job = launch(WORK, "--ranks", "2", "--min", "2", "--job", "job")
    until(lambda: [*tmp_path.glob("stretto/*.sock")], 60)
    with watching("job") as meeting:
        for generation in range(2):
            pids_at(meeting, generation)
            launch(WORK, "--join", "job", command="standby")
            pids = pids_at(meeting, generation, standbys=1)
            os.kill(pids[1], signal.SIGKILL)
    out, said = job.communicate(timeout=90)

    assert 0 == job.returncode, said
    assert ["0 2.0"] == out.splitlines()


def test_a_rehearsal_says_where_the_time_went(launch, tmp_path):
    """By phase, up to the first step that was committed."""
    options = ["--ranks", "2", "--standby", "1", "--min", "2", "--job", "job"]
    call = (
        "rank = None if os.environ.get('STRETTO_STANDBY') else int(os.environ['RANK'])"
    )
    job = launch(f"{JOIN}{TRAIN}{call}\ntrain(rank, 2, {{}}, 30, 0.02)\n", *options)
    until(lambda: [*tmp_path.glob("stretto/*.sock")], 60)

    def has_begun(meeting):
        seen = elastic.look(meeting)
        ready = [one for one in seen.members if one.rank < 0 and one.said.get("ready")]
        return ready and all(one.said.get("step", 0) > 2 for one in seen.ranks)

    with watching("job") as meeting:
        until(lambda: has_begun(meeting), 120)
        found = elastic.rehearse(meeting, 1)
    out, said = job.communicate(timeout=120)

    assert 0 == job.returncode, said
    assert list(PHASES) == list(found.seconds)
    assert 0 < found.downtime_s < 30
    # They write to one pipe: what is long may lie in one line.
    assert {"0", "1"} == set(re.findall(r"\[([01]), \d+, \{", out))


MANY = """
import torch, torch.distributed as dist
import stretto.torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
import os
said = []
for turn in range(3):
    dist.init_process_group("stretto")
    x = torch.full((3,), dist.get_rank() + turn + 1.0)
    pair = dist.new_group([0, 1])
    if pair is not dist.GroupMember.NON_GROUP_MEMBER:
        dist.all_reduce(x, group=pair)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    torch.manual_seed(0)
    net = torch.nn.Linear(4, 4)
    fully_shard(net, mesh=mesh)
    net(torch.ones(2, 4)).sum().backward()
    dist.all_reduce(x)
    said.append(int(x[0]))
    dist.destroy_process_group()
os.write(1, f"{os.environ['RANK']} {said}\\n".encode())
"""


def test_a_job_has_groups_in_groups_and_makes_all_anew(launch):
    """Each group is made by the same launcher's word; ranks of a job meet once."""
    job = launch(MANY, "--ranks", "4", "--job", "job")
    out, said = job.communicate(timeout=120)

    assert 0 == job.returncode, said
    sums = [2 * (1 + 2 + 2 * t) + 3 + 4 + 2 * t for t in range(3)]
    assert [f"{rank} {sums}" for rank in range(4)] == sorted(out.splitlines())
