"""Detection reads what `nvidia-smi` prints; without it a machine is its cores."""

import pytest

from stretto.topology import detect, render

H200 = """\t\x1b[4mGPU0\tGPU1\tGPU2\tGPU3\tNIC0\tCPU Affinity\tNUMA Affinity\x1b[0m
GPU0\t X \tNV18\tNV18\tNV18\tSYS\t0-47\t0
GPU1\tNV18\t X \tNV18\tNV18\tSYS\t0-47\t0
GPU2\tNV18\tNV18\t X \tNV18\tSYS\t0-47\t0
GPU3\tNV18\tNV18\tNV18\t X \tSYS\t0-47\t0
NIC0\tSYS\tSYS\tSYS\tSYS\t X

Legend:

  NV#  = Connection traversing a bonded set of # NVLinks
"""

MIXED = """\tGPU0\tGPU1\tGPU2
GPU0\t X \tNV2\tSYS
GPU1\tNV2\t X \tPHB
GPU2\tSYS\tPHB\t X
"""


def smi(matrix, model):
    def ask(command):
        return matrix if "topo" in command else model

    return ask


def test_four_gpus_on_18_links_are_the_box_we_measured():
    """The constants come from the family's file."""
    m = detect(ask=smi(H200, "NVIDIA H200\n" * 4))

    assert ("h200x4", 4) == (m.name, m.num_ranks)


def test_gpus_that_all_reach_each_other_alike_sit_behind_a_switch():
    """Twelve links of 25 GB/s are 300 GB/s a GPU; of NVLink 5, twice that."""
    matrix = H200.replace("NV18", "NV12")
    m = detect(ask=smi(matrix, "NVIDIA A100"))
    b = detect(ask=smi(matrix, "NVIDIA GB200"))

    assert "nvswitch" == m.switches[0].name
    assert {300.0} == {k.bandwidth_gbytes_per_s for k in m.links}
    assert {600.0} == {k.bandwidth_gbytes_per_s for k in b.links}


def test_gpus_without_nvlink_meet_on_pcie():
    """Pairs with NVLink keep it; the others go over the host."""
    m = detect(ask=smi(MIXED, "Tesla V100"))

    assert 1 == len(m.route(0, 1).links)
    assert ["pcie", "2"] == [m.node_name(m.links[i].dst) for i in m.route(0, 2).links]
    assert "Tesla V100" in render(m)


@pytest.mark.parametrize("answer", ["", "No devices were found\n", "GPU0\t X \n"])
def test_without_two_gpus_the_machine_is_its_cores(answer):
    """No tool, no GPU, one GPU: processes over shared memory."""
    m = detect(ask=smi(answer, ""), num_cores=6)

    assert ("cpux6", "cpu", 6) == (m.name, m.kind, m.num_ranks)


def test_this_machine_is_something():
    """Whatever runs the tests has at least one rank."""
    assert detect().num_ranks >= 1
