"""Ray's own calls, on actors of one Ray, with the backend and the transport of ours."""

import importlib.util
import inspect
import os
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from tests.host.ray import stand_in
from tests.waiting import until

pytestmark = [
    pytest.mark.host,
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(
        importlib.util.find_spec("ray") is None,
        reason="needs Ray: pip install ray; the same on a stand-in: test_stand_in.py",
    ),
]
RANKS = 3
ROOT = Path(__file__).parents[3]
SRC, GUIDE = str(ROOT / "src"), ROOT / "docs" / "guides" / "ray.md"


@pytest.fixture(scope="module")
def ray(tmp_path_factory):
    """Begin a Ray of this machine, whose workers know us."""
    import ray

    import stretto.ray

    hook = {"worker_process_setup_hook": "stretto.ray.enable"}
    ray.init(num_cpus=8, runtime_env=hook, include_dashboard=False)
    stretto.ray.enable()
    stretto.ray.enable()
    yield ray
    ray.shutdown()


def test_the_guide_runs_as_it_stands(tmp_path):
    """Before this process has a Ray of its own."""
    shown = re.search(
        r"^```py\n(.*?)^```$", GUIDE.read_text(), re.MULTILINE | re.DOTALL
    )
    (tmp_path / "page.py").write_text(shown[1])
    done = subprocess.run(
        [sys.executable, "page.py"], cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": SRC},
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    assert ["[[3.0, 3.0, 3.0], [3.0, 3.0, 3.0]]", "15.0"] == done.stdout.splitlines()[
        -2:
    ]


def actors(ray, many=RANKS, name="default"):
    """Return actors that are a group."""
    from ray.util import collective

    @ray.remote(num_cpus=1)
    class Worker:
        def run(self, work, rank):
            return work(rank)

    found = [Worker.remote() for _ in range(many)]
    if name:
        collective.create_collective_group(
            found, many, list(range(many)), backend="STRETTO", group_name=name
        )
    return found


def run(ray, workers, work):
    """Have all run it; return what each gave."""
    return ray.get([one.run.remote(work, r) for r, one in enumerate(workers)])


def every_call_of_ray(rank):
    """Make each call by Ray's own functions."""
    from ray.util import collective
    from ray.util.collective.types import ReduceOp

    return every_call(rank, collective, ReduceOp)


def every_call(rank, collective, ReduceOp):  # noqa: N803
    """Make each call on arrays of NumPy and of PyTorch; return what came out wrong."""
    import torch

    wrong = []

    def check(what, got, due):
        got, due = (np.asarray(getattr(a, "data", a)) for a in (got, due))
        if not np.array_equal(got, due):
            wrong.append((what, got.tolist()))

    each = [np.arange(6, dtype=np.float32) + 10 * r for r in range(RANKS)]
    makes = {
        "numpy": lambda a: a.copy(),
        "torch": lambda a: torch.from_numpy(a.copy()),
        "parameter": lambda a: torch.nn.Parameter(torch.from_numpy(a.copy())),
        "gaps": lambda a: torch.from_numpy(np.repeat(a, 2))[::2],
    }
    for kind, make in makes.items():
        x = make(each[rank])
        collective.allreduce(x)
        check(f"{kind} allreduce", x, sum(each))
        for op, of in ((ReduceOp.MAX, np.max), (ReduceOp.MIN, np.min),
                       (ReduceOp.PRODUCT, np.prod)):  # fmt: skip
            x = make(each[rank])
            collective.allreduce(x, op=op)
            check(f"{kind} {op}", x, of(each, axis=0))
        x = make(each[rank])
        collective.reduce(x, dst_rank=1)
        check(f"{kind} reduce", x, sum(each) if rank == 1 else each[rank])
        x = make(each[rank])
        collective.broadcast(x, src_rank=2)
        check(f"{kind} broadcast", x, each[2])
        outs = [make(np.zeros(6, np.float32)) for _ in range(RANKS)]
        collective.allgather(outs, make(each[rank]))
        check(
            f"{kind} allgather", [np.asarray(getattr(o, "data", o)) for o in outs], each
        )
        out = make(np.zeros(6, np.float32))
        collective.reducescatter(out, [make(each[rank] + k) for k in range(RANKS)])
        check(f"{kind} reducescatter", out, sum(each) + RANKS * rank)
        if rank == 0:
            collective.send(make(each[0]), 2)
        elif rank == 2:
            x = make(each[2])
            collective.recv(x, 0)
            check(f"{kind} recv", x, each[0])
        collective.barrier()
    return wrong


def test_the_stand_in_has_what_ray_has(ray):
    """Names and parameters of methods, which of them must be there, and values."""
    from ray.experimental import internal_kv, rdt
    from ray.experimental.rdt.tensor_transport_manager import FetchRequest
    from ray.util.collective import types
    from ray.util.collective.collective_group.base_collective_group import BaseGroup

    for theirs, mine in (
        (BaseGroup, stand_in.BaseGroup),
        (rdt.TensorTransportManager, stand_in.TensorTransportManager),
    ):
        assert theirs.__abstractmethods__ == mine.__abstractmethods__
        for name in theirs.__abstractmethods__:
            one, other = (inspect.signature(getattr(c, name)) for c in (theirs, mine))
            assert list(one.parameters) == list(other.parameters), name
    for one, other in (
        (FetchRequest, stand_in.FetchRequest),
        (rdt.TensorTransportMetadata, stand_in.TensorTransportMetadata),
    ):
        assert [f.name for f in fields(one)] == [f.name for f in fields(other)]
    assert {op.name: op.value for op in types.ReduceOp} == {
        op.name: op.value for op in stand_in.ReduceOp
    }
    for name in ("put", "get", "del"):
        theirs = inspect.signature(getattr(internal_kv, f"_internal_kv_{name}"))
        mine = inspect.signature(getattr(stand_in.Kept, name.replace("del", "delete")))
        assert list(theirs.parameters) == list(mine.parameters)[1:], name


def test_every_call_gives_what_ray_says(ray):
    """For arrays of each kind, in place where Ray wants it so."""
    assert [[]] * RANKS == run(ray, actors(ray), every_call_of_ray)


def test_a_group_may_have_the_name_of_one_that_was(ray):
    """Of one that the driver declared, or the actors."""
    from ray.util import collective

    def summed(rank):
        import ray.util.collective as calls

        x = np.full(3, rank + 1.0)
        calls.allreduce(x, group_name="again")
        calls.destroy_collective_group("again")
        return x.tolist()

    def declared(rank):
        import ray.util.collective as calls

        calls.init_collective_group(2, rank, "STRETTO", "again")
        return summed(rank)

    for _ in range(2):
        workers = actors(ray, 2, "again")
        assert [[3.0] * 3] * 2 == run(ray, workers, summed)
    assert [[3.0] * 3] * 2 == run(ray, actors(ray, 2, ""), declared)
    assert not collective.is_group_initialized("again")


def test_a_lost_actor_is_named(ray):
    """Within a second or so, in the exception of who waits."""
    import ray as api

    def waits(rank):
        import os

        import ray.util.collective as calls

        x = np.ones(3)
        calls.allreduce(x, group_name="lost")
        if rank == 1:
            os._exit(3)
        calls.allreduce(x, group_name="lost")

    workers = actors(ray, 2, "lost")
    calls = [one.run.remote(waits, r) for r, one in enumerate(workers)]
    with pytest.raises(api.exceptions.RayTaskError, match="rank 1"):
        api.get(calls[0], timeout=60)


def test_wrong_lists_are_refused(ray):
    """With what is wanted."""

    def wrong(rank):
        import ray.util.collective as calls

        from stretto.errors import CallError

        outs = [np.zeros(2), np.zeros(3)]
        try:
            calls.allgather(outs, np.zeros(2), group_name="odd")
        except CallError as e:
            return str(e)
        return ""

    said = run(ray, actors(ray, 2, "odd"), wrong)
    assert all("tensor 1 of the list has shape (3,); want (2,)" in one for one in said)


@pytest.mark.filterwarnings("ignore:RDT ObjectRef")  # it goes back to its maker, too
def test_tensors_go_from_actor_to_actor(ray):
    """As results, as arguments, in structures; large, empty and with gaps."""
    import torch

    @ray.remote(num_cpus=1, enable_tensor_transport=True)
    class Holder:
        @ray.method(tensor_transport="STRETTO")
        def make(self, seed):
            torch.manual_seed(seed)
            grid = torch.randn(300, 400)
            return {
                "large": torch.randn(1 << 20), "empty": torch.empty(0, 3),
                "gaps": grid[::3, ::2], "half": torch.randn(77).to(torch.bfloat16),
                "words": "plain",
            }  # fmt: skip

        def sums(self, given):
            return {
                k: (v.double().sum().item(), tuple(v.shape), v.is_contiguous())
                if torch.is_tensor(v) else v for k, v in given.items()
            }  # fmt: skip

    one, other, third = (Holder.remote() for _ in range(3))
    for seed in range(3):
        ref = one.make.remote(seed)
        mine, theirs, more = ray.get(
            [who.sums.remote(ref) for who in (one, other, third)]
        )
        assert mine["words"] == theirs["words"] == "plain"
        for key in ("large", "empty", "gaps", "half"):
            assert mine[key][:2] == theirs[key][:2] == more[key][:2], key
        del ref


def test_a_holder_that_is_gone_takes_no_reader_along(ray):
    """Who reads from it hears of that, and reads from others afterwards."""
    import torch

    @ray.remote(num_cpus=1, enable_tensor_transport=True)
    class Holder:
        @ray.method(tensor_transport="STRETTO")
        def make(self):
            return torch.arange(1000.0)

        def read(self, x):
            return x.sum().item()

        def pid(self):
            return os.getpid()

    one, other, reader = (Holder.remote() for _ in range(3))
    assert 499500.0 == ray.get(reader.read.remote(one.make.remote()))
    lost = one.make.remote()
    ray.wait([lost], fetch_local=False)
    where = Path(f"/proc/{ray.get(one.pid.remote())}")
    ray.kill(one)
    until(lambda: not where.exists())
    with pytest.raises(ray.exceptions.RayError):
        ray.get(reader.read.remote(lost), timeout=90)
    assert 499500.0 == ray.get(reader.read.remote(other.make.remote()), timeout=60)


def test_tensors_are_read_into_those_that_were_given(ray):
    """Where Ray lets whoever reads name them; and put by `ray.put`."""
    import torch
    from ray.experimental import set_target_for_ref

    @ray.remote(num_cpus=1, enable_tensor_transport=True)
    class Holder:
        def __init__(self):
            self.kept = torch.arange(10.0)

        def put(self):
            return [ray.put(self.kept, _tensor_transport="STRETTO")]

        def read(self, refs):
            into = torch.zeros(10)
            set_target_for_ref(refs[0], [into])
            got = ray.get(refs[0])
            return into.tolist(), got.data_ptr() == into.data_ptr()

    one, other = Holder.remote(), Holder.remote()
    refs = one.put.remote()
    assert (torch.arange(10.0).tolist(), True) == ray.get(other.read.remote(refs))
