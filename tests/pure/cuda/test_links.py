"""Lines of 128 bytes: only where NVLink joins all GPUs, as the driver or NVML say."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from cuda_fakes import on_ranks

from stretto import algorithms
from stretto.errors import PlanError
from stretto.executors import Call
from stretto.executors.cuda import links
from stretto.executors.cuda.abi import Kernel
from stretto.executors.cuda.launch import Loaded
from stretto.executors.cuda.session import CudaSession
from stretto.lower import lower
from stretto.plan import Schedule
from stretto.verify import verify, verify_plan


@pytest.fixture(autouse=True)
def management(monkeypatch):
    """Return what NVML answers by pair of names; at first there is no such library."""
    answers = {}

    def by_uuid(text, handle):
        handle._obj.value = int(text.decode()[4:6], 16) + 1
        return 0

    def status(one, other, index, found):
        assert index == links.OF_NVLINK
        found._obj.value = answers.get((one.value - 1, other.value - 1), 5)
        return 0

    library = SimpleNamespace(
        nvmlDeviceGetHandleByUUID=by_uuid, nvmlDeviceGetP2PStatus=status
    )
    monkeypatch.setattr(links, "_management", lambda: library if answers else None)
    return answers


def prepared(group, words):
    """Prepare a plan; return what refuses it, or nothing."""
    session = CudaSession(group)
    kernel = Kernel(text="any", ranks=(0,), grid=1, threads=64)
    session.load_call = lambda plan, call: Loaded(None, 5, kernel)
    program = algorithms.get("all_gather/one_shot").build(group.num_ranks)
    plan = verify_plan(lower(verify(program), Schedule.parse(words)))
    said = ""
    try:
        session.prepare(plan, Call(dtype="int8", counts=(64,) * group.num_ranks))
    except PlanError as e:
        said = str(e)
    group.exchange({})
    session.close()
    return said


@pytest.mark.parametrize(
    ("nvlink", "visible", "nvml", "why"),
    [
        (True, 8, {}, ""),
        (False, 8, {}, "no NVLink joins the GPUs of ranks 0 and 1"),
        (True, 1, {}, "nobody here can tell how the GPUs of ranks 0 and 1 are joined"),
        (True, 1, {(0, 1): 0, (0, 2): 0, (1, 2): 0}, ""),
        (False, 8, {(0, 1): 0, (0, 2): 0, (1, 2): 0}, ""),
        (True, 1, {(0, 1): 0, (0, 2): 0}, "no NVLink joins the GPUs of ranks 1 and 2"),
    ],
)
def test_lines_run_where_nvlink_joins_everybody(
    fake, management, nvlink, visible, nvml, why
):
    """Over PCIe a line may arrive in parts; packets and bulk run anywhere."""
    fake.nvlink, fake.visible = nvlink, visible
    management.update(nvml)

    said = on_ranks(fake, 3, lambda group: prepared(group, "push lines"))
    assert 1 == len(set(said)), "the same on every rank"
    assert (why in said[0]) if why else said[0] == ""
    assert ("want packets or bulk" in said[0]) is bool(why)
    assert [""] * 3 == on_ranks(fake, 3, lambda group: prepared(group, "push packets"))


def test_ranks_of_one_gpu_need_no_link(fake, monkeypatch):
    """Tests let several ranks use one."""
    monkeypatch.setenv("STRETTO_CUDA_SHARE_GPU", "1")
    fake.nvlink, fake.uuids = False, {1: 0}

    assert ["", ""] == on_ranks(fake, 2, lambda group: prepared(group, "push lines"))
