"""What the guide says of nvcc: headers and printed kernels compile with two options."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

import stretto
from stretto import algorithms, collectives
from stretto.collectives import Operator
from stretto.executors import cuda
from stretto.lower import lower
from stretto.plan import Schedule
from stretto.verify import verify, verify_plan

pytestmark = pytest.mark.skipif(shutil.which("nvcc") is None, reason="there is no nvcc")
FOLDER = Path(stretto.include_path())
SCHEDULES = (
    "push packets staged threads=256",
    "push bulk staged",
    "pull bulk staged",
    "push bulk zero_copy",
)


def complaint(tmp_path, text):
    """Return what nvcc says of a text, with nothing but what the guide shows."""
    source = tmp_path / "own.cu"
    source.write_text(text)
    done = subprocess.run(
        ["nvcc", "-std=c++17", "-I", str(FOLDER), "-arch=sm_90", "-cubin", str(source)],
        cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    return (done.stdout + done.stderr) if done.returncode else ""


def printed(name, words, num_ranks=4, dtype="float32"):
    """Return what `stretto show --cuda` prints, the last rank's; "": refused."""
    params = {}
    if name.startswith("permute/"):
        params["pairs"] = tuple((r, (r + 1) % num_ranks) for r in range(num_ranks))
    proved = verify(algorithms.get(name).build(num_ranks, **params))
    plan = verify_plan(lower(proved, Schedule.parse(words)), proved)
    return cuda.show(plan, dtype=dtype, op=Operator.SUM, rank=num_ranks - 1)


def test_all_headers_compile_with_nvcc(tmp_path):
    """In one file, in the order of their names; a device layer needs no host."""
    names = sorted(f.name for f in FOLDER.glob("*.cuh"))

    assert "channel.cuh" in names
    assert not complaint(tmp_path, "".join(f'#include "{n}"\n' for n in names))


def test_a_printed_kernel_compiles_with_nvcc(tmp_path):
    """Sums, copies, several sources: the ring's."""
    assert not complaint(tmp_path, printed("all_reduce/ring", "push bulk staged"))


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("words", SCHEDULES)
def test_every_printed_kernel_compiles_with_nvcc(tmp_path, words):
    """Of every shipped algorithm, under every protocol that it takes."""
    for name in algorithms.names():
        if algorithms.get(name).refuses(4):
            continue
        reduces = collectives.get(algorithms.get(name).collective).reduces
        text = printed(name, words, dtype="bfloat16" if reduces else "float32")

        assert not (said := complaint(tmp_path, text)), f"{name}: {said}"
