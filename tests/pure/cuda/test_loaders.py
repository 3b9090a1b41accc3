"""Loaders of people's own kernels: what the guide shows compiles, word for word."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
from cuda.bindings import nvrtc

import stretto

GUIDE = Path(__file__).parents[3] / "docs" / "guides" / "kernels.md"
TEXT = """
#include "channel.cuh"
#include "task.cuh"

extern "C" __global__ void ping(const stretto::MemoryChannel* channels, int peer,
                                unsigned* flags) {
  const stretto::MemoryChannel& to = channels[peer];
  to.put(0, 0, 4096, threadIdx.x, blockDim.x);
  to.put_packet(4096, threadIdx.x, threadIdx.x, unsigned(to.epoch()));
  __syncthreads();
  if (threadIdx.x == 0) {
    to.signal();
    flags[0] = to.wait(7);
    to.add(0, 1u);
    to.end_call();
  }
}
"""


def shown():
    """Return what the guide says for every loader."""
    rows = re.findall(
        r"^\| ([^|]+) \| `(.+?)`(.*) \|$", GUIDE.read_text(), re.MULTILINE
    )
    first = next(i for i, row in enumerate(rows) if row[0].strip() == "cuda.core")
    return {name.strip(): code for name, code, _ in rows[first : first + 4]}


def compiled(text, options):
    """Compile by NVRTC; return what it says when it does not."""
    _, made = nvrtc.nvrtcCreateProgram(text.encode(), b"own.cu", 0, [], [])
    asked = [b"--gpu-architecture=sm_90", *(o.encode() for o in options)]
    (code,) = nvrtc.nvrtcCompileProgram(made, len(asked), asked)
    _, size = nvrtc.nvrtcGetProgramLogSize(made)
    log = b" " * (size + 1)  # a single byte would be the interpreter's own
    nvrtc.nvrtcGetProgramLog(made, log)
    return "" if not int(code) else log[:size].decode()


def noted(found):
    """Return a function that notes what it is called with."""
    return lambda *args, **options: found.append((args, options))


def test_the_include_path_holds_the_header():
    """For any compiler: a folder and no option of ours."""
    assert (Path(stretto.include_path()) / "channel.cuh").is_file()
    assert ["cuda.core", "CuPy", "torch", "nvcc, NVRTC"] == list(shown())


def test_cuda_core_compiles_what_the_guide_shows():
    """Its own options object."""
    core = pytest.importorskip("cuda.core", reason="cuda-core is not installed")
    names = {"ProgramOptions": core.ProgramOptions, "stretto": stretto}
    options = eval(shown()["cuda.core"], names)

    assert core.Program(TEXT, "c++", options).compile("cubin").code


def test_cupy_passes_what_the_guide_shows_to_nvrtc():
    """`RawModule` compiles by NVRTC, with these options before its own."""
    found = []
    cupy = SimpleNamespace(RawModule=noted(found))
    eval(shown()["CuPy"], {"cupy": cupy, "stretto": stretto, "TEXT": TEXT})
    ((_, asked),) = found

    assert not compiled(asked["code"], asked["options"])


def loaded_inline():
    """Return the source, and the folders, that the guide's call gives to torch."""
    found = []
    load = SimpleNamespace(load_inline=noted(found))
    torch = SimpleNamespace(utils=SimpleNamespace(cpp_extension=load))
    eval(shown()["torch"], {"torch": torch, "stretto": stretto, "TEXT": TEXT})
    ((_, asked),) = found
    return "".join(asked["cuda_sources"]), asked["extra_include_paths"]


def test_torchs_inline_loader_gets_the_source_and_the_folder():
    """NVRTC stands in for nvcc here; `-std=c++17` is torch's own."""
    text, folders = loaded_inline()

    assert not compiled(text, ["--std=c++17", *(f"-I{folder}" for folder in folders)])


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="there is no nvcc")
def test_nvcc_compiles_it_beside_the_hosts_headers(tmp_path):
    """As torch's inline loader does: the standard library is included before."""
    text, folders = loaded_inline()
    source = tmp_path / "own.cu"
    source.write_text(f"#include <cstdint>\n#include <vector>\n{text}")
    places = [f"-I{folder}" for folder in folders]
    done = subprocess.run(
        ["nvcc", "-std=c++17", "-arch=sm_90", "-cubin", *places, str(source)],
        cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
