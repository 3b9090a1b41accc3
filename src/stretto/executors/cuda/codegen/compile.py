"""From a kernel's text to machine code, by NVRTC: no GPU, no compiler to install.

Images are kept on disk by everything that they depend on: the text, the headers, the
options, the architecture and the compiler's version. A warning is an error.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from stretto.errors import MissingExtraError, PlanError
from stretto.executors.cuda.codegen import cache
from stretto.executors.cuda.codegen.abi import Kernel
from stretto.registry import texts


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What a kernel takes of an SM, as the assembler says."""

    registers: int
    stack: int
    spill_stores: int
    spill_loads: int


@functools.cache
def headers() -> Mapping[str, str]:
    """Return the headers by name."""
    found = texts("stretto.executors.cuda", "kernels", ".cuh")
    return {f"{name}.cuh": text for name, text in found.items()}


def compile_kernel(kernel: Kernel, *, arch: tuple[int, int]) -> bytes:
    """Return the machine code of a kernel, from the cache when it is there."""
    key = _key(kernel, arch)
    found = cache.load(key)
    if found is None:
        found, _ = build(kernel, arch=arch)
        cache.store(key, found)
    return found


def compile_all(
    kernels: Iterable[Kernel], *, arch: tuple[int, int], threads: int | None = None
) -> list[bytes]:
    """Return the machine code of kernels, compiled side by side, the longest first.

    The compiler runs without Python's lock, so threads are enough.
    """
    several = list(kernels)
    order = sorted(range(len(several)), key=lambda i: -len(several[i].text))
    cores = threads or len(os.sched_getaffinity(0))
    with ThreadPoolExecutor(cores, "stretto-compile") as pool:
        started = {i: pool.submit(compile_kernel, several[i], arch=arch) for i in order}
        return [started[i].result() for i in range(len(several))]


def build(kernel: Kernel, *, arch: tuple[int, int]) -> tuple[bytes, str]:
    """Compile; return the machine code and the compiler's log."""
    if arch < kernel.least_arch:
        raise PlanError(
            f"kernel {kernel.digest} puts blocks in clusters, which sm_{arch[0]}"
            f"{arch[1]} has not; want sm_{kernel.least_arch[0]}{kernel.least_arch[1]}"
        )
    nvrtc = _nvrtc()
    names = sorted(headers())
    texts = [headers()[n].encode() for n in names]
    program = _ask(
        "nvrtcCreateProgram",
        kernel.text.encode(),
        f"{kernel.symbol}_{kernel.digest}.cu".encode(),
        len(names),
        texts,
        [n.encode() for n in names],
    )
    try:
        options = [o.encode() for o in _options(kernel, arch)]
        (error,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
        log = _text(program, "ProgramLog")
        if int(error) or re.search(r"\bwarning\b", log):
            raise PlanError(_complaint(kernel, arch, log))
        return _text(program, "CUBIN", binary=True), log
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def usage(log: str) -> Usage:
    """Return what the log says a kernel takes."""
    registers = re.findall(r"Used (\d+) registers", log)
    frames = re.findall(
        r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads",
        log,
    )
    if not registers or not frames:
        raise PlanError(f"the assembler's log names no registers: {log!r}")
    return Usage(
        registers=max(map(int, registers)),
        stack=max(int(f[0]) for f in frames),
        spill_stores=sum(int(f[1]) for f in frames),
        spill_loads=sum(int(f[2]) for f in frames),
    )


def _options(kernel: Kernel, arch: tuple[int, int]) -> list[str]:
    return [
        f"--gpu-architecture=sm_{arch[0]}{arch[1]}",
        "--std=c++17",
        "--device-as-default-execution-space",
        "--ptxas-options=-v",
        *kernel.options,
    ]


def identity() -> str:
    """Return a digest of what all kernels depend on: the headers and the compiler."""
    return _digest(_always())


def _always() -> list[str]:
    parts = [repr(_ask("nvrtcVersion"))]
    for name, text in sorted(headers().items()):
        parts += [name, text]
    return parts


def _key(kernel: Kernel, arch: tuple[int, int]) -> str:
    return _digest([kernel.text, *_options(kernel, arch), *_always()])


def _digest(parts: list[str]) -> str:
    hashed = hashlib.sha256()
    for part in parts:
        hashed.update(f"{len(part)}:{part}".encode())
    return hashed.hexdigest()


def _complaint(kernel: Kernel, arch: tuple[int, int], log: str) -> str:
    said = [line for line in log.splitlines() if "ptxas info" not in line]
    lines = kernel.text.splitlines()
    numbers = {int(n) for n in re.findall(rf"{kernel.digest}\.cu\((\d+)\)", log)}
    shown = [f"{n:4} {lines[n - 1]}" for n in sorted(numbers) if n <= len(lines)]
    return "\n".join(
        [
            f"kernel {kernel.digest} does not compile for sm_{arch[0]}{arch[1]}:",
            *said[:40],
            *(["in the generated text:", *shown] if shown else []),
        ]
    )


@functools.cache
def _nvrtc() -> Any:
    try:
        from cuda.bindings import nvrtc
    except ModuleNotFoundError as e:
        raise MissingExtraError(
            "kernels are compiled by NVRTC: pip install 'stretto[cuda13]'"
        ) from e
    try:
        nvrtc.nvrtcVersion()
    except RuntimeError as e:
        raise MissingExtraError(
            f"cuda-bindings finds no NVRTC ({e}): pip install 'stretto[cuda13]'"
        ) from e
    return nvrtc


def _ask(name: str, *args: Any) -> Any:
    error, *values = getattr(_nvrtc(), name)(*args)
    if int(error):
        raise PlanError(f"{name}: {error.name}")
    return values[0] if len(values) == 1 else tuple(values)


def _text(program: Any, what: str, *, binary: bool = False) -> Any:
    size = int(_ask(f"nvrtcGet{what}Size", program))
    written = b" " * (size + 1)  # a single byte would be the interpreter's own
    _ask(f"nvrtcGet{what}", program, written)
    raw = written[:size]
    return raw if binary else raw.rstrip(b"\0").decode(errors="replace")
