"""What the guide says of nvcc and NVRTC: two options compile headers and kernels."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from tests.nightly import at_night

import stretto
from stretto.compiler.lower import lower
from stretto.compiler.plan import Schedule
from stretto.compiler.verify import verify, verify_plan
from stretto.executors import cuda
from stretto.program import algorithms, collectives
from stretto.program.collectives import Operator

needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc here")
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


def nvrtc_complaint(text):
    """Return what NVRTC says of a text, with the same two options."""
    nvrtc = pytest.importorskip("cuda.bindings.nvrtc")
    options = [b"-std=c++17", f"-I{FOLDER}".encode(), b"-arch=sm_90"]
    _, program = nvrtc.nvrtcCreateProgram(text.encode(), b"own.cu", 0, [], [])
    (error,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
    size = nvrtc.nvrtcGetProgramLogSize(program)[1]
    log = b" " * (size + 1)  # a single byte would be the interpreter's own
    nvrtc.nvrtcGetProgramLog(program, log)
    nvrtc.nvrtcDestroyProgram(program)
    return log[:size].decode() if int(error) else ""


def printed(name, words, num_ranks=4, dtype="float32"):
    """Return what `stretto show --cuda` prints, the last rank's; "": refused."""
    params = {}
    if name.startswith("permute/"):
        params["pairs"] = tuple((r, (r + 1) % num_ranks) for r in range(num_ranks))
    proved = verify(algorithms.get(name).build(num_ranks, **params))
    plan = verify_plan(lower(proved, Schedule.parse(words)), proved)
    return cuda.show(plan, dtype=dtype, op=Operator.SUM, rank=num_ranks - 1)


@needs_nvcc
def test_all_headers_compile_with_nvcc(tmp_path):
    """In one file, in the order of their names; a device layer needs no host."""
    names = sorted(f.name for f in FOLDER.glob("*.cuh"))

    assert "channel.cuh" in names
    assert not complaint(tmp_path, "".join(f'#include "{n}"\n' for n in names))


@needs_nvcc
def test_a_printed_kernel_compiles_with_nvcc(tmp_path):
    """Sums, copies, several sources: the ring's."""
    assert not complaint(tmp_path, printed("all_reduce/ring", "push bulk staged"))


@pytest.mark.parametrize(
    "text", ["headers", at_night("all_reduce/ring"), at_night("all_to_all/one_shot")]
)
def test_the_same_compiles_with_nvrtc(text):
    """Whatever version is installed; an error would name the line."""
    names = sorted(f.name for f in FOLDER.glob("*.cuh"))
    kernel = "".join(f'#include "{n}"\n' for n in names)
    if text != "headers":
        kernel = printed(text, "push bulk staged")

    assert not nvrtc_complaint(kernel)
    assert "error" in nvrtc_complaint(kernel + "\nint none = here;\n")


@needs_nvcc
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
